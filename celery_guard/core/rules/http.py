"""HTTP clients: httpx, requests, aiohttp, urllib, urllib3, botocore, and any error that carries a response."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from celery_guard.core.category import Category
from celery_guard.core.rules.retry_after import parse_retry_after
from celery_guard.core.rules.rule import Look, by_code, cause_of, named, read

__all__ = ["AWS_CODE", "HTTP_REQUEST", "HTTP_STATUS", "HTTP_TRANSPORT", "asked_delay"]

_AWS = "botocore.exceptions.ClientError"

#: Errors that are the response themselves: where their status is.
_STATUS_OF = {
    "aiohttp.client_exceptions.ClientResponseError": "status",
    "urllib.error.HTTPError": "code",
    "google.api_core.exceptions.GoogleAPICallError": "code",
}


def asked_delay(look: Look) -> timedelta | None:
    """How long the response behind an error asks to wait, in its ``Retry-After`` header."""
    try:
        headers = _headers(look)
        if headers is None:
            return None
        return parse_retry_after(headers.get("Retry-After") or headers.get("retry-after"), look.now)
    except BaseException:  # whatever calls itself headers may raise anything
        return None


def _headers(look: Look) -> Any:
    if look.is_a(_AWS):
        return look.read("response", "ResponseMetadata", "HTTPHeaders")
    if look.is_a(*_STATUS_OF):
        return look.read("headers")
    return look.read("response", "headers")


def _status(look: Look) -> int | None:
    if look.is_a(_AWS):
        return _number(look.read("response", "ResponseMetadata", "HTTPStatusCode"))
    attribute = next((name for known, name in _STATUS_OF.items() if look.is_a(known)), None)
    if attribute is not None:
        return None if _is_made_up(look) else _number(look.read(attribute))
    response = look.read("response")
    status = _number(read(response, "status_code"))
    return _number(read(response, "status")) if status is None else status


def _is_made_up(look: Look) -> bool:
    """aiohttp says 400 about an answer that it could not read; the cause tells the truth."""
    cause = cause_of(look.error)
    return cause is not None and Look(cause, look.now).is_a("aiohttp.http_exceptions.HttpProcessingError")


def _number(value: Any) -> int | None:
    if isinstance(value, str):
        return int(value) if len(value) == 3 and value.isascii() and value.isdigit() else None
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value


def _aws_code(look: Look) -> str | None:
    code = look.read("response", "Error", "Code") if look.is_a(_AWS) else None
    return code if isinstance(code, str) else None


#: Throttled and transient codes of botocore's standard retry mode; AWS sends most of them with status 400.
AWS_CODE = by_code(
    "aws_code",
    "the error code of a `botocore.exceptions.ClientError`",
    _aws_code,
    (
        (
            frozenset(
                """
                BandwidthLimitExceeded EC2ThrottledException LimitExceededException PriorRequestNotComplete
                ProvisionedThroughputExceededException RequestLimitExceeded RequestThrottled RequestThrottledException
                RequestTimeout RequestTimeoutException SlowDown ThrottledException Throttling ThrottlingException
                TooManyRequestsException TransactionInProgressException
                """.split()
            ),
            Category.RETRYABLE,
        ),
    ),
)

HTTP_STATUS = by_code(
    "http_status",
    "the status of an HTTP response",
    _status,
    (
        (frozenset({408, 425, 429}), Category.RETRYABLE),
        (frozenset({401, 403, 501, 505}), Category.NON_RETRYABLE),
        (range(400, 500), Category.NON_RETRYABLE),
        (range(500, 600), Category.RETRYABLE),
    ),
)

#: Requests that no server ever answers, matched before their transport parents.
HTTP_REQUEST = named(
    "http_request",
    Category.NON_RETRYABLE,
    "httpx.CookieConflict",
    "httpx.InvalidURL",
    "httpx.LocalProtocolError",
    "httpx.TooManyRedirects",
    "httpx.UnsupportedProtocol",
    "requests.exceptions.InvalidHeader",
    "requests.exceptions.InvalidSchema",
    "requests.exceptions.InvalidURL",
    "requests.exceptions.MissingSchema",
    "requests.exceptions.TooManyRedirects",
    "requests.exceptions.URLRequired",
    "aiohttp.client_exceptions.InvalidURL",
    "aiohttp.client_exceptions.NonHttpUrlClientError",
    "aiohttp.client_exceptions.ServerFingerprintMismatch",
    "aiohttp.client_exceptions.TooManyRedirects",
    "urllib3.exceptions.LocationValueError",
    "http.client.InvalidURL",
)

HTTP_TRANSPORT = named(
    "http_transport",
    Category.RETRYABLE,
    "httpx.TransportError",
    "requests.exceptions.ChunkedEncodingError",
    "requests.exceptions.ConnectionError",
    "requests.exceptions.RetryError",
    "requests.exceptions.Timeout",
    "aiohttp.client_exceptions.ClientConnectionError",
    "aiohttp.client_exceptions.ClientPayloadError",
    "aiohttp.http_exceptions.HttpProcessingError",
    "urllib3.exceptions.IncompleteRead",
    "urllib3.exceptions.MaxRetryError",
    "urllib3.exceptions.PoolError",
    "urllib3.exceptions.ProtocolError",
    "urllib3.exceptions.ProxyError",
    "urllib3.exceptions.SSLError",
    "urllib3.exceptions.TimeoutError",
    "botocore.exceptions.ConnectionError",
    "botocore.exceptions.HTTPClientError",
    "botocore.exceptions.IncompleteReadError",
    "http.client.BadStatusLine",
    "http.client.IncompleteRead",
)
