"""Tasks whose life is watched by everything that can: log records, signals, OpenTelemetry's instrumentation."""

from __future__ import annotations

import logging
import os

from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from celery_guard import RetryableError, signals
from tests.acceptance.apps.stage import IN_WORKER, die, new_app, note, noted

app = new_app("watched")


@app.task(max_attempts=3)
def stumble():
    """Be killed, then fail, then succeed."""
    with noted() as run:
        if run.attempt == 1:
            die()
        if run.attempt == 2:
            raise RetryableError("busy")
        return "done"


class _Notes(logging.Handler):
    def emit(self, record):
        if hasattr(record, "task_id"):
            note("log", record.task_id, state=record.state, attempt=record.attempt, made_by=record.made_by)


def _hear(sender, run, **_):
    note("signal", run.run_id, state=run.state.value, sender=sender.name)
    raise LookupError("a hook that is broken")


class _Spans(SpanExporter):
    def export(self, spans):
        for span in spans:
            note("span", span.attributes.get("messaging.message.id", ""), name=span.name, trace=span.context.trace_id)
        return SpanExportResult.SUCCESS


if IN_WORKER in os.environ:
    logging.getLogger("celery_guard").addHandler(_Notes(logging.INFO))
    logging.getLogger("celery_guard").setLevel(logging.INFO)
    for one in (signals.run_started, signals.run_retrying, signals.run_finished):
        one.connect(_hear)
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(_Spans()))
    trace.set_tracer_provider(provider)
    CeleryInstrumentor().instrument()
