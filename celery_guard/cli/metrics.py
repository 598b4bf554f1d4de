"""``guard metrics``."""

from __future__ import annotations

from typing import Any

import click

from celery_guard.cli.access import guard_for
from celery_guard.cli.output import JSON, print_json

__all__ = ["metrics"]


@click.command(help="Answer Prometheus at http://HOST:PORT/metrics, until it is interrupted.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on; 0.0.0.0 is every one.")
@click.option("--port", type=click.IntRange(0, 65_535), default=9808, show_default=True, help="0 takes a free one.")
@click.option("--once", is_flag=True, help="Print the metrics as a scrape gets them, and end; so does --json.")
@JSON
@click.pass_context
def metrics(ctx: click.Context, host: str, port: int, once: bool, as_json: bool) -> None:
    """Serve the metrics of one namespace."""
    try:
        from prometheus_client import CollectorRegistry, generate_latest, start_http_server
    except ImportError:
        raise click.ClickException("install it first: pip install 'celery-guard[prometheus]'") from None
    from celery_guard.observe.metrics import GuardCollector

    guard = guard_for(ctx)
    guard.runs.clock()  # a database that is away, or not migrated, is told here rather than to Prometheus
    registry = CollectorRegistry()
    registry.register(GuardCollector(guard.tallies))
    if as_json:
        print_json([_sample(one) for family in registry.collect() for one in family.samples])
        return
    if once:
        click.echo(generate_latest(registry), nl=False)
        return
    try:
        server, thread = start_http_server(port, host, registry)
    except (OSError, UnicodeError) as error:
        raise click.ClickException(f"can't listen on {host}:{port}: {error}") from None
    click.echo(f"metrics of {guard.settings.namespace} at http://{host}:{server.server_port}/metrics")
    try:
        thread.join()
    finally:
        server.shutdown()
        server.server_close()


def _sample(sample: Any) -> dict[str, Any]:
    return {"name": sample.name, "labels": sample.labels, "value": sample.value}
