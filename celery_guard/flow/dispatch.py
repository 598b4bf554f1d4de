"""In the guard thread of a worker: due and owed rows → broker."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
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

#: How long what queues have lost is published at a time, in seconds.
_LOOK = 0.5


class Dispatcher:
    """Publishes what is due, in batches disjoint from those of other workers, and only while the broker answers."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        #: Of the last look: how many messages each queue had, when that was, and how often each worker had beaten.
        self._depths: dict[str, int] = {}
        self._looked_at = time.monotonic()
        self._beaten: dict[str, int] = {}
        #: How many messages of each queue are lost and have not been published again.
        self._lost: dict[str, int] = {}
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
        """Publish again what neither the broker nor a living worker has, for a bounded time; return how many that were.

        What is left over is published the next time, without being counted anew.
        """
        reserved = [run_id for beat in beats for run_id in beat.reserved]
        if not self._lost:
            self._count_lost(beats, reserved)
        published, until = 0, time.monotonic() + _LOOK
        while self._lost and time.monotonic() < until:
            published += self._publish_lost(next(iter(self._lost)), reserved)
        return published

    def forget_lost(self) -> None:
        """Leave what was counted and not published yet to another worker."""
        self._lost.clear()

    def _count_lost(self, beats: Sequence[Beat], reserved: Sequence[str]) -> None:
        """Count by queue how many rows waited at the last look, and wait on, without a message.

        They are more than the broker had then, or has now. Each worker has to beat between two looks: what it had taken
        from the broker before the first stands in its list by the second, or has begun.
        """
        beaten = {beat.worker_id: beat.count for beat in beats}
        if any(count < self._beaten.get(worker_id, -1) + 2 for worker_id, count in beaten.items()):
            return  # one beat of two may have been on its way while the last look was made
        now = time.monotonic()
        waiting = self.guard.runs.waiting(reserved=reserved, on_its_way=now - self._looked_at + _ON_ITS_WAY)
        before, self._depths = self._depths, self._depths_of(waiting)
        self._beaten, self._looked_at = beaten, now
        for queue in before.keys() & self._depths.keys():
            (rows, suspects), messages = waiting[queue], max(before[queue], self._depths[queue])
            if rows > messages:
                self._lost[queue] = rows - messages
            elif suspects:
                self.guard.runs.extend_leases(queue, limit=suspects, lease=fresh_lease())

    def _depths_of(self, queues: Iterable[str]) -> dict[str, int]:
        """Ask the broker how many messages it has; what is away has no queue."""
        with self._producer() as producer:
            if producer is None:
                return {}
            with self._gate:
                return {queue: _depth(producer, queue) for queue in queues}

    def _publish_lost(self, queue: str, reserved: Sequence[str]) -> int:
        """Publish a batch of what a queue has lost."""
        limit = min(self._lost[queue], self.guard.settings.dispatch_batch)
        with self._producer() as producer:
            due = producer and self.guard.runs.take_lost(queue, limit=limit, lease=fresh_lease(), reserved=reserved)
            if not due:
                del self._lost[queue]
                return 0
            logger.warning("%d messages of the queue %s are lost; publishing them again", len(due), queue)
            self._publish(due, producer)
        self.guard.count(Unrecorded.REPUBLISHED, [row.type for row in due])
        self._lost[queue] -= len(due)
        if self._lost[queue] <= 0:
            del self._lost[queue]
        return len(due)

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
