"""Connections stay at hand between statements, and nobody waits for one that is idle."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_guard.store.connections import Connections
from tests.infra.polling import eventually
from tests.store.races import FORKS, in_a_fork

#: What the pool opens at most, by default.
ALL = 10


@pytest.fixture
def connections(postgres_url: str) -> Iterator[Connections]:
    """The connections of this process to a PostgreSQL."""
    connections = Connections(postgres_url, {})
    yield connections
    connections.close()


def checked_out(connections):
    return connections.engine.pool.checkedout()


def test_the_next_statement_finds_the_connection_of_the_last_one(connections):
    first = connections.take()
    connections.give_back(first)

    assert connections.take() is first


def test_two_stay_open_and_one_of_them_at_hand(connections):
    for connection in [connections.take() for _ in range(5)]:
        connections.give_back(connection)

    assert checked_out(connections) == 1
    assert connections.engine.pool.checkedin() == 1


def test_the_pool_looks_at_them_again_now_and_then(connections, monkeypatch):
    first = connections.take()
    connections.give_back(first)

    monkeypatch.setattr(connections, "_look_again_at", 0.0)

    second = connections.take()

    assert second is not first
    assert checked_out(connections) == 1
    connections.give_back(second)


@pytest.mark.parametrize("options", [{"pool_pre_ping": True}, {"max_overflow": 3}, {"pool_recycle": 60}])
def test_a_pool_that_was_configured_sees_every_statement(postgres_url, options):
    connections = Connections(postgres_url, options)
    connections.give_back(connections.take())

    assert checked_out(connections) == 0
    connections.close()


def test_whoever_waits_for_the_pool_gets_what_is_given_back(connections):
    taken = [connections.take() for _ in range(ALL)]
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(connections.take)
        eventually(lambda: connections._waiting)

        connections.give_back(taken.pop())

        taken.append(waiting.result(timeout=5))  # the pool itself would give up after ten seconds
    for connection in taken:
        connections.give_back(connection)


def test_rare_work_does_not_wait_for_what_is_at_hand(connections):
    taken = [connections.take() for _ in range(ALL)]
    connections.give_back(taken.pop())

    with connections.for_rare_work() as connection:
        assert connection.exec_driver_sql("SELECT 1").scalar() == 1

    for connection in taken:
        connections.give_back(connection)


def test_a_neighbour_of_one_that_broke_is_not_kept(connections):
    broken, neighbour = connections.take(), connections.take()
    connections.lose(broken)

    connections.give_back(neighbour)

    fresh = connections.take()
    assert fresh is not neighbour
    connections.give_back(fresh)


def test_what_is_given_back_after_the_end_is_closed(connections):
    late = connections.take()
    connections.close()

    connections.give_back(late)

    assert connections._found_at_hand() is None


@FORKS
def test_a_fork_leaves_what_is_at_hand_to_its_parent(connections):
    mine = connections.take()
    connections.give_back(mine)

    theirs = in_a_fork(lambda: _backend(connections))

    assert theirs != _backend(connections) == mine.dbapi_connection.info.backend_pid


def _backend(connections):
    connection = connections.take()
    try:
        return connection.dbapi_connection.info.backend_pid
    finally:
        connections.give_back(connection)


def test_many_threads_share_few_connections(connections):
    def work(number):
        connection = connections.take()
        try:
            cursor = connection.cursor()
            cursor.execute("SELECT %s", (number,))
            return cursor.fetchone()[0]
        finally:
            connections.give_back(connection)

    with ThreadPoolExecutor(4 * ALL) as threads:
        assert list(threads.map(work, range(2_000))) == list(range(2_000))
    assert checked_out(connections) <= 1
