"""Classes by name: what configuration says without importing anything."""

from __future__ import annotations

import builtins
import re
import sys

from celery_guard.core.rules import Look, read

__all__ = ["is_class_name", "is_dotted", "is_named"]

_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def is_class_name(name: object) -> bool:
    """Say whether this can name an exception class: ``shop.errors.Busy``, or the bare name of a built-in."""
    return is_dotted(name) and ("." in str(name) or _is_builtin(str(name)))


def is_dotted(name: object) -> bool:
    """Say whether this is text of identifiers with dots between them."""
    return isinstance(name, str) and _DOTTED.fullmatch(name) is not None


def is_named(name: str, look: Look) -> bool:
    """Say whether the error is of the class of this name, or of a class derived from it.

    The name is that of the module that defines the class, or of any imported module that offers it.
    """
    if "." not in name:
        name = f"builtins.{name}"
    if name in look.names:
        return True
    offered = _offered(name)
    return any(cls is offered for cls in read(type(look.error), "__mro__") or ())


def _offered(name: str) -> object:
    """What an already imported module offers under this name, whether or not it defines it."""
    module, _, attribute = name.rpartition(".")
    return read(sys.modules.get(module), attribute)


def _is_builtin(name: str) -> bool:
    found = vars(builtins).get(name)
    return isinstance(found, type) and issubclass(found, BaseException)
