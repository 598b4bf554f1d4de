"""HTTP clients, each asking a real server: statuses, Retry-After, and what never becomes an answer."""

from __future__ import annotations

import http.client
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import timedelta

import aiohttp
import botocore.exceptions
import botocore.session
import httpx
import pytest
import requests
import urllib3
from botocore.config import Config

from tests.rules.peers import http_server, unused_port
from tests.rules.verdicts import NO, UNKNOWN, YES, Verdict, awaited, raised_by, verdict, verdict_on

Get = Callable[[str], object]

SESSION = botocore.session.get_session()

#: A second that no answer takes, unless it is asked to be slow.
TIMEOUT = 0.2

IN_A_MINUTE = "Thu, 01 Jan 2026 12:01:00 GMT"
AN_HOUR_AGO = "Thu, 01 Jan 2026 11:00:00 GMT"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with http_server() as url:
        yield url


def by_httpx(url: str) -> None:
    with httpx.Client(timeout=TIMEOUT, follow_redirects=True, trust_env=False) as client:
        client.get(url).raise_for_status()


def by_requests(url: str) -> None:
    with requests.Session() as session:
        session.trust_env = False
        session.get(url, timeout=TIMEOUT).raise_for_status()


def by_aiohttp(url: str) -> None:
    async def get() -> None:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as response:
            response.raise_for_status()
            await response.read()

    awaited(get)()


def by_urllib(url: str) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=TIMEOUT) as response:
            response.read()
    except urllib.error.HTTPError as error:
        error.close()  # it is the response, too
        raise


def by_urllib3(url: str) -> None:
    with urllib3.PoolManager(retries=False, timeout=TIMEOUT) as pool:
        pool.request("GET", url)


def by_botocore(url: str) -> None:
    client = SESSION.create_client(
        "dynamodb",
        region_name="eu-west-1",
        endpoint_url=url,
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        config=Config(
            retries={"total_max_attempts": 1}, connect_timeout=TIMEOUT, read_timeout=TIMEOUT, proxies={"no": "proxy"}
        ),
    )
    try:
        client.meta.events.register("before-send", _at_the_very_url(url))
        client.list_tables()
    finally:
        client.close()


def _at_the_very_url(url: str) -> Callable[..., None]:
    def point(request: object, **_: object) -> None:
        request.url = url  # type: ignore[attr-defined]

    return point


CLIENTS = [by_httpx, by_requests, by_aiohttp, by_urllib, by_botocore]
every_client = pytest.mark.parametrize("get", CLIENTS, ids=lambda get: get.__name__)

STATUSES = {
    400: NO,
    401: NO,
    402: NO,
    403: NO,
    404: NO,
    405: NO,
    408: YES,
    409: NO,
    410: NO,
    413: NO,
    422: NO,
    425: YES,
    429: YES,
    500: YES,
    501: NO,
    502: YES,
    503: YES,
    504: YES,
    505: NO,
    599: YES,
}


@every_client
@pytest.mark.parametrize(("status", "category"), STATUSES.items())
def test_a_status_says_whether_a_repeat_helps(server, get, status, category):
    assert verdict(lambda: get(f"{server}/{status}")) == Verdict(category, "http_status")


@every_client
@pytest.mark.parametrize(
    ("status", "header", "delay"),
    [
        (503, "7", 7),
        (429, "120", 120),
        (503, "1.5", 1.5),
        (503, IN_A_MINUTE, 60),
        (503, AN_HOUR_AGO, None),
        (503, "0", None),
        (503, "soon", None),
        (503, "-5", None),
        (404, "7", None),
    ],
)
def test_retry_after_is_honoured_in_seconds_and_as_a_date(server, get, status, header, delay):
    url = f"{server}/{status}?retry-after={header.replace(' ', '%20')}"

    found = verdict(lambda: get(url))

    assert found == Verdict(STATUSES[status], "http_status", None if delay is None else timedelta(seconds=delay))


@pytest.mark.parametrize(
    ("get", "word"),
    [
        (get, word)
        for get in (*CLIENTS, by_urllib3)
        for word in ("drop", "garbage", "slow", "cut")
        if (get, word) != (by_botocore, "cut")  # it takes what came for the answer
    ],
)
def test_an_answer_that_never_came_whole_is_worth_a_repeat(server, get, word):
    found = verdict(lambda: get(f"{server}/{word}"))

    assert found.category is YES
    assert found.rule in ("http_transport", "python_connection")


@pytest.mark.parametrize(
    ("get", "rule"),
    [
        (by_httpx, "http_transport"),
        (by_requests, "http_transport"),
        (by_aiohttp, "http_transport"),
        (by_botocore, "http_transport"),
        (by_urllib3, "http_transport"),
        (by_urllib, "python_connection"),
    ],
)
def test_a_refused_connection_is_worth_a_repeat(get, rule):
    assert verdict(lambda: get(f"http://127.0.0.1:{unused_port()}/200")) == Verdict(YES, rule)


@pytest.mark.parametrize("get", [by_httpx, by_requests, by_aiohttp])
@pytest.mark.parametrize("path", ["{server}/loop", "nonsense://localhost", "http://"])
def test_a_request_that_nobody_can_answer_is_permanent(server, get, path):
    assert verdict(lambda: get(path.format(server=server))) == Verdict(NO, "http_request")


def test_a_redirect_that_goes_round_in_urllib_is_not_known(server):
    assert verdict(lambda: by_urllib(f"{server}/loop")).category is UNKNOWN


AWS_CODES = {
    "ProvisionedThroughputExceededException": (YES, "aws_code"),
    "ThrottlingException": (YES, "aws_code"),
    "RequestLimitExceeded": (YES, "aws_code"),
    "ValidationException": (NO, "http_status"),
    "AccessDeniedException": (NO, "http_status"),
    "ExpiredTokenException": (NO, "http_status"),
    "ConditionalCheckFailedException": (NO, "http_status"),
}


@pytest.mark.parametrize(("code", "expected"), AWS_CODES.items())
def test_aws_throttles_with_status_400(server, code, expected):
    assert verdict(lambda: by_botocore(f"{server}/400?type={code}")) == Verdict(*expected)


def test_a_throttled_aws_call_waits_as_asked(server):
    found = verdict(lambda: by_botocore(f"{server}/400?type=ThrottlingException&retry-after=3"))

    assert found == Verdict(YES, "aws_code", timedelta(seconds=3))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (botocore.exceptions.NoCredentialsError(), (NO, "permission")),
        (botocore.exceptions.PartialCredentialsError(provider="env", cred_var="x"), (NO, "permission")),
        (botocore.exceptions.ParamValidationError(report="x"), (NO, "validation")),
        (botocore.exceptions.ResponseStreamingError(error="x"), (YES, "http_transport")),
        (botocore.exceptions.IncompleteReadError(actual_bytes=1, expected_bytes=2), (YES, "http_transport")),
        (botocore.exceptions.NoRegionError(), (UNKNOWN, "unknown")),
        (httpx.PoolTimeout("x"), (YES, "http_transport")),
        (httpx.ProxyError("x"), (YES, "http_transport")),
        (httpx.RemoteProtocolError("x"), (YES, "http_transport")),
        (httpx.LocalProtocolError("x"), (NO, "http_request")),
        (httpx.InvalidURL("x"), (NO, "http_request")),
        (httpx.DecodingError("x"), (UNKNOWN, "unknown")),
        (requests.exceptions.MissingSchema("x"), (NO, "http_request")),
        (requests.exceptions.JSONDecodeError("x", "", 0), (NO, "python_value")),
        (requests.exceptions.ProxyError("x"), (YES, "http_transport")),
        (requests.exceptions.RequestException("x"), (UNKNOWN, "unknown")),
        (aiohttp.ServerDisconnectedError(), (YES, "http_transport")),
        (aiohttp.ClientPayloadError(), (YES, "http_transport")),
        (aiohttp.InvalidURL("x"), (NO, "http_request")),
        (http.client.RemoteDisconnected("x"), (YES, "http_transport")),
        (http.client.IncompleteRead(b""), (YES, "http_transport")),
        (http.client.InvalidURL("x"), (NO, "http_request")),
        (urllib3.exceptions.LocationParseError("x"), (NO, "http_request")),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else value[1],
)
def test_what_clients_raise_without_an_answer(error, expected):
    assert verdict_on(error) == Verdict(*expected)


def refused_certificate() -> None:
    raise ssl.SSLCertVerificationError(1, "certificate verify failed")


@pytest.mark.parametrize(
    "outer",
    [httpx.ConnectError("x"), requests.exceptions.SSLError("x"), urllib3.exceptions.SSLError("x")],
    ids=lambda error: type(error).__module__,
)
def test_a_refused_certificate_is_permanent_behind_any_client(outer):
    def connect() -> None:
        try:
            refused_certificate()
        except ssl.SSLError as refused:
            raise outer from refused

    assert verdict(connect) == Verdict(NO, "certificate")
    assert verdict(refused_certificate) == Verdict(NO, "certificate")


def test_other_trouble_with_tls_is_worth_a_repeat():
    assert verdict_on(ssl.SSLEOFError(8, "EOF occurred")) == Verdict(YES, "tls")
    assert verdict_on(ssl.SSLError(1, "wrong version number")) == Verdict(YES, "tls")


def test_a_name_that_can_not_be_resolved_is_worth_a_repeat():
    error = raised_by(lambda: socket.getaddrinfo("127.0.0.1", "no-such-service"))

    assert verdict_on(error) == Verdict(YES, "dns")
    assert verdict_on(urllib.error.URLError(error)) == Verdict(YES, "dns")
