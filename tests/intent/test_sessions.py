"""A run submitted in the caller's transaction: it exists when the caller's rows do, and not a moment before."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from celery_guard import IdempotencyConflict, InvalidOption, RunNotFound, StoreUnavailable
from celery_guard.store.models import metadata
from tests.flow.seams import Shop


@pytest.fixture
def ship(any_shop):
    @any_shop.app.task
    def ship(order_id):
        return order_id

    return ship


@pytest.fixture
def exists(any_shop):
    """Say whether others see a run."""

    def exists(result):
        try:
            return bool(result.run)
        except RunNotFound:
            return False

    return exists


def test_nothing_is_seen_or_sent_before_the_commit(ship, any_shop, session, exists):
    result = ship.apply_async((7,), session=session)

    assert result.id
    assert not exists(result)
    assert any_shop.messages() == []


def test_the_message_goes_out_right_after_the_commit(ship, any_shop, session, exists):
    result = ship.apply_async((7,), session=session)
    session.commit()

    assert exists(result)
    assert any_shop.message().headers["id"] == result.id


def test_a_run_sent_after_the_commit_is_not_due_again(ship, any_shop, session):
    ship.apply_async((7,), session=session)
    session.commit()
    any_shop.messages()
    any_shop.clock.advance(5)

    assert any_shop.dispatch() == 0


def test_the_body_of_a_context_manager_commits_at_its_end(ship, any_shop, open_session):
    with open_session() as session, session.begin():
        result = ship.apply_async((7,), session=session)
        assert any_shop.messages() == []

    assert any_shop.message().headers["id"] == result.id


def test_a_rollback_leaves_nothing(ship, any_shop, session):
    ship.apply_async((7,), session=session, idempotency_key="order-7")
    session.rollback()
    session.commit()

    assert any_shop.rows() == any_shop.messages() == []
    assert ship.apply_async((7,), idempotency_key="order-7").created


def test_a_session_closed_without_a_commit_leaves_nothing(ship, any_shop, session):
    ship.apply_async((7,), session=session)
    session.close()
    session.execute(text("SELECT 1"))
    session.commit()

    assert any_shop.rows() == any_shop.messages() == []


def test_an_error_in_the_callers_block_leaves_nothing(ship, any_shop, session):
    def change_hands():
        with session.begin():
            ship.apply_async((7,), session=session)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        change_hands()

    assert any_shop.rows() == any_shop.messages() == []


def test_a_savepoint_rolled_back_takes_its_runs_with_it(ship, any_shop, session):
    outer = ship.apply_async((1,), session=session)
    savepoint = session.begin_nested()
    ship.apply_async((2,), session=session, idempotency_key="inner")
    savepoint.rollback()
    session.commit()

    assert [run.id for run in any_shop.rows()] == [outer.id]
    assert any_shop.message().headers["id"] == outer.id


def test_a_savepoint_released_sends_nothing_before_the_commit(ship, any_shop, session):
    with session.begin_nested():
        result = ship.apply_async((1,), session=session)

    assert any_shop.messages() == []
    session.commit()
    assert any_shop.message().headers["id"] == result.id


def test_two_levels_of_savepoints_keep_what_both_kept(ship, any_shop, session):
    with session.begin_nested():
        kept = ship.apply_async((1,), session=session)
        inner = session.begin_nested()
        ship.apply_async((2,), session=session)
        inner.rollback()
        with session.begin_nested():
            also_kept = ship.apply_async((3,), session=session)
    session.commit()

    assert {run.id for run in any_shop.rows()} == {kept.id, also_kept.id}
    assert {message.headers["id"] for message in any_shop.messages()} == {kept.id, also_kept.id}


def test_an_outer_savepoint_rolled_back_takes_the_inner_one_with_it(ship, any_shop, session):
    outer = session.begin_nested()
    with session.begin_nested():
        ship.apply_async((1,), session=session)
    outer.rollback()
    session.commit()

    assert any_shop.rows() == any_shop.messages() == []


def test_one_session_submits_in_one_transaction_after_another(ship, any_shop, session):
    first = ship.apply_async((1,), session=session)
    session.commit()
    ship.apply_async((2,), session=session)
    session.rollback()
    third = ship.apply_async((3,), session=session)
    session.commit()

    assert [message.headers["id"] for message in any_shop.messages()] == [first.id, third.id]


def test_the_callers_rows_and_the_run_commit_together(ship, any_shop, session):
    session.execute(text("CREATE TABLE orders (id INTEGER)"))
    session.commit()

    session.execute(text("INSERT INTO orders VALUES (7)"))
    ship.apply_async((7,), session=session)
    session.rollback()

    assert session.execute(text("SELECT count(*) FROM orders")).scalar() == len(any_shop.rows()) == 0
    session.execute(text("DROP TABLE orders"))
    session.commit()


def test_a_connections_transaction_is_joined_and_the_dispatcher_sends(ship, any_shop, engine):
    with engine.connect() as connection:
        result = ship.apply_async((7,), session=connection)
        assert any_shop.rows() == [] or not any_shop.guard.database.is_sqlite
        connection.commit()

    assert any_shop.messages() == []
    any_shop.clock.advance(5)
    assert any_shop.dispatch() == 1
    assert any_shop.message().headers["id"] == result.id


def test_a_connections_rollback_leaves_nothing(ship, any_shop, engine):
    with engine.connect() as connection:
        ship.apply_async((7,), session=connection)
        connection.rollback()

    assert any_shop.rows() == []


@pytest.mark.parametrize("outer_commits", [True, False])
def test_a_session_joined_to_a_connection_waits_for_the_connections_commit(ship, any_shop, engine, outer_commits):
    with engine.connect() as connection:
        outer = connection.begin()
        connection.exec_driver_sql("DELETE FROM task_effect")  # sqlite3 begins with a write only
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            ship.apply_async((7,), session=session)
            session.commit()
        assert any_shop.messages() == []
        outer.commit() if outer_commits else outer.rollback()

    any_shop.clock.advance(5)
    assert any_shop.dispatch() == len(any_shop.messages()) == len(any_shop.rows()) == int(outer_commits)


def test_a_scoped_session_is_the_session_of_this_thread(ship, any_shop, engine):
    sessions = scoped_session(sessionmaker(engine))
    result = ship.apply_async((7,), session=sessions)
    assert any_shop.messages() == []
    sessions.commit()
    sessions.remove()

    assert any_shop.message().headers["id"] == result.id


def test_a_countdown_in_a_transaction_is_a_wait_after_it(ship, any_shop, session):
    result = ship.apply_async((7,), session=session, countdown=60)
    session.commit()

    assert any_shop.messages() == []
    assert result.run.next_retry_at is not None
    any_shop.clock.advance(61)
    assert any_shop.dispatch() == 1


def test_a_used_key_does_not_abort_the_callers_transaction(ship, any_shop, session):
    first = ship.apply_async((7,), idempotency_key="order-7")
    again = ship.apply_async((7,), idempotency_key="order-7", session=session)
    other = ship.apply_async((8,), session=session)
    session.commit()

    assert (again.id, again.created) == (first.id, False)
    assert {run.id for run in any_shop.rows()} == {first.id, other.id}


def test_a_conflict_does_not_abort_the_callers_transaction(ship, any_shop, session):
    ship.apply_async((7,), idempotency_key="order-7")
    with pytest.raises(IdempotencyConflict):
        ship.apply_async((8,), idempotency_key="order-7", session=session)
    other = ship.apply_async((8,), session=session)
    session.commit()

    assert other.run.state == "queued"


def test_a_key_used_twice_in_one_transaction_is_one_run(ship, any_shop, session):
    first = ship.apply_async((7,), idempotency_key="order-7", session=session)
    again = ship.apply_async((7,), idempotency_key="order-7", session=session)
    session.commit()

    assert (again.id, again.created) == (first.id, False)
    assert any_shop.message().headers["id"] == first.id


def test_a_strict_isolation_that_meets_a_used_key_gets_a_clear_error(open_shop, postgres_url):
    shop = open_shop(url=postgres_url)

    @shop.app.task
    def ship(order_id):
        return order_id

    engine = create_engine(postgres_url, isolation_level="REPEATABLE READ")
    with Session(engine) as session:
        session.execute(text("SELECT count(*) FROM task_run"))
        first = ship.apply_async((7,), idempotency_key="order-7")
        with pytest.raises(StoreUnavailable, match=r"the transaction given as session= can't go on: .*serialize"):
            ship.apply_async((7,), idempotency_key="order-7", session=session)
        session.rollback()
        again = ship.apply_async((7,), idempotency_key="order-7", session=session)
        session.commit()
    engine.dispose()

    assert again.id == first.id


@pytest.mark.parametrize("with_tables", [True, False], ids=["another store", "no store"])
def test_another_database_is_refused(ship, any_shop, tmp_path, with_tables):
    engine = create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    if with_tables:
        metadata.create_all(engine)
        with engine.begin() as connection:
            insert = metadata.tables["guard_meta"].insert()
            connection.execute(insert.values(id=1, store_id="another", schema_version=1, compatible_from=1))
    with Session(engine) as session, pytest.raises(InvalidOption, match="another database"):
        ship.apply_async((7,), session=session)
    engine.dispose()

    assert any_shop.rows() == []


@pytest.mark.parametrize("session", ["session", 5, True, object()])
def test_what_is_no_session_is_refused(ship, any_shop, session):
    with pytest.raises(InvalidOption, match="session must be"):
        ship.apply_async((7,), session=session)

    assert any_shop.rows() == []


def test_a_broker_that_is_down_after_the_commit_is_no_error_of_the_commit(open_shop, store_url):
    shop = open_shop(url=store_url, broker="redis://localhost:1/0", broker_transport_options={"max_retries": 1})

    @shop.app.task
    def ship(order_id):
        return order_id

    shop.guard.runs.clock()
    engine = create_engine(store_url)
    with Session(engine) as session:
        result = ship.apply_async((7,), session=session, retry=False)
        session.commit()
    engine.dispose()

    assert result.run.state == "queued"


def test_a_store_that_is_lost_right_after_the_commit_is_no_error_of_the_commit(ship, any_shop, session, monkeypatch):
    def lost(*args, **kwargs):
        raise StoreUnavailable("gone")

    ship.apply_async((7,), session=session)
    with monkeypatch.context() as patch:
        patch.setattr(any_shop.guard.runs, "published", lost)
        patch.setattr(any_shop.guard.runs, "publish_soon", lost)
        session.commit()

    assert len(any_shop.rows()) == 1


def test_a_run_submitted_by_a_body_in_its_transaction_has_its_parent(ship, any_shop, engine):
    @any_shop.app.task(deadline=60)
    def parent():
        with Session(engine) as session:
            ship.apply_async((7,), session=session)
            session.commit()

    parent.delay()
    any_shop.work()

    above, below = any_shop.rows()
    assert (below.parent_id, below.deadline_at) == (above.id, above.deadline_at)


def test_a_rolled_back_run_that_was_the_first_of_its_key_frees_the_key(ship, any_shop, open_session):
    session = open_session()
    ship.apply_async((7,), idempotency_key="order-7", session=session)
    session.rollback()
    other = open_session()
    again = ship.apply_async((8,), idempotency_key="order-7", session=other)
    other.commit()

    assert again.run.state == "queued"
    assert isinstance(any_shop, Shop)
