"""Pictures as SVG text: the life of a run, and sequence diagrams. Colours come from ``_static/pictures.css``."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from html import escape

__all__ = ["Cross", "Message", "Note", "life_cycle", "read_sequence", "sequence"]

Point = tuple[float, float]

BOX = (132, 44)
#: Where each state stands; what may follow what comes from the table of moves.
PLACES: Mapping[str, Point] = {
    "succeeded": (280, 90),
    "failed": (440, 90),
    "queued": (110, 200),
    "running": (360, 200),
    "retrying": (610, 200),
    "dead": (235, 320),
    "cancelled": (485, 320),
}
#: What the longer ways are called.
VERBS: Mapping[frozenset[str], tuple[Point, str]] = {
    frozenset({"queued", "running"}): ((235, 192), "claim"),
    frozenset({"running", "retrying"}): ((485, 192), "retry, snooze"),
    frozenset({"queued", "retrying"}): ((360, 26), "due again, put back"),
}


def life_cycle(moves: Mapping[str, Iterable[str]], *, serial: str) -> str:
    """Draw the states and every move between them.

    Args:
        moves: the states that may follow each state.
        serial: what makes the picture's own ids unique on its page.

    Raises:
        ValueError: a state has no place in the picture.
    """
    if set(moves) != set(PLACES):
        raise ValueError(f"the picture has places for {sorted(PLACES)}, and the states are {sorted(moves)}")
    pairs = {(source, target) for source, targets in moves.items() for target in targets}
    drawn = sorted(pair for pair in pairs if (pair[1], pair[0]) not in pairs or pair[0] < pair[1])
    parts = [_way(source, target, both=(target, source) in pairs, serial=serial) for source, target in drawn]
    parts += [_text(at, words) for at, words in VERBS.values()]
    parts += [_state(name, terminal=not list(moves[name])) for name in moves]
    said = "; ".join(f"{source} to {target}" for source, target in sorted(pairs))
    return _svg(720, 360, parts, title="The life of a run", description=said, serial=serial)


def _state(name: str, *, terminal: bool) -> str:
    (x, y), (width, height) = PLACES[name], BOX
    kind = "terminal" if terminal else "live"
    box = f'<rect class="{kind}" x="{x - width / 2}" y="{y - height / 2}" width="{width}" height="{height}" rx="8"/>'
    return box + _text((x, y + 5), name, "state")


def _way(source: str, target: str, *, both: bool, serial: str) -> str:
    ends = f'marker-end="url(#arrow-{serial})"' + (f' marker-start="url(#arrow-{serial})"' if both else "")
    if {source, target} == {"queued", "retrying"}:  # around the endings that only a running one has
        (left, y), (right, _) = PLACES["queued"], PLACES["retrying"]
        y -= BOX[1] / 2 + 2
        return f'<path class="way" {ends} d="M{left} {y} V44 q0 -10 10 -10 H{right - 10} q10 0 10 10 V{y}"/>'
    begin, end = _border(PLACES[source], PLACES[target]), _border(PLACES[target], PLACES[source])
    return f'<path class="way" {ends} d="M{begin[0]:.1f} {begin[1]:.1f} L{end[0]:.1f} {end[1]:.1f}"/>'


def _border(of: Point, towards: Point) -> Point:
    """Return where the line between two boxes leaves the first, with a little air."""
    dx, dy = towards[0] - of[0], towards[1] - of[1]
    reach = [(BOX[0] / 2 + 3) / abs(dx) if dx else 9.0, (BOX[1] / 2 + 3) / abs(dy) if dy else 9.0]
    return of[0] + dx * min(reach), of[1] + dy * min(reach)


@dataclass(frozen=True)
class Message:
    """One says something to another."""

    source: str
    target: str
    words: str


@dataclass(frozen=True)
class Note:
    """What happens at one of them."""

    actor: str
    words: str


@dataclass(frozen=True)
class Cross:
    """One of them is gone from here on."""

    actor: str
    words: str


Event = Message | Note | Cross

_MESSAGE = re.compile(r"(.+?) -> (.+?): (.+)")
_CROSS = re.compile(r"(.+?) x (.+)")
_NOTE = re.compile(r"(.+?): (.+)")

COLUMN, HEAD, LINE, GAP = 150, 40, 15, 16
LETTER = 6.1  # about the width of one, in the font of the words


def read_sequence(lines: Iterable[str]) -> Iterator[Event]:
    """Read ``a -> b: words``, ``a: words`` and ``a x words``.

    Raises:
        ValueError: a line is none of these.
    """
    for line in filter(None, map(str.strip, lines)):
        if found := _MESSAGE.fullmatch(line):
            yield Message(*found.groups())
        elif found := _CROSS.fullmatch(line):
            yield Cross(*found.groups())
        elif found := _NOTE.fullmatch(line):
            yield Note(*found.groups())
        else:
            raise ValueError(f"not 'a -> b: words', 'a: words' or 'a x words': {line!r}")


def sequence(title: str, actors: list[str], events: Iterable[Event], *, serial: str) -> str:
    """Draw who tells whom what, from top to bottom."""
    columns = {actor: COLUMN * (i + 0.5) for i, actor in enumerate(actors)}
    parts: list[str] = []
    gone: dict[str, float] = {}
    said: list[str] = []
    y = float(HEAD)
    for event in events:
        drawn, y = _event(event, columns, y, serial)
        parts += drawn
        said.append(" ".join(str(value) for value in vars(event).values()))
        if isinstance(event, Cross):
            gone[event.actor] = y - GAP / 2
    height = y + GAP
    lives = [
        f'<path class="lifeline" d="M{x} {HEAD - 8} V{gone.get(actor, height - 4)}"/>' for actor, x in columns.items()
    ]
    heads = [_head(x, actor) for actor, x in columns.items()]
    return _svg(
        COLUMN * len(actors), height, [*lives, *heads, *parts], title=title, description="; ".join(said), serial=serial
    )


def _head(x: float, actor: str) -> str:
    width = COLUMN - 14
    return f'<rect class="live" x="{x - width / 2}" y="4" width="{width}" height="26" rx="5"/>' + _text((x, 21), actor)


def _event(event: Event, columns: Mapping[str, float], y: float, serial: str) -> tuple[list[str], float]:
    if isinstance(event, Message):
        begin, end = columns[event.source], columns[event.target]
        lines = textwrap.wrap(event.words, int(max(abs(end - begin) - 14, 60) / LETTER))
        texts, y = _lines((begin + end) / 2, y + GAP, lines)
        inset = 4 if end > begin else -4
        ends = f'marker-end="url(#arrow-{serial})"'
        arrow = f'<path class="way" {ends} d="M{begin} {y + 3} H{end - inset}"/>'
        return [*texts, arrow], y + 6
    x = columns[event.actor]
    lines = textwrap.wrap(event.words, int((COLUMN - 16) / LETTER))
    texts, bottom = _lines(x, y + GAP + 4, lines)
    height = LINE * len(lines) + 8
    kind = "cross" if isinstance(event, Cross) else "note"
    box = f'<rect class="{kind}" x="{x - COLUMN / 2 + 4}" y="{y + 7}" width="{COLUMN - 8}" height="{height}" rx="3"/>'
    return [box, *texts], bottom + 11


def _lines(x: float, y: float, lines: list[str]) -> tuple[list[str], float]:
    """Set lines one below the other; return them, and the base of the last one."""
    return [_text((x, y + LINE * i), words) for i, words in enumerate(lines)], y + LINE * (len(lines) - 1)


def _text(at: Point, words: str, kind: str = "words") -> str:
    return f'<text class="{kind}" x="{at[0]}" y="{at[1]}" text-anchor="middle">{escape(words)}</text>'


def _svg(width: float, height: float, parts: Iterable[str], *, title: str, description: str, serial: str) -> str:
    arrow = (
        f'<defs><marker id="arrow-{serial}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7"'
        ' orient="auto-start-reverse"><path class="head" d="M0 0 L10 5 L0 10 z"/></marker></defs>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width:.0f} {height:.0f}"'
        f' width="{width:.0f}" height="{height:.0f}">'
        f"<title>{escape(title)}</title><desc>{escape(description)}</desc>{arrow}{''.join(parts)}</svg>"
    )
