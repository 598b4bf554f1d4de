"""In the guard thread of a worker: due and owed rows → broker."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kombu.exceptions import ChannelError, OperationalError

from celery_guard.flow.guard import Guard
from celery_guard.flow.publish import fresh_lease, publish_due
from celery_guard.observe.logs import logger
from celery_guard.store.forking import ForkGate
from celery_guard.store.records import Due
from celery_guard.store.tallies import Unrecorded
from celery_guard.store.workers import Beat

__all__ = ["Dispatcher"]

#: Seconds until a row whose publishing failed is tried again.
_AGAIN = 2.0

#: How long after its row was written a message may be on its way to the broker, in seconds.
_ON_ITS_WAY = 2.0

#: How long one look may publish what a queue has lost, in seconds; the next one goes on.
_LOOK = 2.0


class Dispatcher:
    """Publishes what is due, in batches disjoint from those of other workers, and only while the broker answers."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self._missing: dict[str, int] = {}
        self._broker_is_away = False
        #: Held while this thread may hold kombu's locks: a child forked then would wait for them for ever.
        self._gate = ForkGate(patience=5.0)

    def tick(self) -> int:
        """Publish one batch of due rows, earliest first; return how many there were."""
        with self._producer() as producer:
            if producer is None:
                return 0
            due = self.guard.runs.take_due(limit=self.guard.settings.dispatch_batch, lease=fresh_lease())
            self._publish(due, producer)
            return len(due)

    def look_for_lost(self, beats: Sequence[Beat]) -> int:
        """Publish again what neither the broker nor a living worker has; return how many that were.

        A message is missing when more rows wait in a queue than its broker reports and workers hold reserved; it counts
        once two looks in a row agree, so that what is on its way between them is not sent twice.
        """
        reserved = [run_id for beat in beats for run_id in beat.reserved]
        waiting = self.guard.runs.waiting(reserved=reserved, on_its_way=_ON_ITS_WAY)
        before, self._missing = self._missing, {}
        return sum(self._look_into(queue, *counts, before.get(queue, 0), reserved) for queue, counts in waiting.items())

    def _look_into(self, queue: str, waiting: int, suspects: int, missing_before: int, reserved: Sequence[str]) -> int:
        with self._producer() as producer:
            if producer is None:
                return 0
            with self._gate:
                missing = waiting - _depth(producer, queue)
            published = self._publish_lost(queue, min(missing, missing_before), reserved, producer)
            self._missing[queue] = missing - published
            if suspects and missing <= 0:
                self.guard.runs.extend_leases(queue, limit=suspects, lease=fresh_lease())
            return published

    def _publish_lost(self, queue: str, lost: int, reserved: Sequence[str], producer: Any) -> int:
        batch, published, until = self.guard.settings.dispatch_batch, 0, time.monotonic() + _LOOK
        while published < lost and time.monotonic() < until:
            limit = min(lost - published, batch)
            due = self.guard.runs.take_lost(queue, limit=limit, lease=fresh_lease(), reserved=reserved)
            if not due:
                break
            logger.warning("%d messages of the queue %s are lost; publishing them again", len(due), queue)
            self._publish(due, producer)
            self.guard.count(Unrecorded.REPUBLISHED, [row.type for row in due])
            published += len(due)
        return published

    def _publish(self, due: Sequence[Due], producer: Any) -> None:
        failed: list[str] = []
        try:
            with self._gate, producer.batch():
                for row in due:
                    self._send(row, producer, failed)
        except Exception as error:  # of messages that travel together nobody knows which arrived
            logger.warning("%d rows could not be published: %r", len(due), error)
            failed = [row.id for row in due]
        if failed:
            self.guard.runs.publish_soon(failed, delay=_AGAIN)

    def _send(self, row: Due, producer: Any, failed: list[str]) -> None:
        try:
            publish_due(self.guard.app, row, producer=producer)
        except Exception as error:  # a row that can't be sent must not keep the others
            logger.warning("%s[%s] could not be published: %r", row.type, row.id, error)
            failed.append(row.id)

    @contextmanager
    def _producer(self) -> Iterator[Any]:
        """Give a producer whose broker answers, else None."""
        with self._gate:
            producer = self.guard.app.producer_pool.acquire(block=True, timeout=5)
            answers = self._answers(producer)
        try:
            yield producer if answers else None
        finally:
            with self._gate:
                producer.release()

    def _answers(self, producer: Any) -> bool:
        try:
            producer.connection.ensure_connection(max_retries=1, interval_start=0)
        except (OperationalError, OSError, *producer.connection.connection_errors) as error:
            if not self._broker_is_away:
                logger.warning("the broker is away; rows wait until it is back: %r", error)
            self._broker_is_away = True
            return False
        if self._broker_is_away:
            logger.info("the broker is back; publishing goes on")
        self._broker_is_away = False
        return True


def _depth(producer: Any, queue: str) -> int:
    """Return how many messages the broker holds for a queue and has not handed out."""
    channel = producer.connection.channel()
    try:
        return int(channel.queue_declare(queue, passive=True).message_count)
    except (ChannelError, *producer.connection.channel_errors):
        return 0
    finally:
        try:
            channel.close()
        except (OSError, *producer.connection.connection_errors, *producer.connection.channel_errors):
            pass
