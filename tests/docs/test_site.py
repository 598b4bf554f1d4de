"""The built pages: every link leads somewhere, nothing comes from another server, nothing sticks out."""

from __future__ import annotations

import json
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

import celery_guard
from tests.infra.browser import Browser, find_browser

ROOT = Path(__file__).parents[2]
ELSEWHERE = re.compile(r"(?:[a-z]+:|//)")

#: Shows each page in a frame of each width, one after the other, and writes down those that are wider than the frame.
VISIT = """<!DOCTYPE html><meta charset="utf-8"><pre id="said"></pre><script>
(async () => {
  const wide = [];
  for (const width of %(widths)s) for (const page of %(pages)s) {
    const frame = document.createElement("iframe");
    frame.width = width; frame.height = 900; frame.src = page;
    await new Promise(loaded => { frame.onload = loaded; document.body.append(frame); });
    const root = frame.contentDocument.documentElement;
    if (root.scrollWidth > root.clientWidth) wide.push(`${page} at ${width}: ${root.scrollWidth}`);
    frame.remove();
  }
  document.getElementById("said").textContent = JSON.stringify(wide);
})();
</script>"""


class Page(HTMLParser):
    """What a page links to, what it loads, and the places in it that others can link to."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids.update(filter(None, [given.get("id")]))
        if tag == "a" and given.get("href"):
            self.links.append(given["href"] or "")
        elif given.get("src") or (tag == "link" and given.get("rel") in ("stylesheet", "preload", "icon")):
            self.loaded.append(given.get("src") or given.get("href") or "")


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {file: Page(file) for file in sorted(site.rglob("*.html"))}


def test_every_link_leads_to_a_page_and_a_place_in_it(site: Path, pages: dict[Path, Page]) -> None:
    broken = []
    for file, page in pages.items():
        for link in page.links:
            path, _, place = unquote(link).partition("#")
            if ELSEWHERE.match(link):
                continue
            target = (file.parent / path).resolve() if path else file
            known = pages[target].ids if target in pages else set()
            if not target.exists() or (place and place not in known):
                broken.append(f"{file.relative_to(site)}: {link}")

    assert not broken


def test_nothing_comes_from_another_server(site: Path, pages: dict[Path, Page]) -> None:
    fetched = [f"{file.name}: {url}" for file, page in pages.items() for url in page.loaded if ELSEWHERE.match(url)]

    assert not fetched


def test_every_public_name_has_an_entry(pages: dict[Path, Page]) -> None:
    places = {place for page in pages.values() for place in page.ids}
    names = set(celery_guard.__all__) - {"__version__"}

    assert not [name for name in names if not {f"celery_guard.{name}", f"celery_guard.errors.{name}"} & places]


def test_no_page_is_wider_than_a_telephone_or_a_desk(site: Path, pages: dict[Path, Page], tmp_path: Path) -> None:
    browser = find_browser(tmp_path)
    if browser is None:
        pytest.skip("no Chromium on this machine")

    assert too_wide(browser, site, sorted(pages)) == []


def too_wide(browser: Browser, site: Path, files: list[Path]) -> list[str]:
    names = [str(file.relative_to(site)) for file in files]
    visit = site / "visit.html"
    visit.write_text(VISIT % {"pages": json.dumps(names), "widths": "[390, 1280]"}, encoding="utf-8")
    said = re.search(r'<pre id="said">(.+?)</pre>', browser.dump(visit.as_uri()), re.DOTALL)
    assert said, "the browser did not come to the last page"
    wide: list[str] = json.loads(unescape(said[1]))
    return wide


MARKDOWN = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "example_project").glob("*.md"))]


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_pages_that_are_read_where_they_lie_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    broken = [link for link in links if not ELSEWHERE.match(link) and not (page.parent / link.split("#")[0]).exists()]

    assert not broken
