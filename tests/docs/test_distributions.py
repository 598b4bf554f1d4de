"""What the wheel and the sdist hold, and what they ask for."""

from __future__ import annotations

import tarfile
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(distributions: Path) -> zipfile.ZipFile:
    (found,) = distributions.glob("*.whl")
    return zipfile.ZipFile(found)


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return message_from_string(wheel.read(name).decode())


def our_files(*folders: str) -> set[str]:
    found = (path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file())
    relative = {str(path.relative_to(ROOT)) for path in found if path.suffix not in (".pyc", ".pyo")}
    return {name for name in relative if not name.startswith("docs/_build/") and "/." not in name}


def test_the_wheel_holds_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    shipped = {name for name in wheel.namelist() if ".dist-info/" not in name}

    assert shipped == our_files("celery_guard")


def test_the_wheel_says_that_it_is_typed_and_brings_its_licence(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()

    assert "celery_guard/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_sdist_holds_all_that_its_tests_and_docs_need(distributions: Path) -> None:
    (found,) = distributions.glob("*.tar.gz")
    with tarfile.open(found) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}

    wanted = our_files("benchmarks", "celery_guard", "docs", "example_project", "tests")
    tops = set("CHANGELOG.md CONTRIBUTING.md LICENSE Makefile README.md README.ru.md SECURITY.md setup.cfg".split())
    assert wanted | tops <= names
    assert not [name for name in names if name.endswith(".pyc")]


def test_the_first_page_of_the_index_is_the_readme(metadata: Message) -> None:
    assert metadata["Name"] == "celery-guard"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload() == (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_default_installation_can_talk_to_redis(metadata: Message) -> None:
    wanted = [one for one in metadata.get_all("Requires-Dist", []) if "extra ==" not in one]

    assert any(one.startswith("celery[redis]") for one in wanted), wanted  # kombu needs more for it than the client


def test_every_extra_is_offered(metadata: Message) -> None:
    assert set(metadata.get_all("Provides-Extra", [])) >= {"fastapi", "flower", "prometheus", "demo", "docs", "test"}
