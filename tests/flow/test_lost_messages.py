"""A message is lost when neither the broker nor a worker has it, and when that is no matter of when each was asked."""

from __future__ import annotations

import pytest
from kombu import Connection, Queue

from celery_guard.flow.dispatch import Dispatcher
from celery_guard.store.workers import Beat


class Look:
    """The look of one worker at its queue and at what all workers hold."""

    def __init__(self, shop, workers=1):
        self.shop = shop
        self.dispatcher = Dispatcher(shop.guard)
        self.beats = dict.fromkeys(range(workers), 0)

    def again(self, holding=(), *, beats=2, silent=()):
        """Look once more, after so many beats of each worker that is not silent; return how many were lost."""
        for worker in self.beats.keys() - set(silent):
            self.beats[worker] += beats
        held = {0: tuple(holding)}
        found = [Beat(f"worker-{name}", count, held.get(name, ())) for name, count in self.beats.items()]
        return self.dispatcher.look_for_lost(found)


@pytest.fixture
def shop(open_shop, broker_url, store_url):
    """An app on each real broker and each database."""
    return open_shop(url=store_url, broker=broker_url)


@pytest.fixture
def look(shop):
    return Look(shop)


def three_runs(shop):
    """Submit three runs whose messages are in the queue for longer than any lease; return their ids."""

    @shop.app.task(name="work")
    def work():
        """Do nothing."""

    runs = [shop.app.tasks["work"].delay().id for _ in range(3)]
    shop.clock.advance(60)
    return runs


@pytest.fixture
def waiting(shop):
    return three_runs(shop)


def test_what_the_broker_has_is_not_lost(look, waiting, shop):
    assert [look.again() for _ in range(3)] == [0, 0, 0]

    assert len(shop.messages()) == 3


def test_what_the_broker_has_lost_is_published_again_once(look, waiting, shop):
    look.again()
    shop.messages()

    assert [look.again(), look.again(), look.again(), look.again()] == [0, 3, 0, 0]
    assert sorted(message.headers["id"] for message in shop.messages()) == sorted(waiting)


def test_what_a_worker_has_taken_since_its_last_beat_is_not_lost(look, waiting, shop):
    look.again()
    taken = shop.messages()

    assert [look.again(beats=beats) for beats in (0, 1)] == [0, 0]
    assert [look.again(waiting) for _ in range(3)] == [0, 0, 0]
    for message in taken:
        shop.deliver(message)
    assert [look.again() for _ in range(3)] == [0, 0, 0]


def test_what_a_worker_begins_between_two_looks_is_not_lost(look, waiting, shop):
    """Each beat says what is in hand at its moment only; with short tasks that is something else each time."""
    for _ in range(5):
        assert look.again() == 0
        for message in shop.messages():
            shop.deliver(message)
        shop.app.tasks["work"].delay()
        shop.clock.advance(60)
    assert len(shop.messages()) == 1


def test_what_a_worker_gives_back_is_not_lost(look, waiting, shop):
    with Connection(shop.app.conf.broker_url) as connection, connection.channel() as channel:
        box = Queue(shop.queue, channel=channel)
        while box.get(no_ack=False):
            pass
        look.again(waiting)

    assert [look.again() for _ in range(3)] == [0, 0, 0]
    assert len(shop.messages()) == 3


def test_nothing_is_said_before_each_worker_has_beaten(shop, waiting):
    look = Look(shop, workers=3)
    look.again()
    shop.messages()
    look.again()

    assert [look.again(silent=[1]), look.again(silent=[1, 2])] == [0, 0]
    assert look.again() == 3


@pytest.fixture
def slow_look(open_shop, store_url, monkeypatch):
    """A look that has time for one message."""
    monkeypatch.setattr("celery_guard.flow.dispatch._LOOK", 0.001)
    return Look(open_shop(url=store_url, guard_dispatch_batch=1))


def test_what_is_left_over_is_published_the_next_time(slow_look):
    three_runs(slow_look.shop)
    slow_look.again()
    slow_look.shop.messages()

    assert [slow_look.again(beats=beats) for beats in (2, 2, 0, 0, 0)] == [0, 1, 1, 1, 0]


def test_another_worker_does_not_go_on_with_what_was_counted_here(slow_look):
    three_runs(slow_look.shop)
    slow_look.again()
    slow_look.shop.messages()
    assert [slow_look.again(), slow_look.again()] == [0, 1]

    slow_look.dispatcher.forget_lost()

    assert slow_look.again(beats=0) == 0
