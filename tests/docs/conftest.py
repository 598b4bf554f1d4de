"""The distributions that users install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.infra.servers import IN_CI

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def package_index(tmp_path_factory: pytest.TempPathFactory) -> None:
    """An index that pip reaches; without one a test is skipped, and fails in CI."""
    folder = tmp_path_factory.mktemp("index")
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", str(folder), "setuptools>=77"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    if done.returncode != 0:
        (pytest.fail if IN_CI else pytest.skip)(f"pip reaches no package index: {done.stderr[-500:]}")


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory, package_index: None) -> Path:
    """A folder with the wheel and the sdist: that of ``GUARD_TEST_DISTRIBUTIONS``, else built here."""
    built = os.environ.get("GUARD_TEST_DISTRIBUTIONS")
    if built:
        return Path(built)
    folder = tmp_path_factory.mktemp("distributions")
    command = [sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built pages."""
    pytest.importorskip("furo", reason="the docs extra is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", str(ROOT / "docs"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return folder
