"""A user's mistake, or a database that does not answer, is told in one line and with an exit code."""

from __future__ import annotations

import pytest

from tests.infra.processes import free_port

COMMANDS = ["runs", "show x", "stats", "workers", "cancel x", "redrive x", "rescue --once", "prune", "migrate"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_database_that_is_away(open_app, command):
    shop = open_app(f"postgresql+psycopg2://u@127.0.0.1:{free_port()}/x")

    result = shop.run(*command.split())

    assert result.exit_code == 1
    assert "can't be reached" in result.stderr
    assert result.stdout == ""


def test_a_file_that_can_not_be_opened(open_app, tmp_path):
    result = open_app(f"sqlite:///{tmp_path}").run("runs")

    assert result.exit_code == 1
    assert "unable to open" in result.stderr


def test_a_database_that_refuses_a_statement(shop):
    shop.run("runs")
    with shop.guard.database.connection() as connection:
        connection.exec_driver_sql("ALTER TABLE task_run RENAME COLUMN meta TO other")

    result = shop.run("runs")

    assert result.exit_code == 1
    assert "the database of runs refused: no such column" in result.stderr


@pytest.mark.parametrize("command", ["runs", "stats"])
def test_a_setting_that_is_not_accepted(open_app, sqlite_url, command):
    result = open_app(sqlite_url, guard_max_attempts=0).run(command)

    assert result.exit_code == 1
    assert "guard_max_attempts must be" in result.stderr


def test_tasks_that_can_not_be_imported(open_app, sqlite_url):
    result = open_app(sqlite_url, imports=["no.such.module"]).run("check")

    assert result.exit_code == 1
    assert "the app's tasks can't be imported: ModuleNotFoundError" in result.stderr


def test_missing_tables_name_the_command_to_run(open_app, empty_postgres_url):
    result = open_app(empty_postgres_url).run("stats")

    assert result.exit_code == 1
    assert "guard migrate" in result.stderr


def test_a_command_that_does_not_exist(shop):
    assert shop.run("fix").exit_code == 2


def test_an_interrupt_has_its_own_exit_code(shop, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    shop.run("runs")
    monkeypatch.setattr(shop.guard.runs, "clock", interrupted)

    assert shop.run("stats").exit_code == 130
