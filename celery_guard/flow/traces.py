"""One OpenTelemetry trace per run: the row keeps where it was submitted from, for messages that others send.

OpenTelemetry's Celery instrumentation puts the sender's context into each message. A retry, a republished message and
an ending are sent by a worker's guard thread, which has none. Nothing here imports OpenTelemetry: where nobody has,
there is no context.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

__all__ = ["TRACE", "continued", "current_trace"]

#: The stored option with the submitter's context, as the headers that its propagators write.
TRACE = "guard_trace"


def current_trace(task_name: str) -> dict[str, str]:
    """Return the headers that continue the current trace, or one that begins with a span ``submit/<task>``.

    They are empty where OpenTelemetry is not used.
    """
    carrier: dict[str, str] = {}
    propagate, trace = _loaded("propagate"), _loaded("trace")
    if propagate is None or trace is None:
        return carrier
    if trace.get_current_span().get_span_context().is_valid:
        propagate.inject(carrier)
    else:
        span = trace.get_tracer("celery_guard").start_span(f"submit/{task_name}")
        propagate.inject(carrier, trace.set_span_in_context(span))
        span.end()
    return carrier


@contextmanager
def continued(trace: Mapping[str, str]) -> Iterator[None]:
    """Work inside the trace that headers name."""
    propagate, context = _loaded("propagate"), _loaded("context")
    if not trace or propagate is None or context is None:
        yield
        return
    token = context.attach(propagate.extract(trace))
    try:
        yield
    finally:
        context.detach(token)  # also leaves a span that an instrumentation opened, and did not close


def _loaded(name: str) -> Any:
    return sys.modules.get(f"opentelemetry.{name}")
