"""``{life-cycle}`` and ``{sequence}``: pictures in the pages, made when they are built; no script, no other server."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective
from svg import life_cycle, read_sequence, sequence

from celery_guard.core.states import MOVES


class _Picture(SphinxDirective):
    def draw(self, serial: str) -> str:
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        serial = str(self.env.new_serialno("picture"))
        try:
            svg = self.draw(serial)
        except (KeyError, ValueError) as error:
            raise self.error(str(error)) from error
        return [nodes.raw("", f'<div class="picture">{svg}</div>', format="html")]


class LifeCycle(_Picture):
    """``{life-cycle}``: the states and moves of the code."""

    def draw(self, serial: str) -> str:
        moves = {state.value: sorted(target.value for target in targets) for state, targets in MOVES.items()}
        return life_cycle(moves, serial=serial)


class Sequence(_Picture):
    """``{sequence} TITLE`` with the option ``actors``: who tells whom what; see :func:`svg.read_sequence`."""

    has_content = True
    required_arguments = 1
    final_argument_whitespace = True
    option_spec = {"actors": directives.unchanged_required}  # noqa: RUF012  # docutils' own way

    def draw(self, serial: str) -> str:
        actors = [actor.strip() for actor in self.options["actors"].split(",")]
        return sequence(self.arguments[0], actors, read_sequence(self.content), serial=serial)


def setup(app: Any) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("life-cycle", LifeCycle)
    app.add_directive("sequence", Sequence)
    app.add_css_file("pictures.css")
    return {"parallel_read_safe": True}
