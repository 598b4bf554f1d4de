"""The real ``celery`` program: what loads, what a terminal sees, how mistakes end."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from tests.infra.processes import ROOT, free_port


def celery(*words, runs, **env):
    command = [sys.executable, "-m", "celery", *words]
    return subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT), "SHOP_RUNS": runs, **env},
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


def shop_guard(*words, runs, **env):
    return celery("-A", "tests.cli.apps.shop", "guard", *words, runs=runs, **env)


def test_the_program_lists_runs(store_url):
    done = shop_guard("runs", "--json", runs=store_url)

    assert done.returncode == 0, done.stderr
    assert '"runs": []' in done.stdout


def test_a_database_that_is_away_is_told_in_one_line():
    done = shop_guard("runs", runs=f"postgresql+psycopg2://u@127.0.0.1:{free_port()}/x")

    assert done.returncode == 1
    assert "can't be reached" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_without_an_app_the_user_is_asked_for_it(tmp_path):
    done = celery("guard", "runs", runs=f"sqlite:///{tmp_path / 'x.db'}")

    assert done.returncode == 2
    assert "celery -A" in done.stderr


def test_the_entry_point_loads_nothing_but_click():
    code = (
        "import sys, click; before = set(sys.modules); import celery_guard.cli;"
        " print(sorted(name for name in set(sys.modules) - before if not name.startswith('celery_guard')))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.strip() == "[]"


def on_a_terminal(*words, runs, **env):
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "celery", "-A", "tests.cli.apps.shop", "guard", *words]
    given = {**os.environ, "PYTHONPATH": str(ROOT), "SHOP_RUNS": runs, "COLUMNS": "200", "TERM": "xterm", **env}
    given.pop("NO_COLOR", None)
    with subprocess.Popen(command, env=given, stdin=slave, stdout=slave, stderr=slave) as process:
        os.close(slave)
        text = b""
        while True:
            try:
                more = os.read(master, 65_536)
            except OSError:  # the other end is closed
                break
            text += more
            if not more:
                break
        assert process.wait(60) == 0, text.decode()
    os.close(master)
    return text.decode()


def test_a_terminal_gets_a_table_in_colours(shop, sqlite_url):
    pytest.importorskip("rich")
    shop.apply("refuse", "[bold]no markup[/bold]")

    text = on_a_terminal("runs", runs=sqlite_url)

    assert "\x1b[31mfailed" in text
    assert "[bold]no markup[/bold]" in text


def test_rich_is_optional(shop, sqlite_url, tmp_path):
    run_id = shop.apply("refuse")
    (tmp_path / "rich.py").write_text("raise ImportError('not installed')\n")

    text = on_a_terminal("runs", runs=sqlite_url, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")

    assert run_id in text
    assert "\x1b[31m" not in text
