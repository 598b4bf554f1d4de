"""``guard runs``: which runs, in which order, page by page."""

from __future__ import annotations

import pytest


def ids(shop, *words):
    return [run["id"] for run in shop.json("runs", *words)["runs"]]


def test_runs_are_listed_newest_first(any_shop):
    submitted = [any_shop.submit("add", number, 1) for number in range(3)]

    assert ids(any_shop) == submitted[::-1]


def test_what_ended_or_was_submitted_last_comes_first(any_shop):
    waiting = any_shop.submit("add", 1, 2)
    first, second = any_shop.apply("add", 1, 2), any_shop.apply("refuse")

    assert ids(any_shop) == [second, first, waiting]


def test_pages_show_every_run_once(any_shop):
    wanted = {any_shop.apply("add", number, 1) for number in range(4)} | {any_shop.submit("add", 1, 1)}

    seen, after = [], ()
    while True:
        page = any_shop.json("runs", "--limit", "2", *after)
        seen += [run["id"] for run in page["runs"]]
        if page["next"] is None:
            break
        after = ("--after", page["next"])

    assert len(seen) == 5
    assert set(seen) == wanted


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("--state", "dead"), id="state"),
        pytest.param(("--state", "dead", "--state", "running"), id="several states"),
        pytest.param(("--reason", "failed_due_max_attempts"), id="reason"),
        pytest.param(("--task", "shop.busy"), id="task"),
        pytest.param(("--key", "the key"), id="key"),
        pytest.param(("--meta", "order=42"), id="meta number"),
        pytest.param(("--meta", "rush=true", "--meta", 'a"b=x'), id="meta entries"),
    ],
)
def test_a_filter_finds_what_it_names(any_shop, words):
    any_shop.apply("add", 1, 2, meta={"order": 4, "rush": False})
    meta = {"order": 42, "rush": True, 'a"b': "x"}
    wanted = any_shop.apply("busy", meta=meta, idempotency_key="the key")
    any_shop.submit("add", 1, 2)

    assert ids(any_shop, *words) == [wanted]


def test_a_queue_is_found(any_shop):
    any_shop.submit("add", 1, 2)
    wanted = any_shop.submit("add", 1, 2, queue="slow")

    assert ids(any_shop, "--queue", "slow") == [wanted]


@pytest.mark.parametrize(
    "words",
    [
        ("--state", "failed"),
        ("--reason", "cancelled"),
        ("--state", "queued", "--reason", "succeeded"),
        ("--key", "other"),
        ("--meta", "order=4"),
        ("--since", "2999-01-01T00:00:00Z"),
    ],
)
def test_a_filter_leaves_out_the_rest(any_shop, words):
    any_shop.apply("add", 1, 2, meta={"order": 42}, idempotency_key="key")

    assert ids(any_shop, *words) == []


def test_since_may_be_said_as_how_long_ago(any_shop):
    run_id = any_shop.apply("add", 1, 2)

    assert ids(any_shop, "--since", "15m") == [run_id]
    assert ids(any_shop, "--since", "0s") == []


def test_json_has_moments_with_their_zone_and_no_result(any_shop):
    any_shop.apply("add", 1, 2)

    (run,) = any_shop.json("runs")["runs"]

    assert run["state"] == run["terminal_reason"] == "succeeded"
    assert run["finished_at"].endswith("+00:00")
    assert "encoded_result" not in run


def test_text_has_a_line_for_each_run(any_shop):
    run_id = any_shop.apply("busy", "o7")

    head, line = any_shop.run("runs").stdout.splitlines()

    assert head.startswith("ID")
    assert line.startswith(run_id)
    for word in ("dead", "failed_due_max_attempts", "shop.busy", "3/3", "busy with o7"):
        assert word in line


def test_where_the_next_page_begins_is_told_beside_the_list(shop):
    for _ in range(2):
        shop.submit("add", 1, 2)

    result = shop.run("runs", "--limit", "1")

    assert "--after" in result.stderr
    assert len(result.stdout.splitlines()) == 2


def test_errors_can_not_write_to_the_terminal(shop):
    shop.apply("refuse", "a\x1b[2Jb\nc")

    text = shop.run("runs").stdout

    assert "\x1b" not in text
    assert len(text.splitlines()) == 2


def test_no_run_is_no_failure(shop):
    result = shop.run("runs")

    assert (result.exit_code, result.stdout) == (0, "")


@pytest.mark.parametrize(
    "words",
    [
        ("--since", "yesterday"),
        ("--since", "2026-01-01T00:00:00"),
        ("--state", "lost"),
        ("--reason", "bored"),
        ("--meta", "order"),
        ("--after", "here"),
        ("--limit", "0"),
        ("surplus",),
    ],
)
def test_a_mistake_in_the_words_is_a_usage_error(shop, words):
    result = shop.run("runs", *words)

    assert result.exit_code == 2
    assert "Error" in result.stderr
