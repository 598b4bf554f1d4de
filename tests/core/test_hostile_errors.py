"""Errors that fight back: whatever an exception is made of, it is classified and written down."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from celery_guard.core.faults import Category, Configured, classify, fault_of
from celery_guard.core.rules import SHIPPED, Look
from celery_guard.errors import RetryableError
from tests.factories import NOON
from tests.infra.naming import shown
from tests.rules.verdicts import NO, UNKNOWN, YES, Verdict, verdict_on

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup, ExceptionGroup

READ_BY_RULES = (
    "args code connection_invalidated errno exceptions headers orig pgcode reason recipients response smtp_code"
    " sqlite_errorname sqlstate status __cause__ __context__ __suppress_context__"
).split()


def spring(*_: object, **__: object) -> Any:
    raise RuntimeError("mind your own business")


class Trap:
    """Raises whatever is done with it."""

    __getattribute__ = __call__ = __iter__ = __len__ = __bool__ = __eq__ = __hash__ = __str__ = __repr__ = spring


def made(value: object) -> object:
    """Make the trap where it is used: no test runner survives one among its parameters."""
    return Trap() if value is Trap else value


def trapped(base: type[BaseException], raises: type[BaseException]) -> type[BaseException]:
    """A class whose every attribute that a rule reads raises."""

    def trap(self: object) -> None:
        raise raises("mind your own business")

    return type("Trapped", (base,), {name: property(trap) for name in READ_BY_RULES})


def holding(base: type[BaseException], value: object) -> type[BaseException]:
    """A class whose every attribute that a rule reads is this value."""
    return type("Holding", (base,), dict.fromkeys(READ_BY_RULES, made(value)))


BASES = (Exception, OSError, ValueError, TypeError, ConnectionError)


@pytest.mark.parametrize("raises", [RuntimeError, AttributeError, SystemExit, KeyboardInterrupt, RecursionError])
@pytest.mark.parametrize("base", BASES)
def test_attributes_that_raise_are_as_good_as_none(base, raises):
    error = trapped(base, raises)()

    found = classify(error, now=NOON, configured=Configured(retryable=("shop.Busy",)))

    assert found.category in (Category.UNKNOWN, verdict_on(base()).category)


NONSENSE = [
    None,
    "503",
    "28P01",
    b"503",
    503,
    10**400,
    -1,
    1.5,
    True,
    [],
    {},
    (),
    {"Error": 7},
    object,
    Trap,
    "\ud800",
]


@pytest.mark.parametrize("value", NONSENSE, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("base", BASES)
def test_attributes_of_any_type_are_no_harm(base, value):
    classify(holding(base, value)(), now=NOON)


FAMILIES = [
    "aiohttp.client_exceptions.ClientResponseError",
    "aiosmtplib.errors.SMTPResponseException",
    "botocore.exceptions.ClientError",
    "builtins.BaseExceptionGroup",
    "google.api_core.exceptions.GoogleAPICallError",
    "grpc.RpcError",
    "kombu.exceptions.OperationalError",
    "mysql.connector.errors.Error",
    "psycopg2.OperationalError",
    "pyodbc.Error",
    "smtplib.SMTPRecipientsRefused",
    "smtplib.SMTPResponseException",
    "sqlalchemy.exc.DBAPIError",
    "sqlite3.Error",
    "urllib.error.HTTPError",
    "urllib.error.URLError",
]


def lying(name: str, **attributes: object) -> BaseException:
    """An error that gives itself out for another library's."""
    module, _, qualname = name.rpartition(".")
    return type(qualname, (Exception,), {"__module__": module, **attributes})()


@pytest.mark.parametrize("value", NONSENSE, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_class_that_only_pretends_to_be_one_of_a_library_is_no_harm(name, value):
    classify(lying(name, **dict.fromkeys(READ_BY_RULES, made(value))), now=NOON)
    classify(lying(name), now=NOON)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (503, (YES, "http_status")),
        ("503", (YES, "http_status")),
        ("404", (NO, "http_status")),
        (200, (UNKNOWN, "unknown")),
        (302, (UNKNOWN, "unknown")),
        (99_999, (UNKNOWN, "unknown")),
        ("5" * 5_000, (UNKNOWN, "unknown")),
        ("\N{ARABIC-INDIC DIGIT FIVE}03", (UNKNOWN, "unknown")),
        ("busy", (UNKNOWN, "unknown")),
        (True, (UNKNOWN, "unknown")),
        (None, (UNKNOWN, "unknown")),
    ],
    ids=shown,
)
def test_a_status_may_be_a_number_or_its_text(status, expected):
    response = type("Response", (), {"status_code": status, "headers": {}})()

    assert verdict_on(lying("shop.Answered", response=response)) == Verdict(*expected)


@pytest.mark.parametrize("module", [None, 7, b"shop", "", Trap], ids=lambda value: type(value).__name__)
def test_a_module_that_is_no_text_names_no_class(module):
    error = type("Odd", (ConnectionError,), {"__module__": made(module)})()

    assert verdict_on(error) == Verdict(YES, "python_connection")


def test_a_metaclass_that_hides_the_name_of_its_class_is_no_harm():
    class Hidden(type):
        def __getattribute__(cls, name: str) -> Any:
            if name in ("__module__", "__qualname__"):
                raise RuntimeError("mind your own business")
            return super().__getattribute__(name)

    error = Hidden("Odd", (ConnectionError,), {})()

    found = classify(error, now=NOON)

    assert found.category is YES
    assert fault_of(error, found, limit=100).error_type == "?"


@pytest.mark.parametrize("asked", [Trap, "soon", [], object(), float("nan")], ids=lambda value: type(value).__name__)
def test_a_wait_that_is_no_number_asks_for_nothing(asked):
    assert verdict_on(RetryableError("x", made(asked))) == Verdict(YES, "raised_retryable")


def test_a_text_of_megabytes_takes_no_time_to_classify():
    error = TypeError("f() takes " + "\x00\ud800" * 5_000_000)

    assert verdict_on(error).category is NO


@pytest.mark.parametrize(
    "exceptions", [None, [], (), (1, 2), ("x", None), Trap], ids=lambda value: type(value).__name__
)
def test_a_group_of_things_that_are_no_errors_is_no_harm(exceptions):
    assert classify(lying("builtins.BaseExceptionGroup", exceptions=made(exceptions)), now=NOON).category is UNKNOWN


def test_a_group_that_holds_itself_ends():
    class Mirror(ExceptionGroup):
        @property
        def exceptions(self) -> tuple[BaseException, ...]:
            return (self, self)

    assert verdict_on(Mirror("many", [ValueError()])) == Verdict(UNKNOWN, "unknown")


def test_a_group_that_is_the_cause_of_its_members_ends():
    member = RuntimeError()
    member.__cause__ = group = BaseExceptionGroup("several", [member])

    assert verdict_on(group) == Verdict(UNKNOWN, "unknown")


@pytest.mark.parametrize("rule", SHIPPED, ids=lambda rule: rule.name)
def test_no_rule_is_broken_by_an_error_that_is_all_traps(rule):
    rule(Look(trapped(Exception, SystemExit)(), NOON))
    rule(Look(holding(OSError, Trap)(), NOON))
