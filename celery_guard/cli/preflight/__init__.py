"""What to look at before an app goes live: a list of small questions about the app and its guard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from celery_guard.cli.complaints import complaint
from celery_guard.cli.preflight import broker, store, tasks, watch
from celery_guard.cli.preflight.finding import Check, Finding, Level, Result

__all__ = ["CHECKS", "preflight"]

#: Every question, in the order of the answers.
CHECKS: tuple[Check, ...] = (
    Check("configuration", "Are the guard_* settings accepted?", store.configuration),
    Check("state in the database", "Can the database of runs be reached?", store.reachable, gate=True),
    Check("schema", "Do its tables fit this version?", store.schema, gate=True),
    Check("atomic claim", "Can one statement claim a run, on every machine?", store.atomic_claim),
    Check("clock offset", "Do this machine and the database agree about the time?", store.clock_offset),
    Check("guarded tasks", "Which tasks are guarded?", tasks.guarded),
    Check("deadlines", "Does every task name a deadline?", tasks.deadlines),
    Check("deadline checked", "Is the deadline checked before running, and when a retry is planned?", tasks.checked),
    Check("max attempts", "Are the attempts limited?", tasks.max_attempts),
    Check("classification", "Are errors classified?", tasks.classification),
    Check("unknown errors", "How many runs ended by an error that no rule knows?", store.unknown_share),
    Check("broad rules", "Does a rule name all errors at once?", tasks.broad_rules),
    Check("jitter", "Are retries spread?", tasks.jitter),
    Check("retry rate", "Does a limited retry rate leave room before the deadline?", tasks.retry_rate),
    Check("concurrency", "How many runs of a task may be running at once?", tasks.concurrency),
    Check("time limits", "Do time limits lie within the deadline?", tasks.time_limits),
    Check("hung calls", "Can a call that hangs hold its slot for long?", tasks.hung_calls),
    Check("timeouts inside", "Do bodies limit the calls they make?", tasks.timeouts_inside),
    Check("enforced limits", "Does the worker's pool enforce limits?", broker.pool),
    Check("idempotency", "Do critical tasks have a key?", tasks.idempotency),
    Check("message mode", "Can workers read what is sent?", tasks.message_mode),
    Check("broker", "Can the broker be reached?", broker.reachable),
    Check("visibility timeout", "Does Redis wait longer than the longest attempt?", broker.visibility_timeout),
    Check("consumer timeout", "Does RabbitMQ wait longer than the longest attempt?", broker.consumer_timeout),
    Check("publisher confirms", "Does RabbitMQ confirm what is published?", broker.confirms),
    Check("acknowledgement", "Are messages acknowledged late?", broker.acknowledgement),
    Check("prefetch", "Does a worker hoard runs whose time is passing?", broker.prefetch),
    Check("result expiry", "Do results outlive what waits for them?", broker.result_expiry),
    Check("metrics", "Can you see dead and running grow?", watch.metrics),
    Check("metrics read", "Does anybody read them?", store.metrics_read),
    Check("logs", "Do the logs say why?", watch.logs),
    Check("events", "Does Flower see the tasks?", watch.events),
)


def preflight(app: Any, guard: Any) -> Iterator[Result]:
    """Answer every question; once the database can't be asked, those that need it are left out."""
    closed = False
    for check in CHECKS:
        if closed and check.run.__module__ == store.__name__:
            continue
        found = list(_findings(check, app, guard))
        yield from (Result(check.name, check.question, finding) for finding in found)
        if check.name == "configuration" and found[0].level is Level.FAIL:
            return
        closed = closed or (check.gate and any(finding.level is Level.FAIL for finding in found))


def _findings(check: Check, app: Any, guard: Any) -> Iterator[Finding]:
    try:
        yield from check.run(app, guard)
    except Exception as error:  # a check meets whatever the user's code, a driver or a broker raises
        told = complaint(error)
        why = told.message if told else f"it could not be checked: {type(error).__name__}: {error}"
        yield Finding(Level.FAIL, why)
