"""The second message of a run equals the first but for our header; compared as real brokers hand them out."""

from __future__ import annotations

import pytest
from celery import chain, chord, group
from kombu import Connection, Exchange, Queue
from kombu.message import Message

from celery_guard import RetryableError
from celery_guard.flow.publish import HEADER


@pytest.fixture
def shop(open_shop, broker_url, queue_name):
    """An app on each real broker, whose queue knows priorities."""
    shop = open_shop(broker=broker_url, accept_content=["json", "yaml"], result_backend="cache+memory://")
    shop.app.conf.task_queues = [Queue(queue_name, routing_key=queue_name, queue_arguments={"x-max-priority": 9})]
    return shop


@pytest.fixture
def work(shop):
    """A task that fails retryably whenever it is run."""

    @shop.app.task(name="work", max_attempts=9)
    def work(*args, **kwargs):
        raise RetryableError("busy")

    return shop.app.tasks["work"]


@pytest.fixture
def note(shop):
    @shop.app.task(name="note")
    def note(*args):
        """Do nothing."""

    return shop.app.tasks["note"]


def content(message: Message) -> dict:
    """Everything that a consumer can see of a message, but for our header."""
    return {
        "headers": {name: value for name, value in message.headers.items() if name != HEADER},
        "properties": {name: value for name, value in message.properties.items() if name not in BY_THE_TRANSPORT},
        "body": message.payload,
        "content": (message.content_type, message.content_encoding),
        "routing_key": message.delivery_info.get("routing_key"),
    }


#: What a transport says of its own accord, or says twice.
BY_THE_TRANSPORT = {"application_headers", "delivery_info", "delivery_tag"}


def again(shop, message: Message, *, at_once: bool = False) -> Message:
    """Lose the message and let the dispatcher publish the row again, or deliver it and wait for the retry."""
    if at_once:
        shop.guard.runs.publish_soon([message.headers["id"]], delay=0.0)
    else:
        shop.deliver(message)
    shop.clock.advance(400)
    assert shop.dispatch() == 1
    return shop.message()


OPTIONS = {
    "nothing": {},
    "priority": {"priority": 3},
    "headers": {"headers": {"tenant": "acme", "n": 7}},
    "time limits": {"time_limit": 20, "soft_time_limit": 10},
    "shadow": {"shadow": "work for acme"},
    "ignored result": {"ignore_result": True},
    "compression": {"compression": "gzip"},
    "serializer": {"serializer": "yaml"},
    "repr of arguments": {"argsrepr": "(hidden)", "kwargsrepr": "{hidden}"},
    "transient message": {"delivery_mode": 1},
    "stamps": {"stamped_headers": ["tenant"], "tenant": "acme"},
    "reply to": {"reply_to": "somebody"},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
class TestAMessage:
    def test_published_again_is_the_same(self, work, shop, options):
        work.apply_async((1, "ß"), {"x": None}, **options)
        first = shop.message()

        second = again(shop, first, at_once=True)

        assert content(second) == content(first)
        assert second.headers[HEADER]["event"] == "republish"

    def test_of_a_retry_differs_in_the_number_of_retries(self, work, shop, options):
        work.apply_async((1, "ß"), {"x": None}, **options)
        first = shop.message()

        second = again(shop, first)

        expected = content(first)
        expected["headers"]["retries"] = 1
        assert content(second) == expected
        assert second.headers[HEADER]["event"] == "retry"


def test_links_survive_a_retry(work, note, shop):
    work.apply_async(link=[note.s(1), note.s(2)], link_error=note.si("failed"))
    first = shop.message()

    second = again(shop, first)

    embedded = second.payload[2]
    assert embedded == first.payload[2]
    assert [link["args"] for link in embedded["callbacks"]] == [[1], [2]]
    assert [link["args"] for link in embedded["errbacks"]] == [["failed"]]


def test_the_rest_of_a_chain_survives_a_retry(work, note, shop):
    chain(work.s(1), note.s(2), note.s(3)).apply_async()
    first = shop.message()

    second = again(shop, first)

    assert second.payload[2] == first.payload[2]
    assert [step["args"] for step in second.payload[2]["chain"]] == [[3], [2]]


def test_the_group_and_the_chord_survive_a_retry(work, note, shop):
    chord([work.s(1), work.s(2)], note.s()).apply_async()
    messages = shop.messages()

    second = again(shop, messages[0])

    first = messages[0]
    assert (second.headers["group"], second.headers["group_index"]) == (first.headers["group"], 0)
    assert second.payload[2]["chord"] == first.payload[2]["chord"]
    assert second.payload[2]["chord"]["task"] == "note"


def test_a_member_of_a_group_keeps_its_place_in_a_retry(work, shop):
    group(work.s(n) for n in range(3)).apply_async()
    messages = shop.messages()

    for message in messages:
        shop.deliver(message)
    shop.clock.advance(400)
    shop.dispatch()

    indices = {message.headers["id"]: message.headers["group_index"] for message in messages}
    assert {message.headers["id"]: message.headers["group_index"] for message in shop.messages()} == indices


def test_parents_survive_a_retry(work, shop):
    @shop.app.task(name="parent")
    def parent():
        work.delay()

    parent.delay()
    shop.deliver(shop.message())
    first = shop.message()

    second = again(shop, first)

    assert first.headers["parent_id"] == first.headers["root_id"]
    assert content(second)["headers"] == {**content(first)["headers"], "retries": 1}


def test_a_chosen_queue_survives_a_retry(work, shop):
    work.apply_async(queue=f"{shop.queue}-other")
    shop.deliver(shop.message(f"{shop.queue}-other"))

    shop.clock.advance(400)
    shop.dispatch()

    assert shop.messages() == []
    assert shop.message(f"{shop.queue}-other").headers["task"] == "work"


def test_a_worker_with_other_routes_sends_a_run_again_to_where_it_was_submitted(open_shop):
    here = open_shop(task_routes={"pay": {"queue": "money"}})
    there = open_shop()
    for app in (here.app, there.app):

        @app.task(name="pay", shared=False)
        def pay():
            raise RetryableError("busy")

    result = here.app.tasks["pay"].delay()
    here.deliver(here.message("money"))
    there.clock.advance(1)
    there.dispatch()

    assert there.messages() == []
    assert there.message("money").headers["id"] == result.id


def test_a_route_by_exchange_is_taken_again(open_shop):
    shop = open_shop(task_routes={"pay": {"exchange": "money", "exchange_type": "direct", "routing_key": "cash"}})

    @shop.app.task(name="pay")
    def pay():
        raise RetryableError("busy")

    with Connection(shop.app.conf.broker_url) as connection, connection.channel() as channel:
        Queue("till", Exchange("money", "direct"), "cash", channel=channel).declare()
    result = pay.delay()
    shop.deliver(shop.message("till"))
    shop.clock.advance(1)
    shop.dispatch()

    assert shop.message("till").headers["id"] == result.id


def test_the_broker_gives_the_priority_back(work, shop):
    work.apply_async(priority=3)
    first = shop.message()

    second = again(shop, first)

    assert (first.properties["priority"], second.properties["priority"]) == (3, 3)


def test_a_waiting_run_has_no_message_in_the_broker(work, shop):
    work.apply_async(countdown=60)

    assert shop.messages() == []


def test_our_header_of_a_second_message_names_the_same_run_deadline_and_payload(work, shop):
    work.apply_async((1,))
    first = shop.message()

    second = again(shop, first)

    ours = [message.headers[HEADER] for message in (first, second)]
    for name in ("v", "id", "deadline", "fingerprint"):
        assert ours[0][name] == ours[1][name]


def test_the_deadline_never_moves(work, shop):
    result = work.apply_async(deadline=3_600)
    before = result.run.deadline_at

    again(shop, shop.message())

    assert result.run.deadline_at == before
