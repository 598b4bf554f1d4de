"""Run the shop for half a minute and show every ending of a guarded task: ``python -m example_project.demo``.

One real prefork worker, SQLite, Celery's filesystem broker, Flower and a local web server; nothing else is needed.
The exit code is 0 only when every run ended as it had to. ``KEEP=1`` then starts the shop's
web application, too, and leaves all of it up until Ctrl-C.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape

from example_project import scenarios, tables, verdict
from example_project.outside_world import OutsideWorld, open_world
from example_project.processes import Child, ChildFailed, answers_http, celery, free_port, python
from example_project.scenarios import Scenario

__all__ = ["main"]

TIME_TO_START = 90.0
TIME_TO_END = 120.0
REFRESH = 0.25
FLOWER_FLAGS = (
    f"--conf={Path(__file__).with_name('flowerconfig.py')}",
    "--tasks_columns=name,uuid,state,args,result,exception,retries,expires,received,started,runtime",
    "--inspect_timeout=3000",  # answers come by file, so they take their time
)


def main() -> int:
    """Run the demo and return the exit code."""
    console = Console() if sys.stdout.isatty() else Console(width=160)
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, _leave)
    try:
        return 0 if _demo(console) else 1
    except ChildFailed as failure:
        console.print(f"[red]✗[/] {escape(str(failure))}", highlight=False)
        return 1
    except KeyboardInterrupt:
        console.print("Stopped.")
        return 130


def _demo(console: Console) -> bool:
    started = time.monotonic()
    asked = scenarios.all_scenarios()
    answers = {place.path: place.answers for scenario in asked for place in scenario.places}
    with ExitStack() as stack:
        home = stack.enter_context(_working_folder(console))
        world = stack.enter_context(open_world(answers))
        # Celery reads its configuration on first use, so here is early enough.
        os.environ.update(SHOP_HOME=str(home), SHOP_WORLD_URL=world.url)
        worker, flower_url = _start(stack, home, console)
        results = [scenario.submit() for scenario in asked]
        _watch(results, worker, console, title=f"Runs now; Flower: {flower_url}/tasks")
        as_wanted = _judge(asked, results, world, home, console)
        console.print(f"{time.monotonic() - started:.0f} s in all.")
        if os.environ.get("KEEP") == "1":
            _keep(console, home, flower_url)
        elif as_wanted:
            (home / "done").touch()
        console.print("Stopping worker and Flower …")
    return as_wanted


@contextmanager
def _working_folder(console: Console) -> Iterator[Path]:
    """Make a private folder; remove it when the demo says that it is done with it."""
    home = Path(tempfile.mkdtemp(prefix="example-shop-"))
    try:
        yield home
    finally:
        if (home / "done").exists():
            shutil.rmtree(home)
        else:
            console.print(f"Logs, database and files are in {home}", highlight=False)


def _start(stack: ExitStack, home: Path, console: Console) -> tuple[Child, str]:
    """Start worker and Flower side by side and wait until both are ready."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    flags = ["flower", "--address=127.0.0.1", f"--port={port}", *FLOWER_FLAGS]
    with console.status("Starting one worker and Flower …"):
        flower = stack.enter_context(celery("flower", flags, home=home))
        worker = stack.enter_context(
            celery("worker", ["worker", "-E", "--concurrency=2", "--loglevel=INFO"], home=home)
        )
        worker.wait_until(lambda: worker.says(" ready."), seconds=TIME_TO_START)
        flower.wait_until(lambda: answers_http(url), seconds=TIME_TO_START)
    return worker, url


def _watch(results: Sequence[Any], worker: Child, console: Console, *, title: str) -> None:
    """Draw the runs until all have ended, or the time is up."""
    limit = time.monotonic() + TIME_TO_END
    with Live(console=console, auto_refresh=False) as live:
        while time.monotonic() < limit:
            runs = [result.run for result in results]
            live.update(tables.live_table(runs, title=title), refresh=True)
            if all(map(verdict.ended, runs)):
                break
            worker.check()
            time.sleep(REFRESH)
    if not console.is_terminal:
        console.line()


def _judge(
    asked: Sequence[Scenario], results: Sequence[Any], world: OutsideWorld, home: Path, console: Console
) -> bool:
    """Compare all that was seen with all that was asked; say what differs."""
    pairs = [
        (scenario, verdict.look_at(scenario, result, world.visits, home))
        for scenario, result in zip(asked, results, strict=True)
    ]
    console.print(tables.summary_table(pairs))
    wrong = [line for scenario, seen in pairs for line in verdict.differences(scenario, seen)]
    wrong += verdict.unexpected_files(asked, home)
    for line in wrong:
        console.print(f"[red]✗[/] {escape(line)}", highlight=False)
    console.print(f"[red]{len(wrong)} differences.[/]" if wrong else "[green]Every run ended as it had to.[/]")
    return not wrong


def _keep(console: Console, home: Path, flower_url: str) -> None:
    """Start the shop's web application beside worker and Flower, and leave all three up until Ctrl-C."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    with python("web", ["-m", "uvicorn", "example_project.web:web", f"--port={port}"], home=home) as web:
        web.wait_until(lambda: answers_http(url), seconds=TIME_TO_START)
        text = f"The shop stays up: {url}; Flower: {flower_url}/tasks; files in {home}. Ctrl-C ends it."
        console.print(text, highlight=False)
        with suppress(KeyboardInterrupt):
            while True:
                signal.pause()


def _leave(signum: int, _: Any) -> None:
    signal.signal(signum, signal.SIG_IGN)
    raise SystemExit(128 + signum)


if __name__ == "__main__":
    sys.exit(main())
