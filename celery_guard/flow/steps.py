"""A run's work in named pieces: each is done once, whatever happens between the attempts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any, TypeVar

from celery_guard.core.idempotency import is_storable
from celery_guard.errors import InvalidOption, RunCancelled, StepReused, UnserializableArgument

if TYPE_CHECKING:
    from celery_guard.store.effects import EffectStore

__all__ = ["Steps", "run_step", "run_step_async"]

T = TypeVar("T")


class Steps:
    """The steps of one attempt.

    Args:
        run_id: the run.
        token: the claim that this attempt holds.
        effects: where results are kept.
    """

    def __init__(self, run_id: str, token: str, effects: EffectStore) -> None:
        self._run_id = run_id
        self._token = token
        self._effects = effects
        self._used: set[str] = set()

    def enter(self, name: str) -> None:
        """Take a name for a step.

        Raises:
            InvalidOption: the name is not text of 1 to 255 characters.
            StepReused: this attempt has used the name before.
        """
        if not isinstance(name, str) or not 0 < len(name) <= 255 or not is_storable(name):
            raise InvalidOption(f"a step's name must be text of 1 to 255 characters, not {name!r}")
        if name in self._used:
            raise StepReused(f"the step {name!r} was used before in this attempt; give each step a name of its own")
        self._used.add(name)

    def find(self, name: str) -> str | None:
        """Return the stored result of a step, encoded, where an earlier attempt has done it."""
        return self._effects.find(self._run_id, name)

    def keep(self, name: str, result: T, effects: EffectStore | None = None) -> T:
        """Store what a step returned, and return it as a later attempt would get it.

        Args:
            name: the step.
            result: what it returned: JSON.
            effects: where to store it, when that is a transaction of the caller's.

        Raises:
            UnserializableArgument: the result is not JSON.
            RunCancelled: the run is no longer this attempt's.
        """
        encoded = _encoded(name, result)
        if not (effects or self._effects).keep(self._run_id, self._token, name, encoded):
            raise RunCancelled("cancelled", f"the step {name!r} was not stored: the run {self._run_id} has moved on")
        decoded: T = json.loads(encoded)
        return decoded


def run_step(
    steps: Steps, name: str, work: Callable[..., Any], args: Any, kwargs: Any, effects: EffectStore | None = None
) -> Any:
    """Do a step, or return what it returned before."""
    steps.enter(name)
    stored = steps.find(name)
    if stored is not None:
        return json.loads(stored)
    result = work(*args, **kwargs)
    if iscoroutine(result):
        result.close()
        raise InvalidOption(f"the work of the step {name!r} is a coroutine: await step_async({name!r}, …)")
    return steps.keep(name, result, effects)


async def run_step_async(
    steps: Steps, name: str, work: Callable[[], Awaitable[Any]], keep: Callable[[Any], Awaitable[Any]]
) -> Any:
    """Do the same from a coroutine; ``keep`` stores the result."""
    steps.enter(name)
    stored = await asyncio.to_thread(steps.find, name)
    if stored is not None:
        return json.loads(stored)
    return await keep(await work())


def _encoded(name: str, result: Any) -> str:
    try:
        return json.dumps(result, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UnserializableArgument(f"the result of the step {name!r} must be JSON: {error}") from error
