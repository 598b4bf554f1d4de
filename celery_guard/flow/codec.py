"""What a row keeps as text: arguments, options, results, meta."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from inspect import Signature, signature
from typing import Any

from kombu import serialization
from kombu.exceptions import EncodeError, SerializerNotInstalled
from kombu.utils import json as kombu_json

from celery_guard.errors import InvalidOption, UnserializableArgument

__all__ = [
    "MAX_META_BYTES",
    "TOLD_ELSEWHERE",
    "checked_meta",
    "decode",
    "decode_options",
    "digest",
    "encode",
    "encode_arguments",
    "encode_options",
    "encode_result",
    "signature_of",
]

MAX_META_BYTES = 4_096
_BASE64 = "base64:"

#: In the place of a result that an unguarded task gives to Celery's result backend, and nobody to the row.
TOLD_ELSEWHERE = "celery_guard: told elsewhere"


def encode(value: Any, serializer: str) -> str:
    """Encode by a serializer that kombu knows, as text that any database takes.

    Raises:
        kombu.exceptions.EncodeError: the serializer can't encode the value.
        kombu.exceptions.SerializerNotInstalled: there is none of that name.
    """
    registered = serialization.registry._encoders.get(serializer)
    if registered is None:
        raise SerializerNotInstalled(f"no serializer {serializer!r} is registered with kombu")
    try:
        data = registered.encoder(value)
    except Exception as error:  # a serializer may raise anything
        raise EncodeError(str(error)) from error
    encoding = registered.content_encoding
    if isinstance(data, str) and "\x00" not in data:
        return data
    raw = data.encode(encoding) if isinstance(data, str) else data
    return _BASE64 + base64.b64encode(raw).decode("ascii")


def decode(text: str, serializer: str) -> Any:
    """Return what :func:`encode` was given."""
    content_type = serialization.registry.name_to_type[serializer]
    encoding = serialization.registry._encoders[serializer].content_encoding
    data: Any = text
    if text.startswith(_BASE64):
        data = base64.b64decode(text[len(_BASE64) :])
        if encoding not in ("binary", "ascii-8bit"):
            data = data.decode(encoding)
    return serialization.loads(data, content_type, encoding, accept=[content_type])


def encode_arguments(task: Any, args: list[Any], kwargs: Mapping[str, Any], serializer: str) -> str:
    """Encode the arguments of a submission.

    Raises:
        UnserializableArgument: the text names the argument.
    """
    try:
        return encode([args, kwargs], serializer)
    except Exception as error:  # a serializer may raise anything
        name = _culprit(task, args, kwargs, serializer)
        raise UnserializableArgument(
            f"{task.name}: {name} can't be encoded by the {serializer!r} serializer: {error}"
        ) from error


def encode_options(options: Mapping[str, Any]) -> str:
    """Encode execution options: signatures, headers, routes."""
    try:
        return str(kombu_json.dumps({name: value for name, value in options.items() if value is not None}))
    except Exception as error:
        raise UnserializableArgument(f"the options of a guarded task must be JSON: {error}") from error


def decode_options(text: str) -> dict[str, Any]:
    """Return what :func:`encode_options` was given."""
    options: dict[str, Any] = kombu_json.loads(text)
    return options


def encode_result(result: Any, serializer: str) -> str:
    """Encode a return value.

    Raises:
        kombu.exceptions.EncodeError: the serializer can't encode it.
    """
    return encode(result, serializer)


def digest(payload: str) -> str:
    """Return what tells one encoded payload from another."""
    return "p:" + hashlib.blake2b(payload.encode(), digest_size=16).hexdigest()


def checked_meta(meta: Any) -> dict[str, Any]:
    """Return correlation data as it is stored.

    Raises:
        InvalidOption: not a dict of JSON values with text keys, or larger than 4 096 bytes.
    """
    if not isinstance(meta, Mapping) or not all(isinstance(key, str) for key in meta):
        raise InvalidOption(f"meta must be a dict with text keys, not {meta!r}")
    try:
        text = json.dumps(dict(meta), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidOption(f"meta must hold JSON values only: {error}") from None
    if len(text.encode()) > MAX_META_BYTES:
        raise InvalidOption(f"meta must be at most {MAX_META_BYTES} bytes as JSON, not {len(text.encode())}")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def signature_of(task: Any) -> Signature | None:
    """Return the signature that callers of the task see, without ``self``."""
    try:
        return signature(getattr(task, "_orig_run", task.run))
    except (TypeError, ValueError):
        return None


def _culprit(task: Any, args: list[Any], kwargs: Mapping[str, Any], serializer: str) -> str:
    known = signature_of(task)
    names = list(known.parameters) if known else []
    named = [(names[i] if i < len(names) else f"#{i + 1}", value) for i, value in enumerate(args)]
    for name, value in [*named, *kwargs.items()]:
        try:
            encode(value, serializer)
        except Exception:
            return f"argument {name!r} (a {type(value).__name__})"
    return "the arguments"
