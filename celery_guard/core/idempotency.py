"""Whether two payloads are the same request."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from inspect import Parameter, Signature
from typing import Any

__all__ = ["FINGERPRINT_VERSION", "LONGEST_KEY", "bound_arguments", "checked_key", "fingerprint", "is_storable"]

FINGERPRINT_VERSION = "1"
LONGEST_KEY = 255


def bound_arguments(signature: Signature | None, args: list[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Name every argument and drop those equal to their default, so that spelling does not matter.

    A call that does not fit the signature, or a task without one, keeps its arguments by position and name.
    """
    try:
        bound = signature.bind(*args, **kwargs) if signature is not None else None
    except TypeError:
        bound = None
    if signature is None or bound is None:
        return {"*": list(args), **kwargs}
    named: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        parameter = signature.parameters[name]
        if parameter.kind is Parameter.VAR_KEYWORD:
            named.update(value)
        elif parameter.kind is Parameter.VAR_POSITIONAL:
            if value:
                named[f"*{name}"] = list(value)
        elif not _is_default(value, parameter.default):
            named[name] = value
    return named


def fingerprint(arguments: Mapping[str, Any], encode: Callable[[Any], Any] = repr) -> str:
    """Return a digest of canonical arguments: order-free, versioned, the same in every process.

    Args:
        arguments: what :func:`bound_arguments` returned.
        encode: what to write for values that JSON does not know.
    """
    text = json.dumps(_canonical(arguments, encode), separators=(",", ":"), ensure_ascii=True)
    return f"{FINGERPRINT_VERSION}:{hashlib.sha256(text.encode()).hexdigest()[:40]}"


def _is_default(value: Any, default: Any) -> bool:
    try:
        return type(value) is type(default) and bool(value == default)
    except Exception:  # comparing may mean something else to a type, or nothing
        return False


def _canonical(value: Any, encode: Callable[[Any], Any]) -> Any:
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Mapping):
        pairs = ([_canonical(key, encode), _canonical(item, encode)] for key, item in value.items())
        return {"mapping": sorted(pairs, key=json.dumps)}
    if isinstance(value, (set, frozenset)):
        return {"set": sorted((_canonical(item, encode) for item in value), key=json.dumps)}
    if isinstance(value, (list, tuple)):
        return [_canonical(item, encode) for item in value]
    return _canonical(encode(value), encode)


def checked_key(key: object, name: str = "idempotency_key") -> str:
    """Return the key as it is stored.

    Raises:
        ValueError: not text, blank, longer than 255 characters, or with a NUL.
    """
    if not isinstance(key, str):
        raise ValueError(f"{name} must be text, not {key!r}")
    if not key.strip():
        raise ValueError(f"{name} must not be blank; leave it out when there is none")
    if len(key) > LONGEST_KEY:
        raise ValueError(f"{name} must have at most {LONGEST_KEY} characters, not {len(key)}")
    if not is_storable(key):
        raise ValueError(f"{name} must be valid text without NUL characters, not {key!r}")
    return key


def is_storable(text: str) -> bool:
    """Whether every database takes a text: it has no NUL, and no half of a surrogate pair."""
    try:
        return b"\x00" not in text.encode("utf-8")
    except UnicodeEncodeError:
        return False
