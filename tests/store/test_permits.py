"""Concurrency limits: as many runs of a group run as may; the others wait without a message, and the oldest is next."""

from __future__ import annotations

import threading
from collections import deque
from functools import partial

import pytest

from celery_guard.core.decide import Wait
from celery_guard.core.states import State
from celery_guard.store.database import Database
from celery_guard.store.migrations import migrate
from celery_guard.store.permits import KEPT_FOR, MustWait, PermitStore
from celery_guard.store.runs import RunStore
from tests.factories import a_new_run
from tests.store.lives import CANCELLED, NAMESPACE, SUCCESS, TOO_LATE, after, due, find, retry_at, row, submitted
from tests.store.races import at_once


@pytest.fixture
def permits(database):
    return PermitStore(database, NAMESPACE)


def ask(permits, run_id="run-1", *, limit=1, token=None, type_="shop.send"):
    """Claim a queued run of a task with a limit."""
    found = permits.claim(
        run_id, token or f"token of {run_id}", limit=limit, worker_id="worker-1", fingerprint=None, type_=type_
    )
    return found and found.claim


def waits(permits, run_id, *, limit=1):
    """Claim a run in vain."""
    with pytest.raises(MustWait, match=run_id):
        ask(permits, run_id, limit=limit)


def one_runs_one_waits(runs, permits, clock):
    """The first run is running, and the second waits for its permit."""
    submitted(runs, "run-1")
    clock.forward(1)
    submitted(runs, "run-2")
    held = ask(permits, "run-1")
    waits(permits, "run-2")
    return held


def granted(permits, run_id="run-1", *, limit=1, lease=20.0):
    return [found.id for found in permits.grant(run_id, limit=limit, lease=lease)]


def test_as_many_run_as_may(runs, permits):
    for number in range(4):
        submitted(runs, f"run-{number}")

    ask(permits, "run-0", limit=2)
    ask(permits, "run-1", limit=2)
    waits(permits, "run-2", limit=2)
    waits(permits, "run-3", limit=2)

    states = [find(runs, f"run-{number}").state for number in range(4)]
    assert states == [State.RUNNING, State.RUNNING, State.QUEUED, State.QUEUED]


def test_a_run_that_waits_has_begun_no_attempt_and_is_nobodys_to_publish(runs, permits, clock):
    one_runs_one_waits(runs, permits, clock)
    clock.forward(600)

    waiting = find(runs, "run-2")

    assert waiting.waits_for_permit
    assert (waiting.attempt, waiting.started_at, waiting.concurrency_group) == (0, None, "shop.send")
    assert due(runs) == []
    assert runs.waiting(reserved=(), on_its_way=0.0) == {}


def test_a_copy_of_its_message_does_not_start_a_run_that_waits(runs, permits, clock):
    held = one_runs_one_waits(runs, permits, clock)
    runs.settle(held, SUCCESS)

    assert ask(permits, "run-2") is None


def test_a_claim_recognises_itself(runs, permits):
    submitted(runs)

    first, again = ask(permits), ask(permits)

    assert first == again
    assert find(runs).attempt == 1


@pytest.mark.parametrize(
    "leave",
    [
        pytest.param(lambda runs, held: runs.settle(held, SUCCESS), id="success"),
        pytest.param(lambda runs, held: runs.settle(held, retry_at(30)), id="retry"),
        pytest.param(lambda runs, held: runs.settle(held, Wait(after(30))), id="snooze"),
        pytest.param(lambda runs, held: runs.settle(held, CANCELLED, successor="else"), id="cancel"),
        pytest.param(lambda runs, held: runs.settle(held, TOO_LATE, successor="else"), id="deadline"),
        pytest.param(lambda runs, held: runs.vacate(held), id="replacement"),
    ],
)
def test_whatever_ends_an_attempt_gives_its_permit_back(runs, permits, clock, leave):
    held = one_runs_one_waits(runs, permits, clock)

    assert leave(runs, held)

    assert granted(permits) == ["run-2"]
    assert ask(permits, "run-2") is not None


def test_nothing_is_granted_while_there_is_no_room(runs, permits, clock):
    one_runs_one_waits(runs, permits, clock)

    assert granted(permits) == []


def test_the_oldest_is_next_whenever_it_came_to_wait(runs, permits, clock):
    for number in (3, 1, 2, 0):
        submitted(runs, f"run-{number}")
        clock.forward(1)
    held = ask(permits, "run-3")
    for number in (0, 2, 1):
        waits(permits, f"run-{number}")

    order = []
    while held is not None:
        runs.settle(held, SUCCESS)
        next_ = granted(permits)
        order += next_
        held = ask(permits, next_[0]) if next_ else None

    assert order == ["run-1", "run-2", "run-0"]


def test_what_is_granted_is_published_by_whoever_took_it(runs, permits, clock):
    held = one_runs_one_waits(runs, permits, clock)
    runs.settle(held, SUCCESS)

    (found,) = permits.grant("run-1", limit=1, lease=20.0)

    assert (found.id, found.ticket, found.attempt) == ("run-2", 1, 0)
    assert due(runs) == []


def test_what_is_granted_without_a_lease_is_due(runs, permits, clock):
    held = one_runs_one_waits(runs, permits, clock)
    runs.settle(held, SUCCESS)

    assert granted(permits, lease=None) == ["run-2"]

    assert due(runs) == ["run-2"]
    assert ask(permits, "run-2") is not None


def test_a_permit_is_kept_for_a_run_whose_message_is_on_its_way(runs, permits, clock):
    held = one_runs_one_waits(runs, permits, clock)
    runs.settle(held, SUCCESS)
    submitted(runs, "run-3")

    granted(permits)

    waits(permits, "run-3")
    assert ask(permits, "run-2") is not None


def test_a_message_that_takes_too_long_asks_again(runs, permits, clock):
    held = one_runs_one_waits(runs, permits, clock)
    runs.settle(held, SUCCESS)
    granted(permits)
    submitted(runs, "run-3")
    clock.forward(KEPT_FOR)

    third = ask(permits, "run-3")

    waits(permits, "run-2")
    runs.settle(third, SUCCESS)
    assert granted(permits) == ["run-2"]


def test_a_retry_asks_again(runs, permits, clock):
    held = one_runs_one_waits(runs, permits, clock)
    runs.settle(held, retry_at(30))
    granted(permits)
    ask(permits, "run-2")
    clock.forward(30)

    assert due(runs) == ["run-1"]

    waits(permits, "run-1")
    assert find(runs, "run-1").attempt == 1


def test_groups_have_room_of_their_own(runs, permits):
    submitted(runs, "run-1", concurrency_group="shop.send:a")
    submitted(runs, "run-2", concurrency_group="shop.send:b")
    submitted(runs, "run-3", concurrency_group="shop.send:a")

    ask(permits, "run-1")
    ask(permits, "run-2")

    waits(permits, "run-3")


def test_a_namespace_has_room_of_its_own(runs, permits):
    submitted(runs, "run-1")
    submitted(RunStore(runs.database, "office"), "run-2", namespace="office")

    ask(permits, "run-1")

    assert ask(PermitStore(runs.database, "office"), "run-2") is not None


def test_a_claim_without_a_limit_takes_no_room(runs, permits):
    submitted(runs, "run-1")
    submitted(runs, "run-2")
    runs.claim("run-1", "token", worker_id="worker-1", fingerprint=None)

    assert ask(permits, "run-2") is not None


def test_a_claim_as_another_task_leaves_the_run_alone(runs, permits):
    submitted(runs)

    assert ask(permits, type_="shop.other") is None
    assert row(runs)["permit"] is None


def test_a_lowered_limit_lets_those_finish_who_run(runs, permits):
    for number in range(3):
        submitted(runs, f"run-{number}")
    held = [ask(permits, f"run-{number}", limit=2) for number in range(2)]

    waits(permits, "run-2", limit=1)
    runs.settle(held[0], SUCCESS)
    first = granted(permits, "run-0")
    runs.settle(held[1], SUCCESS)

    assert (first, granted(permits, "run-0")) == ([], ["run-2"])


def test_a_raised_limit_lets_several_in_at_once(runs, permits, clock):
    for number in range(5):
        submitted(runs, f"run-{number}")
        clock.forward(1)
    ask(permits, "run-0")
    for number in range(1, 5):
        waits(permits, f"run-{number}")

    assert sorted(granted(permits, "run-0", limit=3)) == ["run-1", "run-2"]


def test_a_run_that_waits_ends_at_its_deadline_and_is_granted_nothing(runs, permits, clock):
    submitted(runs, "run-1")
    submitted(runs, "run-2", deadline_after=60.0)
    held = ask(permits, "run-1")
    waits(permits, "run-2")
    clock.forward(60)
    runs.settle(held, SUCCESS)

    assert granted(permits) == []
    assert [ended.claim.run_id for ended in runs.finish_expired(TOO_LATE, limit=10)] == ["run-2"]


def test_a_run_that_waits_can_be_cancelled(runs, permits, clock):
    one_runs_one_waits(runs, permits, clock)

    assert runs.finish_waiting("run-2", CANCELLED, token="anybody")

    assert not find(runs, "run-2").waits_for_permit
    assert permits.waiting_groups() == []


def test_a_task_that_takes_the_place_of_another_brings_its_own_group(runs, permits):
    submitted(runs, "run-1")
    runs.vacate(ask(permits))

    runs.move_in(a_new_run("run-1", type="shop.other"))

    moved = find(runs)
    assert (moved.concurrency_group, row(runs)["permit"]) == (None, None)


def test_groups_in_which_runs_wait_are_told_with_one_run_and_their_holders(runs, permits, clock):
    for group, count in (("shop.send:a", 4), ("shop.send:b", 3), ("shop.send:c", 1)):
        for number in range(count):
            submitted(runs, f"{group}-{number}", concurrency_group=group)
            clock.forward(1)
            if number < 2:
                ask(permits, f"{group}-{number}", limit=2)
            else:
                waits(permits, f"{group}-{number}", limit=2)

    found = [(group.run_id, group.type, group.held) for group in permits.waiting_groups()]

    assert found == [("shop.send:a-2", "shop.send", 2), ("shop.send:b-2", "shop.send", 2)]


def test_no_group_waits_where_nobody_does(permits):
    assert permits.waiting_groups() == []


def test_a_claim_whose_answer_is_lost_still_waits(wired_runs, wired_database, wire, clock):
    permits = PermitStore(wired_database, NAMESPACE)
    submitted(wired_runs, "run-1")
    submitted(wired_runs, "run-2")
    ask(permits, "run-1")

    wire.lose_the_answer_to("UPDATE task_run")

    assert ask(permits, "run-2") is None
    assert find(wired_runs, "run-2").waits_for_permit


def test_a_claim_and_a_grant_take_one_round_trip_each(wired_runs, wired_database, wire):
    permits = PermitStore(wired_database, NAMESPACE)
    submitted(wired_runs, "run-1")
    wire.queries.clear()

    held = ask(permits)
    wired_runs.settle(held, SUCCESS)
    permits.grant("run-1", limit=1)

    assert len(wire.queries) == 3


# Several at the same moment


def asked_at_once(permits, count, limit):
    """Claim so many runs at the same moment; return how many were told to wait."""

    def one(number):
        try:
            return ask(permits, f"run-{number}", limit=limit) is None
        except MustWait:
            return True

    return sum(at_once(*(partial(one, number) for number in range(count))))


def test_fifty_claims_at_once_take_no_more_than_there_are(store_url):
    database = Database(store_url, {"pool_size": 50, "pool_timeout": 60})
    runs, permits = RunStore(database, NAMESPACE), PermitStore(database, NAMESPACE)
    for number in range(50):
        submitted(runs, f"run-{number}")

    waiting = asked_at_once(permits, 50, limit=5)

    running = len(runs.running_on("worker-1"))
    database.close()
    assert (waiting, running) == (45, 5)


def test_a_database_with_another_isolation_by_default_keeps_the_limit(empty_postgres_url, postgres_server):
    database = Database(empty_postgres_url, {"pool_size": 20})
    migrate(database)
    with database.connection() as connection:
        name = connection.exec_driver_sql("SELECT current_database()").scalar()
        connection.exec_driver_sql(f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = 'repeatable read'")
    database.close()
    runs, permits = RunStore(database, NAMESPACE), PermitStore(database, NAMESPACE)
    for number in range(20):
        submitted(runs, f"run-{number}")

    waiting = asked_at_once(permits, 20, limit=3)

    database.close()
    assert waiting == 17


def test_claims_ends_and_grants_at_once_leave_nobody_behind(store_url):
    """What workers do, in threads: whoever ends an attempt passes its permit on, and nobody looks after them."""
    database = Database(store_url, {"pool_size": 8, "pool_timeout": 60})
    runs, permits = RunStore(database, NAMESPACE), PermitStore(database, NAMESPACE)
    messages = deque(submitted(runs, f"run-{number}", concurrency_group=f"g{number % 2}") for number in range(60))
    running, most, lock = {"g0": 0, "g1": 0}, [], threading.Lock()

    def count(run_id, change):
        with lock:
            group = f"g{int(run_id[4:]) % 2}"
            running[group] += change
            most.append(running[group])

    def work():
        while messages:
            try:
                run_id = messages.popleft()
                held = ask(permits, run_id, limit=2)
            except (IndexError, MustWait):
                continue
            count(run_id, +1)
            count(run_id, -1)
            runs.settle(held, SUCCESS)
            messages.extend(granted(permits, run_id, limit=2))

    at_once(*[work] * 8)

    states = {find(runs, f"run-{number}").state for number in range(60)}
    database.close()
    assert states == {State.SUCCEEDED}
    assert max(most) <= 2
