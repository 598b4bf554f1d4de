"""``guard show``: the life of one run."""

from __future__ import annotations

import pytest

from celery_guard.store.permits import MustWait


def lines(shop, run_id, *words):
    return shop.run("show", run_id, *words).stdout


def test_a_dead_run_shows_each_attempt_with_its_fault(any_shop):
    run_id = any_shop.apply("busy", "o7")

    story = any_shop.json("show", run_id)

    assert [one["attempt"] for one in story["attempts"]] == [1, 2, 3]
    assert {one["rule"] for one in story["attempts"]} == {"raised_retryable"}
    assert {one["outcome"] for one in story["attempts"]} == {"retryable"}
    assert {one["error"] for one in story["attempts"]} == {"busy with o7"}


def test_an_attempt_is_told_against_the_deadline(any_shop):
    run_id = any_shop.apply("busy")

    first = any_shop.json("show", run_id)["attempts"][0]

    assert 290 < first["left"] < 300
    assert first["waited"] >= 0
    assert first["took"] >= 0


def test_the_delay_between_attempts_is_told(any_shop):
    run_id = any_shop.apply("busy")

    delays = [one["delay"] for one in any_shop.json("show", run_id)["attempts"]]

    assert all(delay >= 0 for delay in delays[:2])
    assert delays[2] is None


def test_the_text_says_why_it_died(any_shop):
    run_id = any_shop.apply("busy", "o7", meta={"request": "r-1"})

    text = lines(any_shop, run_id)

    for words in (
        f"{run_id}  shop.busy  dead: failed_due_max_attempts",
        "3 of 3",
        "busy with o7",
        "request=r-1",
        "were left",
        "raised_retryable",
    ):
        assert words in text


def test_an_attempt_that_succeeded_is_part_of_the_story(any_shop):
    run_id = any_shop.apply("add", 1, 2)

    story = any_shop.json("show", run_id)

    assert [one["outcome"] for one in story["attempts"]] == ["succeeded"]
    assert story["result"] == 3


def test_a_running_attempt_shows_where_it_runs(any_shop):
    guard, run_id = any_shop.guard, any_shop.submit("add", 1, 2)
    guard.workers.beat("boot-1", host="mill", pid=77, reserved=[])
    guard.runs.claim(run_id, "token", worker_id="boot-1", fingerprint=None)

    (attempt,) = any_shop.json("show", run_id)["attempts"]

    assert (attempt["outcome"], attempt["host"], attempt["pid"]) == ("running", "mill", 77)
    assert attempt["finished_at"] is None
    assert "mill:77" in lines(any_shop, run_id)


def test_a_waiting_run_shows_when_it_goes_on(any_shop):
    run_id = any_shop.submit("add", 1, 2, countdown=600)

    assert "next attempt" in lines(any_shop, run_id)


def test_a_run_without_attempts_has_a_short_story(any_shop):
    run_id = any_shop.submit("add", 1, 2)

    assert any_shop.json("show", run_id)["attempts"] == []
    assert "for a worker" in lines(any_shop, run_id)


def test_a_run_without_a_permit_shows_what_it_waits_for(any_shop):
    guard = any_shop.guard
    first, second = any_shop.submit("add", 1, 2), any_shop.submit("add", 3, 4)
    how = {"limit": 1, "worker_id": "boot-1", "fingerprint": None, "type_": "shop.add"}
    guard.permits.claim(first, "token-1", **how)
    with pytest.raises(MustWait):
        guard.permits.claim(second, "token-2", **how)

    text, story = lines(any_shop, second), any_shop.json("show", second)

    assert "queued: waiting for a permit" in text
    assert "for a permit: as many runs of shop.add are running as may" in text
    assert "next attempt" not in text
    assert (story["waits_for_permit"], story["concurrency_group"], story["next_retry_at"]) == (True, "shop.add", None)
    assert "waiting for a permit" in any_shop.run("runs").stdout


def test_tracebacks_are_shown_when_asked(any_shop):
    run_id = any_shop.apply("refuse")

    assert "Traceback" not in lines(any_shop, run_id)
    assert "Traceback" in lines(any_shop, run_id, "--traceback")


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_an_unknown_id_is_not_found(any_shop, words):
    result = any_shop.run("show", "nobody", *words)

    assert result.exit_code == 1
    assert "nobody" in result.stderr
    assert result.stdout == ""


def test_runs_of_another_namespace_are_not_shown(open_app, store_url):
    other, ours = open_app(store_url, guard_namespace="other"), open_app(store_url)
    run_id = other.apply("add", 1, 2)

    assert ours.run("show", run_id).exit_code == 1
    assert ours.json("runs")["runs"] == []


def test_the_picture_is_a_page_of_its_own(any_shop, tmp_path):
    run_id, file = any_shop.apply("busy", "o<7>"), tmp_path / "run.html"

    told = lines(any_shop, run_id, "--html", str(file))

    page = file.read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert page.count('class="attempt retryable"') == 3
    assert "busy with o&lt;7&gt;" in page
    assert told.startswith(run_id)


def test_the_picture_can_be_printed_alone(any_shop):
    run_id = any_shop.apply("busy")

    assert lines(any_shop, run_id, "--html", "-").endswith("</html>\n")


def test_a_picture_that_can_not_be_written_is_a_mistake_told_in_a_line(any_shop, tmp_path):
    result = any_shop.run("show", any_shop.apply("busy"), "--html", str(tmp_path / "no" / "run.html"))

    assert result.exit_code == 1
    assert "run.html" in result.stderr


def test_no_picture_is_begun_for_an_unknown_run(any_shop, tmp_path):
    file = tmp_path / "run.html"

    assert any_shop.run("show", "nobody", "--html", str(file)).exit_code == 1
    assert not file.exists()
