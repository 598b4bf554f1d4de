"""The public surface: a short list of names, loaded when they are used, that a type checker understands."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import celery_guard

HERE = Path(__file__).parent


def python(code: str) -> str:
    """Run code in a fresh interpreter with all warnings as errors."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("name", celery_guard.__all__)
def test_every_public_name_can_be_used(name):
    assert getattr(celery_guard, name) is not None


def test_a_type_checker_knows_every_public_name():
    source = ast.parse(Path(celery_guard.__file__).read_text(encoding="utf-8"))
    (checked, *_) = (node for node in source.body if isinstance(node, ast.If))
    imported = [name for node in checked.body if isinstance(node, ast.ImportFrom) for name in node.names]

    assert [name.name for name in imported] == [name.asname for name in imported]
    assert {name.name for name in imported} == set(celery_guard.__all__) - {"__version__"}


def test_the_list_is_sorted_and_has_no_name_twice():
    assert celery_guard.__all__ == sorted(set(celery_guard.__all__))


def test_every_error_that_users_catch_is_public():
    from celery_guard import errors

    assert set(errors.__all__) <= set(celery_guard.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = celery_guard.nonsense


def test_a_star_import_brings_the_list():
    namespace: dict = {}

    exec("from celery_guard import *", namespace)

    assert set(celery_guard.__all__) <= set(namespace)


@pytest.mark.parametrize("heavy", ["sqlalchemy", "alembic", "pydantic", "celery", "kombu", "psycopg2"])
def test_importing_the_package_loads_nothing_heavy(heavy):
    assert python(f"import celery_guard, sys; print({heavy!r} in sys.modules)") == "False"


@pytest.mark.parametrize("name", ["GuardError", "State", "NonRetryableError", "compute_backoff_delay"])
def test_a_light_name_loads_nothing_heavy(name):
    loaded = python(f"from celery_guard import {name}; import sys; print('\\n'.join(sys.modules))").split()

    assert not {"sqlalchemy", "pydantic", "celery"} & set(loaded)


def test_the_plugin_of_the_command_line_loads_neither_the_database_nor_the_settings():
    loaded = python("import celery_guard.cli, sys; print('\\n'.join(sys.modules))").split()

    assert not {"sqlalchemy", "alembic", "pydantic"} & set(loaded)


@pytest.mark.parametrize("words", [["--help"], ["guard", "--help"], ["guard", "migrate", "--help"]], ids=" ".join)
def test_the_command_line_answers(words):
    done = subprocess.run([sys.executable, "-m", "celery", *words], capture_output=True, text=True, timeout=120)

    assert done.returncode == 0, done.stderr
    assert "guard" in done.stdout


def test_the_script_of_the_migrations_needs_no_database(tmp_path):
    (tmp_path / "shop.py").write_text("from celery import Celery\napp = Celery('shop')\n")

    done = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "shop", "guard", "migrate", "--sql"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
    )

    assert done.returncode == 0, done.stderr
    assert "CREATE TABLE task_run" in done.stdout


def test_the_version_is_that_of_the_distribution():
    from importlib.metadata import version

    assert celery_guard.__version__ == version("celery-guard")


def test_a_type_checker_accepts_what_users_write():
    done = mypy(HERE / "typing" / "usage.py")

    assert done.returncode == 0, done.stdout


def test_a_type_checker_refuses_what_users_get_wrong():
    done = mypy(HERE / "typing" / "mistakes.py")

    assert done.returncode == 0, done.stdout  # every mistake is expected: an unused "type: ignore" would be an error


def mypy(path: Path) -> subprocess.CompletedProcess[str]:
    words = [
        "--strict",
        "--warn-unused-ignores",
        "--no-error-summary",
        "--config-file",
        str(HERE / "typing" / "mypy.ini"),
    ]
    return subprocess.run(
        [sys.executable, "-m", "mypy", *words, str(path)], capture_output=True, text=True, timeout=280
    )
