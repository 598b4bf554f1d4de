"""Brokers, caches and mail: Redis, AMQP and kombu, gRPC, SMTP."""

from __future__ import annotations

from typing import Any

from celery_guard.core.category import Category
from celery_guard.core.rules.rule import Look, by_code, named, read

__all__ = [
    "AMQP_ACCESS",
    "AMQP_CHANNEL",
    "AMQP_CONNECTION",
    "GRPC_STATUS",
    "KOMBU_CONNECTION",
    "KOMBU_MESSAGE",
    "REDIS_CONFLICT",
    "REDIS_CONNECTION",
    "REDIS_DATA",
    "SMTP_CONNECTION",
    "SMTP_REPLY",
    "SMTP_UNSUPPORTED",
]

REDIS_CONNECTION = named(
    "redis_connection",
    Category.RETRYABLE,
    "redis.exceptions.ConnectionError",
    "redis.exceptions.TimeoutError",
    "redis.exceptions.ClusterDownError",
    "redis.exceptions.OutOfMemoryError",
    "redis.exceptions.ReadOnlyError",
    "redis.exceptions.SlotNotCoveredError",
    "redis.exceptions.TryAgainError",
)
REDIS_CONFLICT = named(
    "redis_conflict", Category.RETRYABLE, "redis.exceptions.LockError", "redis.exceptions.WatchError"
)
REDIS_DATA = named(
    "redis_data",
    Category.NON_RETRYABLE,
    "redis.exceptions.ClusterCrossSlotError",
    "redis.exceptions.CrossSlotTransactionError",
    "redis.exceptions.DataError",
)

AMQP_ACCESS = named(
    "amqp_access", Category.NON_RETRYABLE, "amqp.exceptions.AccessRefused", "amqp.exceptions.NotAllowed"
)
AMQP_CHANNEL = named(
    "amqp_channel",
    Category.NON_RETRYABLE,
    "amqp.exceptions.AMQPNotImplementedError",
    "amqp.exceptions.ContentTooLarge",
    "amqp.exceptions.InvalidCommand",
    "amqp.exceptions.InvalidPath",
    "amqp.exceptions.NotFound",
    "amqp.exceptions.PreconditionFailed",
)
AMQP_CONNECTION = named(
    "amqp_connection",
    Category.RETRYABLE,
    "amqp.exceptions.ConnectionError",
    "amqp.exceptions.MessageNacked",
    "amqp.exceptions.RecoverableChannelError",
)
KOMBU_CONNECTION = named(
    "kombu_connection",
    Category.RETRYABLE,
    "kombu.exceptions.LimitExceeded",
    "kombu.exceptions.OperationalError",
)
KOMBU_MESSAGE = named(
    "kombu_message",
    Category.NON_RETRYABLE,
    "kombu.exceptions.SerializationError",
    "kombu.exceptions.SerializerNotInstalled",
)


def _grpc_name(look: Look) -> Any:
    code = look.read("code") if look.is_a("grpc.RpcError") else None
    name = read(code() if callable(code) else code, "name")
    return name if isinstance(name, str) else None


GRPC_STATUS = by_code(
    "grpc_status",
    "`code()` of a `grpc.RpcError`",
    _grpc_name,
    (
        (frozenset({"PERMISSION_DENIED", "UNAUTHENTICATED"}), Category.NON_RETRYABLE),
        (
            frozenset({"ABORTED", "DEADLINE_EXCEEDED", "INTERNAL", "RESOURCE_EXHAUSTED", "UNAVAILABLE"}),
            Category.RETRYABLE,
        ),
        (
            frozenset(
                """
                ALREADY_EXISTS DATA_LOSS FAILED_PRECONDITION INVALID_ARGUMENT NOT_FOUND OUT_OF_RANGE UNIMPLEMENTED
                """.split()
            ),
            Category.NON_RETRYABLE,
        ),
    ),
)


def _smtp_code(look: Look) -> int | None:
    if look.is_a("smtplib.SMTPRecipientsRefused"):
        return _mildest(look.read("recipients"))
    if look.is_a("smtplib.SMTPResponseException"):
        return _whole(look.read("smtp_code"))
    return _whole(look.read("code")) if look.is_a("aiosmtplib.errors.SMTPResponseException") else None


def _mildest(refused: Any) -> int | None:
    """The smallest reply code: while one recipient may still be served, a repeat helps."""
    if not isinstance(refused, dict):
        return None
    codes = [_whole(reply[0]) for reply in refused.values() if isinstance(reply, tuple) and reply]
    return min((code for code in codes if code is not None), default=None)


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None


SMTP_REPLY = by_code(
    "smtp_reply",
    "the reply code of an SMTP server",
    _smtp_code,
    ((range(400, 500), Category.RETRYABLE), (range(500, 600), Category.NON_RETRYABLE)),
)
SMTP_CONNECTION = named(
    "smtp_connection",
    Category.RETRYABLE,
    "smtplib.SMTPServerDisconnected",
    "aiosmtplib.errors.SMTPConnectError",
    "aiosmtplib.errors.SMTPServerDisconnected",
    "aiosmtplib.errors.SMTPTimeoutError",
)
SMTP_UNSUPPORTED = named(
    "smtp_unsupported", Category.NON_RETRYABLE, "smtplib.SMTPNotSupportedError", "aiosmtplib.errors.SMTPNotSupported"
)
