"""HTML and SVG in which every text is escaped: what is not :class:`Markup` can't become a tag."""

from __future__ import annotations

from html import escape

__all__ = ["Markup", "element"]

#: Elements of HTML that have no content, and no end tag.
_VOID = {"br", "meta"}


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(name: str, /, *content: str, **attributes: str | float | None) -> Markup:
    """Return an element.

    Args:
        name: the tag.
        content: what is inside; text is escaped unless it is :class:`Markup`.
        attributes: by name, in which ``_`` stands for ``-`` and a last ``_`` for nothing; None leaves one out.
    """
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{words}>")
    return Markup(f"<{name}{words}>{''.join(map(_escaped, content))}</{name}>")


def _escaped(content: str) -> str:
    return content if isinstance(content, Markup) else escape(content, quote=False)


def _text(value: str | float) -> str:
    return f"{value:.4f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
