"""OpenTelemetry's own Celery instrumentation sees one trace per run, whoever sends its messages."""

from __future__ import annotations

from contextvars import Context

import pytest
from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from celery_guard import cancel
from celery_guard.flow.dispatch import Dispatcher


class Spans:
    """What was exported."""

    def __init__(self, provider, exporter):
        self.tracer = provider.get_tracer("tests")
        self.exporter = exporter

    def named(self, start):
        return [span for span in self.exporter.get_finished_spans() if span.name.startswith(start)]

    def traces(self, start=""):
        return {span.context.trace_id for span in self.named(start)}


@pytest.fixture
def spans(monkeypatch):
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)  # it can be set only once per process
    instrumentor = CeleryInstrumentor()
    instrumentor.instrument()
    yield Spans(provider, exporter)
    instrumentor.uninstrument()
    provider.shutdown()


@pytest.fixture
def traced_shop(any_shop, spans):
    any_shop.app.set_current()  # the instrumentation asks the current app for tasks, and a worker is that
    any_shop.app.set_default()
    return any_shop


@pytest.fixture
def fetch(traced_shop):
    @traced_shop.app.task(name="shop.fetch", max_attempts=3, retryable=(OSError,))
    def fetch():
        raise OSError("no route")

    return fetch


def test_every_attempt_is_in_the_trace_of_the_submission(traced_shop, fetch, spans):
    with spans.tracer.start_as_current_span("request") as request:
        fetch.delay()

    traced_shop.work()

    assert len(spans.named("run/shop.fetch")) == 3
    assert len(spans.named("apply_async/shop.fetch")) == 3
    assert spans.traces() == {request.context.trace_id}


def test_each_attempt_hangs_below_the_message_that_brought_it(traced_shop, fetch, spans):
    with spans.tracer.start_as_current_span("request"):
        fetch.delay()
    traced_shop.work()

    sent = {span.context.span_id for span in spans.named("apply_async")}
    assert {span.parent.span_id for span in spans.named("run")} == sent


def test_a_message_that_was_lost_is_sent_again_in_its_trace(traced_shop, fetch, spans):
    with spans.tracer.start_as_current_span("request") as request:
        fetch.delay()
    traced_shop.messages()  # the broker loses it
    traced_shop.clock.advance(60)
    dispatcher = Dispatcher(traced_shop.guard)
    while not dispatcher.look_for_lost([]):
        pass

    traced_shop.deliver(traced_shop.message())

    assert spans.traces("run/shop.fetch") == {request.context.trace_id}


def test_a_countdown_stays_in_its_trace(traced_shop, fetch, spans):
    with spans.tracer.start_as_current_span("request") as request:
        fetch.apply_async(countdown=60)

    traced_shop.work()

    assert spans.traces() == {request.context.trace_id}


def test_an_ending_told_by_the_dispatcher_is_in_the_trace(traced_shop, fetch, spans):
    with spans.tracer.start_as_current_span("request") as request:
        run = fetch.delay()
    traced_shop.messages()
    cancel(run.id, app=traced_shop.app)

    traced_shop.work()

    assert spans.traces() == {request.context.trace_id}


def test_a_child_run_is_in_the_trace_of_its_parent(traced_shop, fetch, spans):
    @traced_shop.app.task(name="shop.order")
    def order():
        fetch.delay()

    with spans.tracer.start_as_current_span("request") as request:
        order.delay()
    traced_shop.work()

    assert len(spans.named("run/")) == 4
    assert spans.traces() == {request.context.trace_id}


def test_two_runs_without_a_request_have_a_trace_each(traced_shop, fetch, spans):
    for _ in range(2):
        fetch.apply_async(max_attempts=2)

    traced_shop.work()

    assert len(spans.named("run/")) == 4
    assert len(spans.named("submit/shop.fetch")) == 2
    assert len(spans.traces()) == 2


def test_a_broker_that_is_away_leaves_no_span_open(traced_shop, fetch, spans, monkeypatch):
    with spans.tracer.start_as_current_span("request"):
        fetch.apply_async(countdown=60)
    traced_shop.clock.advance(61)

    def away(*_, **__):
        raise ConnectionError("the broker is away")

    with monkeypatch.context() as patched:
        patched.setattr("kombu.messaging.Producer.publish", away)
        traced_shop.dispatch()

    assert not trace.get_current_span().get_span_context().is_valid


def test_the_trace_is_sent_where_nothing_instruments_the_sender(traced_shop, fetch, spans):
    with spans.tracer.start_as_current_span("request") as request:
        fetch.apply_async(countdown=60)
    CeleryInstrumentor().uninstrument()
    traced_shop.clock.advance(61)

    traced_shop.dispatch()

    assert f"{request.context.trace_id:032x}" in traced_shop.message().headers["traceparent"]
    CeleryInstrumentor().instrument()


def test_without_a_trace_nothing_is_stored(shop):
    @shop.app.task
    def send():
        pass

    Context().run(send.delay)  # a span that the instrumentation left open here comes back when it is collected

    ((options,),) = shop.sql("SELECT options FROM task_run")
    assert "guard_trace" not in options
