"""``guard migrate``, and the list of commands."""

from __future__ import annotations

from celery_guard.cli import COMMANDS
from celery_guard.store.migrations import SCHEMA_VERSION


def test_the_tables_are_made(open_app, empty_postgres_url):
    shop = open_app(empty_postgres_url)

    assert shop.json("migrate") == {"schema_version": SCHEMA_VERSION}
    assert shop.run("runs").exit_code == 0


def test_migrating_again_changes_nothing(any_shop):
    assert [any_shop.run("migrate").exit_code for _ in range(2)] == [0, 0]


def test_the_script_can_be_printed_without_a_database(open_app):
    result = open_app("postgresql+psycopg2://u@127.0.0.1:1/x").run("migrate", "--sql")

    assert result.exit_code == 0
    assert "CREATE TABLE task_run" in result.stdout


def test_help_names_every_command_with_what_it_does(shop):
    lines = shop.run("--help").stdout.splitlines()

    for name in COMMANDS:
        assert any(line.startswith(f"  {name} ") and len(line.split()) > 3 for line in lines)


def test_every_command_prints_json_when_asked(shop):
    assert all("--json" in shop.run(name, "--help").stdout for name in COMMANDS)
