"""A real Chromium without a window: what it makes of a page, as text and as a picture."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from html import escape, unescape
from pathlib import Path
from typing import Any

__all__ = ["Browser", "find_browser"]

_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-background-networking --disable-dev-shm-usage --hide-scrollbars"
)
_PATIENCE = 120.0

#: Shows a page in a frame of a given width, and writes down what a script says of it.
_FRAME = """<!DOCTYPE html><meta charset="utf-8">
<iframe width="{width}" height="2000" style="border: 0" srcdoc="{page}"></iframe><pre id="said"></pre>
<script>
document.querySelector("iframe").onload = event => {{
  const page = event.target.contentDocument;
  document.getElementById("said").textContent = JSON.stringify({script});
}};
</script>"""


@dataclass(frozen=True)
class Browser:
    """Chromium's program, and a folder for its profile."""

    program: str
    folder: Path

    def ask(self, page: str, script: str, *, width: int = 900) -> Any:
        """Show HTML at a width in pixels; return what an expression over its document, ``page``, comes to."""
        frame = self.folder / "frame.html"
        frame.write_text(_FRAME.format(width=width, page=escape(page), script=script), encoding="utf-8")
        dom = self._run("--dump-dom", frame.as_uri())
        said = re.search(r'<pre id="said">(.+?)</pre>', dom, re.DOTALL)
        assert said, f"the script said nothing:\n{dom[:2000]}"
        return json.loads(unescape(said[1]))

    def dump(self, url: str) -> str:
        """Load a page, let its scripts run for up to a minute of its own time, and return what it has become."""
        return self._run(
            "--dump-dom",
            "--allow-file-access-from-files",
            "--virtual-time-budget=60000",
            "--window-size=1400,1000",
            url,
        )

    def shoot(self, url: str, target: Path, *, width: int = 900, height: int = 800, dark: bool = False) -> None:
        """Write a picture of a page as PNG."""
        flags = ["--force-dark-mode"] if dark else []
        self._run(f"--screenshot={target}", f"--window-size={width},{height}", *flags, url)

    def _run(self, *words: str) -> str:
        profile = [f"--user-data-dir={self.folder / 'profile'}"]
        environment = {**os.environ, "HOME": str(self.folder)}
        done = subprocess.run(
            [self.program, *_FLAGS.split(), *profile, *words],
            capture_output=True,
            env=environment,
            timeout=_PATIENCE,
        )
        assert done.returncode == 0, done.stderr.decode("utf-8", "replace")[-2000:]
        return done.stdout.decode("utf-8")


def find_browser(folder: Path) -> Browser | None:
    """Return the Chromium of this machine, or None where there is none."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    return Browser(program, folder) if program else None
