"""``celery -A app guard …``: for the people who run it. Each command is loaded when it is called."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

__all__ = ["COMMANDS", "guard"]

#: Where each command lives, in the order in which help shows them.
COMMANDS = {
    "check": "celery_guard.cli.check",
    "migrate": "celery_guard.cli.migrate",
    "runs": "celery_guard.cli.runs",
    "show": "celery_guard.cli.show",
    "stats": "celery_guard.cli.stats",
    "workers": "celery_guard.cli.workers",
    "metrics": "celery_guard.cli.metrics",
    "cancel": "celery_guard.cli.cancel",
    "redrive": "celery_guard.cli.redrive",
    "rescue": "celery_guard.cli.rescue",
    "prune": "celery_guard.cli.prune",
    "explain": "celery_guard.cli.explain",
}


class LazyGroup(click.Group):
    """A group whose commands are imported on use, and that explains errors in one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, the first to use first."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(COMMANDS[cmd_name]), cmd_name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a user's mistake, or a database that is away, is told without a traceback."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(130)
        except RuntimeError:  # how click ends a command
            raise
        except Exception as error:
            from celery_guard.cli.complaints import complaint

            told = complaint(error)
            if told is None:
                raise
            raise told from None


@click.group(cls=LazyGroup, help="Look after guarded tasks: their schema, their runs, their workers.")
def guard() -> None:
    """Group the commands of celery_guard."""
