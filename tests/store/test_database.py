"""Connections: one round trip per statement, across lost connections, lost servers, forks and full pools."""

from __future__ import annotations

import itertools
import multiprocessing
import socket
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial

import psycopg2
import pytest
from sqlalchemy import make_url

from celery_guard.core.decide import Finish
from celery_guard.core.states import Reason, State
from celery_guard.errors import StoreUnavailable
from celery_guard.store import database as database_module
from celery_guard.store.database import Database, RowLocked
from celery_guard.store.migrations import migrate
from celery_guard.store.runs import RunStore
from tests.factories import a_fault, a_new_run
from tests.infra.polling import eventually
from tests.infra.processes import free_port
from tests.store.lives import (
    NAMESPACE,
    SUCCESS,
    TOO_LATE,
    claim,
    claimed,
    due,
    ended,
    find,
    history,
    retry_at,
    submitted,
)
from tests.store.races import FORKS, in_a_fork, in_forks

FAILED = Finish(State.FAILED, Reason.FAILED_NON_RETRYABLE, fault=a_fault())


@pytest.fixture
def postgres_runs(postgres_url: str) -> Iterator[RunStore]:
    """The runs of a PostgreSQL database, with one open connection."""
    database = Database(postgres_url)
    runs = RunStore(database, NAMESPACE)
    runs.clock()
    yield runs
    database.close()


@contextmanager
def administered(url):
    connection = psycopg2.connect(make_url(url).set(drivername="postgresql").render_as_string(hide_password=False))
    connection.autocommit = True
    try:
        with connection.cursor() as cursor:
            yield cursor
    finally:
        connection.close()


def end_all_connections(url):
    with administered(url) as cursor:
        cursor.execute(
            "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return cursor.fetchone()[0]


# one round trip


def test_a_run_costs_three_round_trips_without_a_transaction(wire, wired_runs):
    submitted(wired_runs)
    held = claim(wired_runs)
    wired_runs.settle(held, SUCCESS, result="{}")

    assert [query.split()[0] for query in wire.queries] == ["INSERT", "UPDATE", "UPDATE"]


@pytest.mark.parametrize(
    "verb",
    [
        pytest.param(lambda runs: runs.submit(a_new_run("run-2")), id="submit"),
        pytest.param(lambda runs: runs.submit_finished(a_new_run("run-2"), FAILED), id="submit_finished"),
        pytest.param(lambda runs: runs.settle(runs.held("run-1", "token-1").claim, FAILED), id="held and settle"),
        pytest.param(lambda runs: runs.settle(runs.held("run-1", "token-1").claim, retry_at(9)), id="held and retry"),
        pytest.param(lambda runs: runs.finish_expired(TOO_LATE, limit=9), id="finish_expired"),
        pytest.param(lambda runs: runs.take_due(limit=9, lease=9), id="take_due"),
        pytest.param(lambda runs: runs.take_lost("celery", limit=9, lease=9, reserved=["x"]), id="take_lost"),
        pytest.param(lambda runs: runs.take_ending("run-1", ticket=1, lease=9), id="take_ending"),
        pytest.param(lambda runs: runs.told("run-1"), id="told"),
        pytest.param(lambda runs: runs.find("run-1"), id="find"),
    ],
)
def test_a_verb_is_one_round_trip(request, wire, wired_runs, verb):
    claimed(wired_runs)
    wire.queries.clear()

    verb(wired_runs)

    verbs = 2 if "held" in request.node.callspec.id else 1
    assert len(wire.queries) == verbs
    assert not [query for query in wire.queries if query.split()[0] in ("BEGIN", "COMMIT", "ROLLBACK")]


def test_connections_are_kept_and_nothing_is_asked_to_check_them(wire, wired_runs):
    for _ in range(5):
        wired_runs.find("run-1")

    assert len(wire.queries) == 5


# lost connections


@pytest.mark.parametrize(
    "verb",
    [
        pytest.param(lambda runs: runs.submit(a_new_run("run-2")) is not None, id="submit"),
        pytest.param(
            lambda runs: runs.claim("run-1", "token-1", worker_id="w", fingerprint=None) is not None, id="claim"
        ),
        pytest.param(lambda runs: runs.find("run-1") is not None, id="find"),
        pytest.param(lambda runs: runs.finish_waiting("run-1", TOO_LATE, token="t"), id="finish_waiting"),
        pytest.param(lambda runs: runs.publish_soon(["run-1"], delay=0.0) == 1, id="publish_soon"),
    ],
)
def test_a_killed_connection_costs_the_caller_nothing(postgres_runs, verb):
    submitted(postgres_runs)

    killed = end_all_connections(postgres_runs.database.url)

    assert killed == 1
    assert verb(postgres_runs)


@pytest.mark.parametrize("settlement", [SUCCESS, FAILED], ids=["success", "failure"])
def test_a_holder_settles_over_a_killed_connection(postgres_runs, settlement):
    held = claimed(postgres_runs)

    end_all_connections(postgres_runs.database.url)

    assert postgres_runs.settle(held, settlement)


def test_every_connection_of_the_pool_may_die_at_once(postgres_runs):
    submitted(postgres_runs)
    connections = postgres_runs.database.connections
    for connection in [connections.take() for _ in range(4)]:
        connections.give_back(connection)

    end_all_connections(postgres_runs.database.url)

    assert [postgres_runs.find("run-1") is not None for _ in range(4)] == [True] * 4


def test_a_connection_killed_in_the_middle_of_a_statement_costs_the_caller_nothing(postgres_runs):
    submitted(postgres_runs)

    with ThreadPoolExecutor() as pool, held_row(postgres_runs.database.url):
        waiting = pool.submit(claim, postgres_runs)
        eventually(partial(waits, postgres_runs.database))
        with administered(postgres_runs.database.url) as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )

    assert waiting.result(30).attempt == 1


# plans that the server keeps


def test_a_connection_plans_each_statement_of_a_run_once(wire, wired_runs):
    for number in range(3):
        wired_runs.submit(a_new_run(f"run-{number}"))

    assert len(wire.planned) == 1


def test_a_plan_is_made_anew_after_some_executions(wire, wired_runs, monkeypatch):
    monkeypatch.setattr(database_module, "_EXECUTIONS", 3)
    for number in range(7):
        wired_runs.submit(a_new_run(f"run-{number}"))

    assert len(wire.planned) == 3
    assert len(set(wire.planned)) == 1


def test_a_plan_that_could_not_be_made_anew_is_made_the_next_time(postgres_runs, monkeypatch):
    monkeypatch.setattr(database_module, "_EXECUTIONS", 1)
    impatient = {"connect_args": {"options": "-c lock_timeout=50ms"}}
    with closing(Database(postgres_runs.database.url, impatient)) as database:
        runs = RunStore(database, NAMESPACE)
        submitted(runs)
        with administered(database.url) as cursor:
            cursor.execute("BEGIN; LOCK task_run")
            with pytest.raises(StoreUnavailable):
                runs.submit(a_new_run("run-2"))
            cursor.execute("ROLLBACK")

        assert all(runs.submit(a_new_run(f"run-{number}")) for number in range(3, 6))
        assert database._keeps_plans


def test_where_plans_do_not_stay_statements_are_sent_whole(wire, wired_runs):
    submitted(wired_runs)
    connection = wired_runs.database.connections.take()
    connection.cursor().execute("DEALLOCATE ALL")
    wired_runs.database.connections.give_back(connection)

    wired_runs.submit(a_new_run("run-2"))
    held = claim(wired_runs, "run-2")

    assert held.attempt == 1
    assert len(wire.planned) == 1, "nothing is planned any more"


def test_a_plan_found_on_a_shared_connection_is_taken(postgres_runs):
    submitted(postgres_runs)
    connection = postgres_runs.database.connections.take()
    connection.info.clear()
    postgres_runs.database.connections.give_back(connection)

    assert postgres_runs.submit(a_new_run("run-2")) is not None


def test_plans_are_made_anew_when_a_migration_has_changed_the_table(postgres_runs):
    claimed(postgres_runs)
    submitted(postgres_runs, "run-2")

    with administered(postgres_runs.database.url) as cursor:
        cursor.execute("ALTER TABLE task_run ALTER snoozes TYPE BIGINT")
        try:
            held = claim(postgres_runs, "run-2")
        finally:
            cursor.execute("ALTER TABLE task_run ALTER snoozes TYPE INTEGER")

    assert held.attempt == 1


# lost replies: the server did it, and the caller never heard


def test_a_claim_whose_reply_was_lost_recognises_itself(wire, wired_runs):
    submitted(wired_runs)
    wire.lose_the_answer_to("^UPDATE task_run")

    held = claim(wired_runs)

    assert held.attempt == 1
    assert find(wired_runs).attempt == 1


@pytest.mark.parametrize("settlement", [SUCCESS, FAILED, retry_at(30)], ids=["success", "failure", "retry"])
def test_a_settle_whose_reply_was_lost_recognises_itself(wire, wired_runs, settlement):
    held = claimed(wired_runs)
    wire.lose_the_answer_to("UPDATE task_run")

    won = wired_runs.settle(held, settlement)

    assert won
    assert history(wired_runs) == ([] if settlement is SUCCESS else [1])


def test_a_settle_by_a_successor_whose_reply_was_lost_recognises_itself(wire, wired_runs):
    held = claimed(wired_runs)
    wire.lose_the_answer_to("UPDATE task_run")

    assert wired_runs.settle(held, FAILED, successor="rescuer")


def test_a_settle_that_lost_does_not_take_the_winners_ending_for_its_own(wire, wired_runs):
    held = claimed(wired_runs)
    wired_runs.settle(held, FAILED, successor="rescuer")
    wire.lose_the_answer_to("UPDATE task_run")

    assert not wired_runs.settle(held, FAILED)
    assert history(wired_runs) == [1]


def test_successes_written_together_whose_reply_was_lost_recognise_themselves(wire, wired_runs):
    claimed(wired_runs, "run-1", token="token-1")
    claimed(wired_runs, "run-2", token="another")
    wire.lose_the_answer_to("UPDATE task_run")

    assert wired_runs.succeed_together({"token-1": ("run-1", None), "token-2": ("run-2", None)}) == {"token-1"}


def test_a_submission_whose_reply_was_lost_finds_itself(wire, wired_runs):
    wire.lose_the_answer_to("^INSERT INTO task_run")

    answer = wired_runs.submit(a_new_run("run-1"))

    assert answer is None
    assert wired_runs.taken_by(a_new_run("run-1")).id == "run-1"


def test_rows_taken_in_a_lost_reply_are_not_forgotten(wire, wired_runs, clock):
    submitted(wired_runs, delay_for=1.0)
    clock.forward(1)
    wire.lose_the_answer_to("^WITH found")

    taken = due(wired_runs, lease=20)

    clock.forward(20)
    assert taken == []
    assert wired_runs.waiting(reserved=[], on_its_way=0.0) == {"celery": (1, 1)}


def test_an_ending_taken_in_a_lost_reply_is_told_by_the_next_message(wire, wired_runs, clock):
    ended(wired_runs, owed=True)
    (found,) = wired_runs.take_due(limit=1, lease=20)
    wire.lose_the_answer_to("^UPDATE task_run")

    ending = wired_runs.take_ending("run-1", ticket=found.ticket, lease=60.0)

    clock.forward(60)
    assert ending is None
    assert due(wired_runs) == ["run-1"]


def test_a_claim_cut_off_for_longer_is_recognised_when_it_is_repeated(wire, wired_runs):
    submitted(wired_runs)
    wire.lose_the_answer_to("^UPDATE task_run", stay_down=True)
    with pytest.raises(StoreUnavailable):
        claim(wired_runs)
    wire.repair()

    assert claim(wired_runs).attempt == 1


# servers that are away


def test_a_server_that_is_not_there_is_unavailable():
    database = Database(f"postgresql+psycopg2://postgres@127.0.0.1:{free_port()}/postgres")

    with pytest.raises(StoreUnavailable, match=r"can't be reached: .*refused"):
        RunStore(database, NAMESPACE).submit(a_new_run("run-1"))


def test_a_server_that_never_answers_is_unavailable():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        database = Database(
            f"postgresql+psycopg2://postgres@127.0.0.1:{port}/postgres", {"connect_args": {"connect_timeout": 2}}
        )

        with pytest.raises(StoreUnavailable, match="timeout"):
            RunStore(database, NAMESPACE).submit(a_new_run("run-1"))


def test_a_database_that_does_not_exist_is_unavailable(postgres_server):
    url = make_url(postgres_server.url).set(database="guard_nowhere").render_as_string(hide_password=False)

    with pytest.raises(StoreUnavailable, match="guard_nowhere"):
        RunStore(Database(url), NAMESPACE).clock()


def test_a_file_that_cannot_be_opened_is_unavailable(tmp_path):
    database = Database(f"sqlite:///{tmp_path / 'no' / 'such' / 'folder.db'}")

    with pytest.raises(StoreUnavailable, match="can't be reached: unable to open"):
        RunStore(database, NAMESPACE).clock()


def test_a_killed_server_is_unavailable_and_then_works_again(private_postgres):
    database = Database(private_postgres.url)
    migrate(database)
    runs = RunStore(database, NAMESPACE)
    submitted(runs)

    private_postgres.kill()
    with pytest.raises(StoreUnavailable):
        runs.find("run-1")
    private_postgres.start()

    assert claim(runs).attempt == 1
    database.close()


# full pools


@pytest.fixture
def small(store_url: str) -> Iterator[Database]:
    """A database with one connection, which callers wait for but a moment."""
    database = Database(store_url, {"pool_size": 1, "max_overflow": 0, "pool_timeout": 0.05})
    yield database
    database.close()


@contextmanager
def all_taken(database):
    connection = database.engine.raw_connection()
    try:
        yield
    finally:
        connection.close()


def test_a_pool_that_stays_full_is_unavailable(small):
    runs = RunStore(small, NAMESPACE)
    runs.clock()

    with all_taken(small), pytest.raises(StoreUnavailable, match=r"no connection .* became free"):
        runs.clock()


def test_a_row_that_another_transaction_holds_is_waited_for_a_moment(postgres_url):
    plain_url = postgres_url.replace("+psycopg2", "")
    with closing(Database(postgres_url)) as database, closing(psycopg2.connect(plain_url)) as other:
        runs = RunStore(database, NAMESPACE)
        held = claimed(runs, "run-1")
        submitted(runs, "run-2")
        other.cursor().execute("SELECT id FROM task_run FOR UPDATE")

        with pytest.raises(RowLocked, match="another transaction holds the run's row"):
            runs.settle(held, retry_at(30))
        with pytest.raises(RowLocked):
            runs.finish_waiting("run-2", TOO_LATE, token="token-2")
        other.rollback()

        assert runs.settle(held, retry_at(30))
        with database.connection() as connection:
            assert connection.exec_driver_sql("SHOW lock_timeout").scalar() == "0"  # nothing is left behind


def test_a_pool_that_is_full_before_the_schema_was_checked_is_unavailable(small):
    with all_taken(small), pytest.raises(StoreUnavailable, match=r"no connection .* became free"):
        RunStore(small, NAMESPACE).clock()


def test_a_pool_serves_again_once_a_connection_is_free(small):
    runs = RunStore(small, NAMESPACE)
    with all_taken(small), pytest.raises(StoreUnavailable):
        runs.clock()

    submitted(runs)

    assert runs.find("run-1") is not None


@pytest.mark.parametrize("wrong", ["lose", "refuse"])
def test_no_connection_leaks_when_statements_fail(small, wrong):
    runs = RunStore(small, NAMESPACE)
    held = claimed(runs)

    for _ in range(3):
        with pytest.raises(small.engine.dialect.loaded_dbapi.Error):  # a reason that is not of its state
            runs.settle(held, Finish(State.DEAD, Reason.SUCCEEDED))

    assert runs.settle(held, SUCCESS)


def test_a_statement_interrupted_by_an_exception_gives_its_connection_up(small, monkeypatch):
    runs = RunStore(small, NAMESPACE)
    submitted(runs)

    def interrupted():
        raise KeyboardInterrupt

    small.clock = interrupted
    with pytest.raises(KeyboardInterrupt):
        claim(runs)
    small.clock = None

    assert runs.find("run-1") is not None


# forks and spawned processes


def test_a_fork_opens_connections_of_its_own(runs):
    submitted(runs)

    attempt = in_a_fork(lambda: claim(runs).attempt)

    assert attempt == 1
    assert find(runs).state is State.RUNNING


def test_the_connections_of_the_parent_survive_its_forks(postgres_runs):
    def backend():
        with postgres_runs.database.connection() as connection:
            return connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()

    mine = backend()

    theirs = in_forks(2, backend)

    assert backend() == mine
    assert len({mine, *theirs}) == 3


def test_many_forks_use_an_engine_of_the_parent_at_once(runs):
    for number in range(4):
        submitted(runs, f"run-{number}")

    def work():
        held = [runs.claim(f"run-{number}", "token-1", worker_id="w", fingerprint=None) for number in range(4)]
        return len(held)

    in_forks(3, work)

    assert [find(runs, f"run-{number}").attempt for number in range(4)] == [1] * 4


@contextmanager
def held_row(url):
    """Let a stranger hold what a claim of run-1 needs."""
    if url.startswith("sqlite"):
        stranger = sqlite3.connect(make_url(url).database, isolation_level=None, check_same_thread=False)
        stranger.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            stranger.execute("ROLLBACK")
            stranger.close()
    else:
        with administered(url) as cursor:
            cursor.execute("BEGIN; SELECT * FROM task_run WHERE id = 'run-1' FOR UPDATE")
            yield
            cursor.execute("ROLLBACK")


def waits(database):
    """Say whether a statement hangs in the database: on SQLite, whether a connection is in use."""
    if database.is_sqlite:
        return database.engine.pool.checkedout() == 1
    with administered(database.url) as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return cursor.fetchone()[0] == 1


@FORKS
def test_a_fork_works_while_a_thread_of_the_parent_is_inside_a_statement(postgres_runs):
    submitted(postgres_runs)
    with ThreadPoolExecutor() as pool, held_row(postgres_runs.database.url):
        waiting = pool.submit(claim, postgres_runs)
        eventually(partial(waits, postgres_runs.database))

        state = in_a_fork(lambda: find(postgres_runs).state)

    assert state is State.QUEUED
    assert waiting.result(30).attempt == 1


@FORKS
def test_forks_write_while_a_thread_of_the_parent_keeps_writing(runs):
    enough = threading.Event()

    def keep_writing():
        return [submitted(runs, f"run-{number}") for number in itertools.takewhile(is_needed, itertools.count())]

    def is_needed(number):
        return not enough.is_set()

    with ThreadPoolExecutor() as pool:
        writing = pool.submit(keep_writing)
        try:
            forks = [in_a_fork(partial(submitted, runs, f"fork-{number}")) for number in range(8)]
        finally:
            enough.set()

    missing = [run_id for run_id in (*forks, *writing.result(30)) if runs.find(run_id) is None]
    assert missing == []


def test_a_fork_works_while_a_thread_of_the_parent_opens_the_first_connection(store_url):
    database = Database(store_url)

    with database.connections._lock:
        written = in_a_fork(lambda: RunStore(database, NAMESPACE).submit(a_new_run("run-1")) is not None)

    assert written


def submit_in(url, run_id):
    database = Database(url)
    written = RunStore(database, NAMESPACE).submit(a_new_run(run_id)) is not None
    database.close()
    return written


def test_a_spawned_process_shares_the_runs(runs):
    runs.clock()

    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        written = pool.submit(submit_in, runs.database.url, "run-1").result(60)

    assert written
    assert find(runs).state is State.QUEUED


# closing


def test_a_closed_database_opens_again(runs):
    submitted(runs)

    runs.database.close()

    assert runs.find("run-1") is not None


def test_closing_twice_is_closing_once(database):
    database.close()
    database.close()


# busy SQLite


@FORKS
def test_a_new_file_opened_by_several_processes_at_once_serves_them_all(tmp_path):
    for number in range(60):
        database = Database(f"sqlite:///{tmp_path / f'{number}.db'}")

        def journal(database=database):
            with database.connection() as connection:
                return connection.exec_driver_sql("PRAGMA journal_mode").scalar()

        assert in_forks(4, journal) == ["wal"] * 4


def test_a_writer_waits_for_another_on_sqlite(sqlite_url):
    database = Database(sqlite_url)
    runs = RunStore(database, NAMESPACE)
    submitted(runs)
    with ThreadPoolExecutor() as pool:
        with held_row(sqlite_url):
            waiting = pool.submit(claim, runs)
            eventually(partial(waits, database))

        assert waiting.result(30).attempt == 1
    database.close()


def test_a_sqlite_that_stays_locked_is_unavailable(sqlite_url):
    database = Database(sqlite_url)
    runs = RunStore(database, NAMESPACE)
    held = claimed(runs)
    with database.connection() as connection:
        connection.exec_driver_sql("PRAGMA busy_timeout = 1")

    with held_row(sqlite_url), pytest.raises(StoreUnavailable, match="too busy: database is locked"):
        runs.settle(held, SUCCESS)

    assert runs.settle(held, SUCCESS)
    database.close()
