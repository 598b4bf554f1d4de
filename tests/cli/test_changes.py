"""``guard cancel``, ``redrive`` and ``prune``: commands that change runs."""

from __future__ import annotations

import pytest

OLD = "2020-01-01 00:00:00.000000+00:00"


def states(shop):
    return sorted(run["state"] for run in shop.json("runs")["runs"])


def test_a_run_is_cancelled(any_shop):
    run_id = any_shop.submit("add", 1, 2)

    result = any_shop.run("cancel", run_id)

    assert result.exit_code == 0
    assert states(any_shop) == ["cancelled"]


def test_cancelling_again_is_no_failure(any_shop):
    run_id = any_shop.submit("add", 1, 2)
    any_shop.run("cancel", run_id)

    assert any_shop.run("cancel", run_id).exit_code == 0


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_run_that_has_ended_or_never_was_can_not_be_cancelled(any_shop, words):
    ended = any_shop.apply("add", 1, 2)

    assert any_shop.run("cancel", ended, *words).exit_code == 1
    assert any_shop.run("cancel", "nobody", *words).exit_code == 1


def test_all_live_runs_that_match_are_cancelled(any_shop):
    kept = any_shop.submit("busy")
    any_shop.apply("add", 1, 2)
    for _ in range(2):
        any_shop.submit("add", 1, 2)

    found = any_shop.json("cancel", "--task", "shop.add", "--yes")

    assert [run["state"] for run in found["runs"]] == ["cancelled", "cancelled"]
    assert any_shop.guard.runs.find(kept).state == "queued"


@pytest.mark.parametrize("command", ["cancel", "redrive"])
def test_a_filter_shows_its_count_and_wants_consent(any_shop, command):
    any_shop.submit("add", 1, 2)
    any_shop.apply("busy")

    result = any_shop.run(command, "--since", "1h")

    assert result.exit_code == 2
    assert "1 run matches" in result.stderr
    assert states(any_shop) == ["dead", "queued"]


@pytest.mark.parametrize("command", ["cancel", "redrive"])
def test_ids_and_a_filter_exclude_each_other(shop, command):
    assert shop.run(command).exit_code == 2
    assert shop.run(command, "some-id", "--task", "shop.add").exit_code == 2


@pytest.mark.parametrize(("command", "state"), [("cancel", "dead"), ("redrive", "running")])
def test_a_state_that_the_command_can_not_change_is_a_usage_error(shop, command, state):
    assert shop.run(command, "--state", state, "--yes").exit_code == 2


@pytest.mark.parametrize("command", ["cancel", "redrive"])
def test_a_filter_that_matches_nothing_is_no_failure(any_shop, command):
    result = any_shop.run(command, "--task", "shop.add", "--yes")

    assert result.exit_code == 0
    assert "matches" in result.stderr


def test_a_run_is_driven_again(any_shop):
    old = any_shop.apply("busy")

    (made,) = any_shop.json("redrive", old)["runs"]

    assert made["redrive_of"] == old
    assert any_shop.guard.runs.find(made["id"]).state == "queued"


def test_a_live_or_unknown_run_can_not_be_driven_again(any_shop):
    live = any_shop.submit("add", 1, 2)

    result = any_shop.run("redrive", live, "nobody")

    assert result.exit_code == 1
    assert live in result.stderr
    assert "nobody" in result.stderr


def test_a_filter_drives_again_what_did_not_succeed(any_shop):
    any_shop.apply("add", 1, 2)
    dead, failed = any_shop.apply("busy"), any_shop.apply("refuse")

    made = any_shop.json("redrive", "--since", "1h", "--yes")["runs"]

    assert {run["redrive_of"] for run in made} == {dead, failed}


def test_a_repeated_redrive_leaves_out_what_was_driven_again(any_shop):
    any_shop.apply("busy")
    any_shop.run("redrive", "--state", "dead", "--yes")

    assert any_shop.json("redrive", "--state", "dead", "--yes")["runs"] == []
    assert len(any_shop.json("redrive", "--state", "dead", "--again", "--yes")["runs"]) == 1


def test_old_runs_are_pruned_and_counted(any_shop):
    any_shop.apply("add", 1, 2)
    young = any_shop.apply("add", 1, 2)
    with any_shop.guard.database.connection() as connection:
        connection.exec_driver_sql(f"UPDATE task_run SET finished_at = '{OLD}' WHERE id <> '{young}'")

    found = any_shop.json("prune")

    assert found["deleted"]["succeeded"] == 1
    assert [run["id"] for run in any_shop.json("runs")["runs"]] == [young]


def test_pruning_tells_what_it_kept_to(any_shop):
    assert "dead: 0 deleted that had ended more than 30 d ago" in any_shop.run("prune").stdout
