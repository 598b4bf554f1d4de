"""Metrics in a web app of yours. Needs ``pip install 'celery-guard[prometheus]'``.

.. code-block:: python

    api.mount("/metrics", metrics_asgi(celery_app))  # FastAPI, Starlette
"""

from __future__ import annotations

import asyncio
from typing import Any

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import choose_encoder

from celery_guard.flow.guard import guard_of
from celery_guard.observe.metrics import GuardCollector

__all__ = ["metrics_asgi", "metrics_registry", "metrics_wsgi"]


def metrics_registry(app: Any, registry: CollectorRegistry | None = None) -> CollectorRegistry:
    """Register the metrics of an app's runs.

    Args:
        app: the Celery app.
        registry: where they are registered, beside metrics of yours; a new one by default.

    Returns:
        The registry. Reading it costs about ten statements; it may be read in any process, and in several.

    Raises:
        ValueError: the registry has metrics of these names already.
    """
    registry = CollectorRegistry() if registry is None else registry
    registry.register(GuardCollector(guard_of(app).tallies))
    return registry


def metrics_asgi(app: Any, registry: CollectorRegistry | None = None) -> Any:
    """Return an ASGI app that answers scrapes, each in a thread, so that the event loop never waits for the database.

    Args:
        app: the Celery app.
        registry: as in :func:`metrics_registry`.
    """
    registry = metrics_registry(app, registry)

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        accepted = [value.decode("latin-1") for name, value in scope["headers"] if name.lower() == b"accept"]
        encode, content_type = choose_encoder(",".join(accepted))
        body = await asyncio.to_thread(encode, registry)
        headers = [(b"content-type", content_type.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return answer


def metrics_wsgi(app: Any, registry: CollectorRegistry | None = None) -> Any:
    """Return a WSGI app that answers scrapes.

    Args:
        app: the Celery app.
        registry: as in :func:`metrics_registry`.
    """
    return make_wsgi_app(metrics_registry(app, registry))
