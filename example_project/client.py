"""Talking to the outside world over HTTP, and saying what its answers mean for a task."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from celery_guard import RetryableError

__all__ = ["BadAddress", "ServiceBusy", "get_json", "post_json"]


class ServiceBusy(Exception):
    """The other side can't answer now; a repeat may help."""


class BadAddress(Exception):
    """What we asked for does not exist; a repeat can't help."""


def get_json(path: str, *, timeout: float) -> Any:
    """Return the JSON found at a path of the outside world.

    Args:
        path: such as ``/orders/1001``.
        timeout: seconds that one wait for the other side may take.
    """
    return _answer(Request(_url(path)), timeout)


def post_json(path: str, payload: Mapping[str, Any], *, timeout: float, idempotency_key: str | None = None) -> Any:
    """Send JSON and return the JSON answered; with a key, the other side can tell a repeat from a second wish."""
    headers = {"Content-Type": "application/json"}
    if idempotency_key is not None:
        headers["Idempotency-Key"] = idempotency_key
    return _answer(Request(_url(path), data=json.dumps(payload).encode(), headers=headers), timeout)


def _url(path: str) -> str:
    return os.environ["SHOP_WORLD_URL"] + path


def _answer(request: Request, timeout: float) -> Any:
    try:
        with urlopen(request, timeout=timeout) as response:
            return json.load(response)
    except HTTPError as refusal:
        with refusal:
            raise _meaning(refusal) from None
    except URLError as unreachable:
        raise ConnectionError(f"{request.full_url}: {unreachable.reason}") from unreachable


def _meaning(refusal: HTTPError) -> Exception:
    said = f"{refusal.code} {refusal.reason} from {refusal.url}"
    match refusal.code:
        case HTTPStatus.TOO_MANY_REQUESTS:
            return RetryableError(said, retry_after=float(refusal.headers["Retry-After"]))
        case HTTPStatus.SERVICE_UNAVAILABLE:
            return ServiceBusy(said)
        case HTTPStatus.NOT_FOUND:
            return BadAddress(said)
        case _:
            return RuntimeError(said)
