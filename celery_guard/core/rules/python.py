"""What Python and its standard library raise, and what a worker raises into a body."""

from __future__ import annotations

import errno
import re

from celery_guard.core.category import Category
from celery_guard.core.rules.rule import Look, Row, Rule, by_code, named

__all__ = [
    "CALL_ARGUMENTS",
    "CERTIFICATE",
    "DNS",
    "GUARD_REFUSAL",
    "GUARD_STORE",
    "MEMORY",
    "OS_ERRNO",
    "PERMISSION",
    "PYTHON_CONNECTION",
    "PYTHON_VALUE",
    "RESULT_TIMEOUT",
    "SOFT_TIME_LIMIT",
    "SYSTEM_EXIT",
    "TIME_LIMIT",
    "TLS",
    "VALIDATION",
]

#: How far back a refused certificate is looked for behind a transport error.
CERTIFICATE_DEPTH = 8

PERMISSION = named(
    "permission",
    Category.NON_RETRYABLE,
    "builtins.PermissionError",
    "redis.exceptions.AuthenticationError",
    "redis.exceptions.AuthenticationWrongNumberOfArgsError",
    "redis.exceptions.AuthorizationError",
    "redis.exceptions.NoPermissionError",
    "botocore.exceptions.NoAuthTokenError",
    "botocore.exceptions.NoCredentialsError",
    "botocore.exceptions.PartialCredentialsError",
    "botocore.exceptions.UnauthorizedSSOTokenError",
)

GUARD_STORE = named("guard_store", Category.RETRYABLE, "celery_guard.errors.StoreUnavailable")
GUARD_REFUSAL = named(
    "guard_refusal",
    Category.NON_RETRYABLE,
    "celery_guard.errors.IdempotencyConflict",
    "celery_guard.errors.InvalidOption",
    "celery_guard.errors.RunExists",
    "celery_guard.errors.RunNotFound",
    "celery_guard.errors.StepReused",
    "celery_guard.errors.UnserializableArgument",
)

SOFT_TIME_LIMIT = named("soft_time_limit", Category.RETRYABLE, "billiard.exceptions.SoftTimeLimitExceeded")
TIME_LIMIT = named("time_limit", Category.RETRYABLE, "billiard.exceptions.TimeLimitExceeded")
MEMORY = named("memory", Category.RETRYABLE, "builtins.MemoryError")
SYSTEM_EXIT = named("system_exit", Category.RETRYABLE, "builtins.SystemExit")
RESULT_TIMEOUT = named("result_timeout", Category.RETRYABLE, "celery.exceptions.TimeoutError")


def _has_a_refused_certificate(look: Look) -> Category | None:
    refused = any(link.is_a("ssl.SSLCertVerificationError") for link in look.links(CERTIFICATE_DEPTH))
    return Category.NON_RETRYABLE if refused else None


CERTIFICATE = Rule(
    "certificate",
    _has_a_refused_certificate,
    (Row("`ssl.SSLCertVerificationError`, itself or behind another error", Category.NON_RETRYABLE),),
)
TLS = named("tls", Category.RETRYABLE, "ssl.SSLError")
DNS = named("dns", Category.RETRYABLE, "socket.gaierror", "socket.herror")

VALIDATION = named(
    "validation",
    Category.NON_RETRYABLE,
    "pydantic_core._pydantic_core.ValidationError",
    "pydantic.error_wrappers.ValidationError",
    "pydantic.v1.error_wrappers.ValidationError",
    "marshmallow.exceptions.ValidationError",
    "jsonschema.exceptions.ValidationError",
    "django.core.exceptions.ValidationError",
    "botocore.exceptions.ParamValidationError",
)

_CALL = re.compile(
    r"[^\s(]+\(\) (missing \d|takes (no|from|exactly|at most|at least|\d)"
    r"|got (an unexpected keyword|multiple values|some positional-only))"
)


def _was_called_wrongly(look: Look) -> Category | None:
    wrong = look.is_a("builtins.TypeError") and _CALL.match(look.text)
    return Category.NON_RETRYABLE if wrong else None


CALL_ARGUMENTS = Rule(
    "call_arguments",
    _was_called_wrongly,
    (Row("`TypeError` about missing or unexpected arguments", Category.NON_RETRYABLE),),
)

PYTHON_CONNECTION = named(
    "python_connection",
    Category.RETRYABLE,
    "builtins.ConnectionError",
    "builtins.TimeoutError",
    "builtins.InterruptedError",
    "builtins.BlockingIOError",
    "asyncio.exceptions.TimeoutError",
    "asyncio.exceptions.IncompleteReadError",
    "concurrent.futures._base.TimeoutError",
    "subprocess.TimeoutExpired",
)


def _errno(look: Look) -> str | None:
    number = look.read("errno") if look.is_a("builtins.OSError") else None
    return errno.errorcode.get(number) if type(number) is int else None


OS_ERRNO = by_code(
    "os_errno",
    "`OSError.errno`",
    _errno,
    (
        (
            frozenset(
                """
                EADDRINUSE EADDRNOTAVAIL EAGAIN EALREADY EBUSY ECONNABORTED ECONNREFUSED ECONNRESET EDEADLK EDEADLOCK
                EDQUOT EHOSTDOWN EHOSTUNREACH EINPROGRESS EINTR EIO EMFILE ENETDOWN ENETRESET ENETUNREACH ENFILE ENOBUFS
                ENOLCK ENOMEM ENOSPC ENOTCONN EPIPE ESTALE ETIMEDOUT ETXTBSY EWOULDBLOCK
                """.split()
            ),
            Category.RETRYABLE,
        ),
        (
            frozenset(
                """
                EACCES EAFNOSUPPORT EBADF EDESTADDRREQ EEXIST EFBIG EINVAL EISDIR ELOOP EMSGSIZE ENAMETOOLONG ENODEV
                ENOEXEC ENOPROTOOPT ENOTDIR ENOTEMPTY ENOTSOCK ENOTSUP ENOTTY ENXIO EOPNOTSUPP EPERM EPROTONOSUPPORT
                EPROTOTYPE EROFS ESPIPE EXDEV
                """.split()
            ),
            Category.NON_RETRYABLE,
        ),
    ),
)

PYTHON_VALUE = named(
    "python_value",
    Category.NON_RETRYABLE,
    "builtins.ValueError",
    "builtins.TypeError",
    "builtins.LookupError",
    "builtins.AttributeError",
    "builtins.ArithmeticError",
    "builtins.AssertionError",
    "builtins.NameError",
    "builtins.NotImplementedError",
    "builtins.SyntaxError",
)
