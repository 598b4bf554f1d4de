"""The shipped rules, in the order in which they are asked; the first that knows an error wins.

Rules know other libraries by the dotted names of their classes and by attributes, and import none of them. Missing
rights are permanent and come before the connection errors that some libraries derive them from.
"""

from __future__ import annotations

from celery_guard.core.category import Category, Classification
from celery_guard.core.rules import http, python, servers, sql
from celery_guard.core.rules.http import asked_delay
from celery_guard.core.rules.rule import Look, Row, Rule, cause_of, dotted_names, is_really, read

__all__ = [
    "CARRIERS",
    "SHIPPED",
    "Look",
    "Row",
    "Rule",
    "ask_shipped",
    "asked_delay",
    "cause_of",
    "dotted_names",
    "is_really",
    "read",
]

SHIPPED: tuple[Rule, ...] = (
    python.PERMISSION,
    servers.AMQP_ACCESS,
    sql.SQL_ACCESS,
    python.GUARD_STORE,
    python.GUARD_REFUSAL,
    python.SOFT_TIME_LIMIT,
    python.TIME_LIMIT,
    python.MEMORY,
    python.SYSTEM_EXIT,
    python.RESULT_TIMEOUT,
    http.AWS_CODE,
    http.HTTP_STATUS,
    http.HTTP_REQUEST,
    python.CERTIFICATE,
    http.HTTP_TRANSPORT,
    servers.GRPC_STATUS,
    servers.SMTP_REPLY,
    servers.SMTP_CONNECTION,
    servers.SMTP_UNSUPPORTED,
    sql.MYSQL_CODE,
    sql.SQLITE_CODE,
    sql.SQLSTATE,
    sql.SQL_CONNECTION,
    sql.SQL_CONFLICT,
    sql.SQL_CLASS,
    servers.REDIS_CONNECTION,
    servers.REDIS_CONFLICT,
    servers.REDIS_DATA,
    servers.AMQP_CHANNEL,
    servers.AMQP_CONNECTION,
    servers.KOMBU_CONNECTION,
    servers.KOMBU_MESSAGE,
    python.TLS,
    python.DNS,
    python.VALIDATION,
    python.CALL_ARGUMENTS,
    python.PYTHON_CONNECTION,
    python.OS_ERRNO,
    python.PYTHON_VALUE,
)

#: Wrappers, and where they carry the error that says more; it is asked about first.
CARRIERS = {
    "sqlalchemy.exc.StatementError": "orig",
    "kombu.exceptions.OperationalError": "__cause__",
    "urllib.error.URLError": "reason",
    "urllib3.exceptions.MaxRetryError": "reason",
}

_MOST_CARRIED = 5


def ask_shipped(look: Look) -> Classification | None:
    """Ask every shipped rule about an error: first about what it carries, then about itself."""
    for carried in reversed(_carried(look)):
        for rule in SHIPPED:
            category = rule(carried)
            if category is not None:
                delay = asked_delay(carried) if category is Category.RETRYABLE else None
                return Classification(category, rule.name, delay)
    return None


def _carried(look: Look) -> list[Look]:
    looks = [look]
    for _ in range(_MOST_CARRIED):
        attribute = next((name for known, name in CARRIERS.items() if looks[-1].is_a(known)), None)
        inner = looks[-1].read(attribute) if attribute else None
        if not is_really(inner, BaseException):
            break
        looks.append(Look(inner, look.now))
    return looks
