"""Pages that are written by the code: settings, states, the shipped rules, the commands, the tables."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import click
from columns import COLUMNS
from docutils import nodes
from docutils.statemachine import StringList
from fastapi import FastAPI
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective
from sqlalchemy.dialects import postgresql

from celery_guard.cli import COMMANDS, guard
from celery_guard.cli.preflight import CHECKS
from celery_guard.contrib.fastapi import ANYBODY, RunError, RunStatus, guard_router
from celery_guard.core.histogram import BOUNDS
from celery_guard.core.rules import CARRIERS, SHIPPED
from celery_guard.core.states import ENDINGS, MOVES, TERMINAL, Reason
from celery_guard.observe.logs import FIELDS
from celery_guard.observe.metrics import MEASURES, METRICS
from celery_guard.settings import Settings, TaskSettings
from celery_guard.store.models import metadata


def settings_table() -> Iterator[str]:
    """One row per key: default, what is accepted, whether a task may say otherwise."""
    yield from _head("key", "default", "accepted", "per task")
    for model, per_task in ((Settings, False), (TaskSettings, True)):
        for name, field in model.model_fields.items():
            if name == "task":
                continue
            key = "guard_default_deadline" if name == "deadline" else f"guard_{name}"
            attribute = f"`{name}`" if per_task else ""
            yield f"| `{key}` | {_readable(name, field)} | {field.description} | {attribute} |"


def moves_figure() -> Iterator[str]:
    """The life of a run as a list of moves."""
    yield from _head("from", "to")
    for state, exits in MOVES.items():
        yield f"| `{state}` | {', '.join(f'`{target}`' for target in sorted(exits)) or 'nowhere: it is terminal'} |"


WHEN = {
    Reason.SUCCEEDED: "the body returned in time",
    Reason.FAILED_NON_RETRYABLE: "the error is the task's own and permanent; a repeat can't help",
    Reason.FAILED_DUE_DEADLINE: "the deadline passed, or the next attempt could not start before it",
    Reason.FAILED_DUE_MAX_ATTEMPTS: "the attempts were used up, or those allowed for unknown faults",
    Reason.FAILED_DUE_WORKER_LOSS: "the process running it was lost, and the task forbids a repeat",
    Reason.CANCELLED: "a person or a Celery `revoke` stopped it",
}


def reasons_table() -> Iterator[str]:
    """Each terminal state with its reasons."""
    yield from _head("terminal state", "terminal_reason", "when")
    for state in sorted(TERMINAL):
        for reason in sorted(ENDINGS[state]):
            yield f"| `{state}` | `{reason}` | {WHEN[reason]} |"


def rules_table() -> Iterator[str]:
    """Every shipped rule in the order in which they are asked."""
    yield from _head("rule", "errors", "category")
    for rule in SHIPPED:
        for row in rule.rows:
            yield f"| `{rule.name}` | {row.errors} | {row.category} |"


def carriers_table() -> Iterator[str]:
    """Wrappers, and where the error that says more is found."""
    yield from _head("error", "asked first")
    for name, attribute in CARRIERS.items():
        yield f"| `{name}` | its `{attribute}` |"


def commands() -> Iterator[str]:
    """Every command with its usage and its options, as its own help says them."""
    for name in COMMANDS:
        command = guard.get_command(click.Context(guard), name)
        context = click.Context(command, info_name=f"celery -A … guard {name}")
        yield from (f"**{name}**", "", command.help, "", "```text", command.get_usage(context), "```", "")
        options = [one.get_help_record(context) for one in command.get_params(context) if isinstance(one, click.Option)]
        yield from ("| option | |", "|---|---|")
        yield from (f"| `{words.replace('|', ', ')}` | {text} |" for words, text in options)
        yield ""


def checks_table() -> Iterator[str]:
    """Every question of ``guard check``."""
    yield from _head("check", "question")
    for check in CHECKS:
        yield f"| {check.name} | {check.question} |"


def schema() -> Iterator[str]:
    """Every table with its columns, as the code declares them."""
    for table in metadata.sorted_tables:
        yield from (f"**{table.name}**", "", "| column | type | |", "|---|---|---|")
        for column in table.columns:
            kind = str(column.type.compile(dialect=postgresql.dialect())).lower()
            more = ", key" if column.primary_key else "" if column.nullable else ", not null"
            yield f"| `{column.name}` | {kind}{more} | {_words(table.name, column.name)} |"
        yield ""


def http_routes() -> Iterator[str]:
    """Every route of the status API with its answers, as its OpenAPI document says them."""
    yield from _head("request", "", "answers")
    for path, methods in _status_api()["paths"].items():
        for method, one in methods.items():
            answers = "<br>".join(f"{status}: {answer['description']}" for status, answer in one["responses"].items())
            yield f"| `{method.upper()} {path}` | {one['summary']} | {answers} |"


def http_status() -> Iterator[str]:
    """Every field of a run's status."""
    yield from _head("field", "")
    for model, above in ((RunStatus, ""), (RunError, "error.")):
        for name, field in model.model_fields.items():
            yield f"| `{above}{name}` | {field.description or ''} |"


def _status_api() -> Any:
    api = FastAPI()
    api.include_router(guard_router(None, authorize=ANYBODY))
    return api.openapi()


def metrics_table() -> Iterator[str]:
    """Every metric by the name that a query uses."""
    yield from _head("metric", "kind", "labels", "")
    for name, (kind, labels, says) in METRICS.items():
        shown = f"{name}_total" if kind == "counter" else name
        yield f"| `{shown}` | {kind} | {', '.join(f'`{label}`' for label in labels)} | {says} |"


def buckets_table() -> Iterator[str]:
    """The upper bounds of each histogram."""
    yield from _head("histogram", "bounds")
    for measure, name in MEASURES.items():
        yield f"| `{name}` | {', '.join(f'{bound:g}' for bound in BOUNDS[measure])} |"


def log_fields() -> Iterator[str]:
    """Every attribute of a log record of a transition."""
    yield from _head("attribute", "")
    for name, says in FIELDS.items():
        yield f"| `{name}` | {says} |"


def _head(*names: str) -> Iterator[str]:
    yield f"| {' | '.join(names)} |"
    yield f"|{'---|' * len(names)}"


def _words(table: str, column: str) -> str:
    try:
        return COLUMNS[table][column]
    except KeyError:
        raise ExtensionError(f"docs/_ext/columns.py has no words for the column {table}.{column}") from None


TABLES = {
    "settings": settings_table,
    "moves": moves_figure,
    "reasons": reasons_table,
    "rules": rules_table,
    "carriers": carriers_table,
    "commands": commands,
    "checks": checks_table,
    "schema": schema,
    "http-routes": http_routes,
    "http-status": http_status,
    "metrics": metrics_table,
    "buckets": buckets_table,
    "log-fields": log_fields,
}


class FromCode(SphinxDirective):
    """``{from-code} NAME``: the table of that name."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        text = "\n".join(TABLES[self.arguments[0]]())
        container = nodes.container()
        self.state.nested_parse(StringList(text.splitlines(), source="code"), self.content_offset, container)
        return container.children


def _readable(name: str, field: Any) -> str:
    special = {"database_url": "a SQLite file beside the app's module", "namespace": "the app's main name"}
    if name in special:
        return special[name]
    if name == "retention":
        return "7 days for succeeded and cancelled, 30 days for failed and dead"
    value = field.default
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g} s"
    return f"`{value!r}`"


def setup(app: Any) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("from-code", FromCode)
    return {"parallel_read_safe": True}
