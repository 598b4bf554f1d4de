"""Talking to the outside world over HTTP, and saying what its answers mean for a task."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from functools import cache
from http import HTTPStatus
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import httpx

from celery_guard import RetryableError

__all__ = ["BadAddress", "ServiceBusy", "get_json", "post_json", "post_json_async"]


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


def post_json(path: str, payload: Mapping[str, Any], *, timeout: float) -> Any:
    """Send JSON and return the JSON answered."""
    data, headers = json.dumps(payload).encode(), {"Content-Type": "application/json"}
    return _answer(Request(_url(path), data=data, headers=headers), timeout)


async def post_json_async(path: str, payload: Mapping[str, Any], *, timeout: float, idempotency_key: str) -> Any:
    """Do the same in an event loop; by the key, the other side can tell a repeat from a second wish."""
    client = _client_of(asyncio.get_running_loop())
    headers = {"Idempotency-Key": idempotency_key}
    response = await client.post(_url(path), json=payload, headers=headers, timeout=timeout)
    if response.is_error:
        raise _meaning(response.status_code, response.reason_phrase, str(response.url), response.headers)
    return response.json()


@cache
def _client_of(loop: asyncio.AbstractEventLoop) -> httpx.AsyncClient:
    """Return the client of an event loop: its connections serve one run after the other."""
    return httpx.AsyncClient()


def _url(path: str) -> str:
    return os.environ["SHOP_WORLD_URL"] + path


def _answer(request: Request, timeout: float) -> Any:
    try:
        with urlopen(request, timeout=timeout) as response:
            return json.load(response)
    except HTTPError as refusal:
        with refusal:
            raise _meaning(refusal.code, refusal.reason, refusal.url, refusal.headers) from None
    except URLError as unreachable:
        raise ConnectionError(f"{request.full_url}: {unreachable.reason}") from unreachable


def _meaning(status: int, reason: str, url: str, headers: Mapping[str, str]) -> Exception:
    said = f"{status} {reason} from {url}"
    match status:
        case HTTPStatus.TOO_MANY_REQUESTS:
            return RetryableError(said, retry_after=float(headers["Retry-After"]))
        case HTTPStatus.SERVICE_UNAVAILABLE:
            return ServiceBusy(said)
        case HTTPStatus.NOT_FOUND:
            return BadAddress(said)
        case _:
            return RuntimeError(said)
