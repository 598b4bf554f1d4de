"""Redis, AMQP and kombu, gRPC, SMTP: what the libraries raise against real and tiny servers."""

from __future__ import annotations

import asyncio
import smtplib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import amqp.exceptions
import grpc
import kombu.exceptions
import kombu.serialization
import pytest
import redis
from kombu import Connection

from tests.rules.peers import silent_server, smtp_server, unused_port
from tests.rules.verdicts import NO, UNKNOWN, YES, Verdict, raised_by, verdict, verdict_on

# Redis


@pytest.fixture
def client(redis_url) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


def changed_under_watch(client: redis.Redis) -> None:
    with client.pipeline() as pipe:
        pipe.watch("key")
        client.set("key", 1)
        pipe.multi()
        pipe.get("key")
        pipe.execute()


def held_by_another(client: redis.Redis) -> None:
    client.lock("lock", timeout=5).acquire(blocking=False)
    with client.lock("lock", blocking_timeout=0.01):
        raise AssertionError("both hold it")


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (changed_under_watch, (YES, "redis_conflict")),
        (held_by_another, (YES, "redis_conflict")),
        (lambda client: client.set("key", object()), (NO, "redis_data")),
        (lambda client: client.execute_command("AUTH", "wrong"), (NO, "permission")),
        (lambda client: client.lpush("text", 1) if client.set("text", "x") else None, (UNKNOWN, "unknown")),
        (lambda client: client.execute_command("NO", "SUCH"), (UNKNOWN, "unknown")),
    ],
    ids="watch lock data auth wrong-type unknown-command".split(),
)
def test_what_a_redis_server_refuses(client, act, expected):
    assert verdict(lambda: act(client)) == Verdict(*expected)


def test_a_redis_that_is_not_there_is_worth_a_repeat():
    with redis.Redis(port=unused_port(), retry=None) as client:
        assert verdict(client.ping) == Verdict(YES, "redis_connection")


def test_a_redis_that_does_not_answer_is_worth_a_repeat():
    with silent_server() as port, redis.Redis(port=port, socket_timeout=0.05, retry=None) as client:
        assert verdict(client.ping) == Verdict(YES, "redis_connection")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (redis.exceptions.BusyLoadingError("LOADING"), (YES, "redis_connection")),
        (redis.exceptions.ReadOnlyError("READONLY"), (YES, "redis_connection")),
        (redis.exceptions.ClusterDownError("CLUSTERDOWN"), (YES, "redis_connection")),
        (redis.exceptions.TryAgainError("TRYAGAIN"), (YES, "redis_connection")),
        (redis.exceptions.MaxConnectionsError("x"), (YES, "redis_connection")),
        (redis.exceptions.AuthenticationError("WRONGPASS"), (NO, "permission")),
        (redis.exceptions.AuthorizationError("x"), (NO, "permission")),
        (redis.exceptions.NoPermissionError("NOPERM"), (NO, "permission")),
        (redis.exceptions.ClusterCrossSlotError("x"), (NO, "redis_data")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_errors_that_redis_names(error, expected):
    assert verdict_on(error) == Verdict(*expected)


# AMQP and kombu


@pytest.mark.parametrize(
    ("code", "expected"),
    {
        311: (NO, "amqp_channel"),
        313: (YES, "amqp_connection"),
        320: (YES, "amqp_connection"),
        402: (NO, "amqp_channel"),
        403: (NO, "amqp_access"),
        404: (NO, "amqp_channel"),
        405: (YES, "amqp_connection"),
        406: (NO, "amqp_channel"),
        501: (YES, "amqp_connection"),
        506: (YES, "amqp_connection"),
        530: (NO, "amqp_access"),
        540: (NO, "amqp_channel"),
        541: (YES, "amqp_connection"),
    }.items(),
)
def test_the_reply_codes_of_amqp(code, expected):
    error = amqp.exceptions.error_for_code(code, "so it is", (0, 0), amqp.exceptions.ChannelError)

    assert verdict_on(error) == Verdict(*expected)


@pytest.mark.parametrize(
    "error",
    [amqp.exceptions.MessageNacked(), amqp.exceptions.RecoverableConnectionError(), amqp.exceptions.Blocked()],
    ids=lambda error: type(error).__name__,
)
def test_a_broker_that_can_not_take_a_message_now_may_take_it_later(error):
    assert verdict_on(error) == Verdict(YES, "amqp_connection")


def test_a_broker_that_is_not_there_is_worth_a_repeat():
    with Connection(f"amqp://127.0.0.1:{unused_port()}//") as connection:
        error = raised_by(lambda: connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0))

    assert isinstance(error, kombu.exceptions.OperationalError)
    assert verdict_on(error).category is YES


def test_kombu_does_not_hide_that_access_was_refused():
    def connect() -> None:
        try:
            raise amqp.exceptions.AccessRefused("(403) ACCESS_REFUSED")
        except amqp.exceptions.AMQPError as refused:
            raise kombu.exceptions.OperationalError(str(refused)) from refused

    assert verdict(connect) == Verdict(NO, "amqp_access")


@pytest.mark.parametrize(
    "act",
    [
        lambda: kombu.serialization.dumps(object(), serializer="json"),
        lambda: kombu.serialization.loads(b"{", "application/json", "utf-8"),
        lambda: kombu.serialization.loads(b"x", "application/x-python-serialize", "binary", accept={"json"}),
        lambda: kombu.serialization.dumps(1, serializer="nonsense"),
    ],
    ids="encode decode disallowed unknown".split(),
)
def test_a_message_that_can_not_be_written_or_read_is_permanent(act):
    assert verdict(act) == Verdict(NO, "kombu_message")


@pytest.mark.parametrize(
    "error",
    [kombu.exceptions.OperationalError("x"), kombu.exceptions.ConnectionLimitExceeded(1)],
    ids=lambda error: type(error).__name__,
)
def test_a_broker_connection_that_kombu_could_not_get_is_worth_a_repeat(error):
    assert verdict_on(error) == Verdict(YES, "kombu_connection")


# gRPC

STATUSES = {
    "CANCELLED": (UNKNOWN, "unknown"),
    "UNKNOWN": (UNKNOWN, "unknown"),
    "INVALID_ARGUMENT": (NO, "grpc_status"),
    "DEADLINE_EXCEEDED": (YES, "grpc_status"),
    "NOT_FOUND": (NO, "grpc_status"),
    "ALREADY_EXISTS": (NO, "grpc_status"),
    "PERMISSION_DENIED": (NO, "grpc_status"),
    "RESOURCE_EXHAUSTED": (YES, "grpc_status"),
    "FAILED_PRECONDITION": (NO, "grpc_status"),
    "ABORTED": (YES, "grpc_status"),
    "OUT_OF_RANGE": (NO, "grpc_status"),
    "UNIMPLEMENTED": (NO, "grpc_status"),
    "INTERNAL": (YES, "grpc_status"),
    "UNAVAILABLE": (YES, "grpc_status"),
    "DATA_LOSS": (NO, "grpc_status"),
    "UNAUTHENTICATED": (NO, "grpc_status"),
}


class Aborts(grpc.GenericRpcHandler):
    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        status = grpc.StatusCode[details.method.rpartition("/")[2]]
        return grpc.unary_unary_rpc_method_handler(lambda request, context: context.abort(status, "so it is"))


@pytest.fixture(scope="module")
def grpc_address() -> Iterator[str]:
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool, handlers=[Aborts()])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield f"127.0.0.1:{port}"
        server.stop(None).wait()


def plainly(address: str, status: str) -> None:
    with grpc.insecure_channel(address) as channel:
        channel.unary_unary(f"/shop.Shop/{status}")(b"", timeout=5)


def awaiting(address: str, status: str) -> None:
    async def call() -> None:
        async with grpc.aio.insecure_channel(address) as channel:
            await channel.unary_unary(f"/shop.Shop/{status}")(b"", timeout=5)

    asyncio.run(call())


@pytest.mark.parametrize(("status", "expected"), STATUSES.items())
def test_a_grpc_status_says_whether_a_repeat_helps(grpc_address, status, expected):
    assert verdict(lambda: plainly(grpc_address, status)) == Verdict(*expected)


def test_grpc_for_asyncio_is_no_different(grpc_address):
    assert verdict(lambda: awaiting(grpc_address, "UNAUTHENTICATED")) == Verdict(NO, "grpc_status")


def test_a_grpc_server_that_is_not_there_is_worth_a_repeat():
    assert verdict(lambda: plainly(f"127.0.0.1:{unused_port()}", "OK")) == Verdict(YES, "grpc_status")


# SMTP


def mail(port: int) -> None:
    with smtplib.SMTP("127.0.0.1", port, local_hostname="test", timeout=5) as smtp:
        smtp.sendmail("shop@example.org", ["a@example.org", "b@example.org"], "hello")


def login(port: int) -> None:
    with smtplib.SMTP("127.0.0.1", port, local_hostname="test", timeout=5) as smtp:
        smtp.ehlo()
        smtp.esmtp_features["auth"] = "PLAIN"
        smtp.login("shop", "secret")


@pytest.mark.parametrize(
    ("act", "replies", "expected"),
    [
        (mail, {"CONNECT": b"421 too busy"}, (YES, "smtp_reply")),
        (mail, {"CONNECT": b"554 go away"}, (NO, "smtp_reply")),
        (mail, {"MAIL": b"450 later"}, (YES, "smtp_reply")),
        (mail, {"MAIL": b"550 never"}, (NO, "smtp_reply")),
        (mail, {"RCPT": b"451 greylisted"}, (YES, "smtp_reply")),
        (mail, {"RCPT": b"550 no such user"}, (NO, "smtp_reply")),
        (mail, {"DATA": b"452 no space"}, (YES, "smtp_reply")),
        (mail, {"DATA": b"552 too large"}, (NO, "smtp_reply")),
        (mail, {"MAIL": b""}, (YES, "smtp_connection")),
        (login, {"AUTH": b"454 later"}, (YES, "smtp_reply")),
        (login, {"AUTH": b"535 wrong"}, (NO, "smtp_reply")),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else None,
)
def test_a_mail_server_says_itself_whether_to_come_again(act, replies, expected):
    with smtp_server(**replies) as port:
        found = verdict(lambda: act(port))

    assert found == Verdict(*expected)


def test_a_mail_is_repeated_while_one_of_its_recipients_may_be_served():
    refused = {"a@example.org": (550, b"no such user"), "b@example.org": (450, b"busy")}

    assert verdict_on(smtplib.SMTPRecipientsRefused(refused)) == Verdict(YES, "smtp_reply")


def test_what_a_mail_server_can_not_do_it_never_can():
    def start_tls(port: int) -> Callable[[], None]:
        def act() -> None:
            with smtplib.SMTP("127.0.0.1", port, local_hostname="test", timeout=5) as smtp:
                smtp.starttls()

        return act

    with smtp_server() as port:
        assert verdict(start_tls(port)) == Verdict(NO, "smtp_unsupported")
