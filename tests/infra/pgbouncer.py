"""A pgbouncer in front of a PostgreSQL."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import make_url

from tests.infra.processes import Process, free_port, listens
from tests.infra.servers import MissingServer, unprivileged_user

_CONFIG = """\
[databases]
* = host={host} port={port} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own_port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {connections}
"""


@contextmanager
def pgbouncer(url: str, *, connections: int) -> Iterator[str]:
    """Give a URL that leads to the same database through so many connections, each lent for one transaction.

    Raises:
        MissingServer: there is no program for it.
    """
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        raise MissingServer("no pgbouncer: apt-get install pgbouncer")
    folder, server, user, port = (
        Path(tempfile.mkdtemp(prefix="guard-pgbouncer-")),
        make_url(url),
        unprivileged_user(),
        free_port(),
    )
    try:
        config = folder / "pgbouncer.ini"
        config.write_text(
            _CONFIG.format(
                host=server.host,
                port=server.port or 5432,
                user=server.username or "postgres",
                own_port=port,
                connections=connections,
            )
        )
        if user is not None:
            shutil.chown(folder, user)
        process = Process([program, str(config)], name="pgbouncer", folder=folder, user=user)
        process.start()
        try:
            process.wait_until(lambda: listens(port), within=15)
            yield server.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
        finally:
            process.destroy()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
