"""One app and one real worker for all tests of a module: what a run did is told apart by its id."""

from __future__ import annotations

from tests.acceptance.scenes import Scene


class Stage(Scene):
    """A scene for a whole module.

    Args:
        module: the app module.
        conf: the Celery configuration.
        folder: where traces and gates lie.
        start_worker: starts a worker.
        monkeypatch: to set what the app reads from the environment.
    """

    def bodies(self, run_id: str) -> int:
        """Count how often a body began."""
        return len(self.traces("begin", run_id))
