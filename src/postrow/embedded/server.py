"""The server as its users hold it: start, stop, kill, join."""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self
from urllib.parse import quote

from postrow.embedded.account import server_account
from postrow.embedded.binaries import find_binaries, reachable_binaries, version_of
from postrow.embedded.cluster import USER, Cluster
from postrow.embedded.folders import default_data_dir, temporary_folder
from postrow.embedded.launch import HOST, START_SECONDS, Launch, Mode, crash, end, free_ports, is_free
from postrow.embedded.postmaster import PidFile, is_postmaster, live_postmaster, wait_until
from postrow.errors import BadArgumentError, EmbeddedServerError

OURS = frozenset({"data_directory", "listen_addresses", "logging_collector", "port"})
NOT_DURABLE = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


class Server:
    """A private Postgres; a context manager that starts it and stops it.

    It listens on loopback only and ends with this process, on Linux also when that is killed. A process
    made by `fork` sees it, and does not stop it. Methods may be called from any thread.

    Args:
        data: The data folder. None: a temporary one, removed at stop.
        bin_dir: The folder with Postgres's programs. None: see `find_binaries`.
        port: 0: a free one. It stays the same over later starts of this object.
        settings: More of ``postgresql.conf``, such as ``{"max_connections": "200"}``.
        durable: False, for tests: faster, and a crash of the *machine* may destroy the data.

    Raises:
        BadArgumentError: `settings` has a setting that Postrow sets itself, such as the port.
    """

    _joins: ClassVar[bool] = False

    def __init__(
        self,
        data: Path | None = None,
        *,
        bin_dir: Path | None = None,
        port: int = 0,
        settings: Mapping[str, str] | None = None,
        durable: bool = True,
    ) -> None:
        refused = OURS & {name.strip().lower() for name in settings or {}}
        if refused:
            raise BadArgumentError(f"Postrow sets {', '.join(sorted(refused))} itself.", hint="Leave it out.")
        self._data = Path(data).expanduser().resolve() if data is not None else None
        self._temporary: Path | None = None
        self._asked_bin_dir = bin_dir
        self._bin_dir: Path | None = None
        self._version: str | None = None
        self._asked_port = port
        self._port = 0
        self._settings = {**({} if durable else NOT_DURABLE), **(settings or {})}
        self._durable = durable
        self._password: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._starter = os.getpid()
        self._joined: PidFile | None = None
        self._guard = threading.RLock()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = f"on port {self.port}" if self.running else "not running"
        return f"<Server {self._data or 'temporary'} {state}>"

    @property
    def data(self) -> Path:
        """The data folder.

        Raises:
            EmbeddedServerError: it is a temporary one, and the server has not been started.
        """
        if self._data is None:
            raise EmbeddedServerError("A server without a data folder gets one at its start.", hint="Call start().")
        return self._data

    @property
    def port(self) -> int:
        """The port on 127.0.0.1; before the first start what was asked for, so perhaps 0."""
        return self._port or self._asked_port

    @property
    def bin_dir(self) -> Path:
        """The folder with the programs that the server was started from, or would be."""
        return self._bin_dir or find_binaries(self._asked_bin_dir)

    @property
    def version(self) -> str:
        """The version of the server, such as ``18.6``."""
        if self._version is None:
            self._version = version_of(self.bin_dir)
        return self._version

    @property
    def pid(self) -> int | None:
        """The process id of the server; None when it does not run."""
        if self._process is not None and self._starter == os.getpid():
            return self._process.pid if self._process.poll() is None else None
        known = self._process.pid if self._process else self._joined.pid if self._joined else None
        return known if known is not None and is_postmaster(known, self.data) else None

    @property
    def running(self) -> bool:
        """Whether the server runs, ours or joined."""
        return self.pid is not None

    def dsn(self, database: str = "postgres") -> str:
        """A connection string for this database, as the superuser ``postrow``; it holds the password.

        Raises:
            EmbeddedServerError: the server has never been started.
        """
        if self._password is None:
            raise EmbeddedServerError("A server has no address before its first start.", hint="Call start().")
        # the server has no SSL: an environment that asks for it is meant for another one
        no_ssl = "?sslmode=disable" if os.environ.get("PGSSLMODE") else ""
        return f"postgresql://{USER}:{self._password}@{HOST}:{self._port}/{quote(database, safe='')}{no_ssl}"

    def start(self) -> Self:
        """Starts the server if it does not run, and waits until it takes connections.

        A new folder is made into a database first (about a second). After `kill` it recovers, on the
        same port.

        Raises:
            EmbeddedServerError: no Postgres is found, the folder does not fit, or the server did not take
                connections within 30 s; with the tail of its log.
        """
        with self._guard:
            if not self.running:
                try:
                    self._start()
                except OSError as error:  # a full disk, a folder that went away
                    self._clear()
                    raise EmbeddedServerError(f"The server cannot be started: {error}") from error
                except BaseException:
                    self._clear()
                    raise
            return self

    def stop(self, *, mode: Mode = "fast") -> None:
        """Stops the server if it is ours, waits for its end, and removes a temporary folder.

        `fast` ends sessions and leaves a clean database; `smart` waits for clients first, a minute at most;
        `immediate` is a crash that the next start recovers from. A server that was joined goes on.
        """
        with self._guard:
            if self._starter != os.getpid():
                return
            if self._process is not None and self.running:
                end(self._process, mode)
            self._clear()

    def kill(self) -> None:
        """Kills the server and its children (SIGKILL), and waits until they are gone: for crash tests.

        The data stays, also in a temporary folder, until `stop`. With `durable=False` the commits of the
        last moment are lost, as that asks for.

        Raises:
            EmbeddedServerError: the server was joined: it belongs to another process.
        """
        with self._guard:
            if self._process is None or self._starter != os.getpid():
                if self.running:
                    raise EmbeddedServerError(f"The server of {self.data} was started elsewhere: kill it there.")
                return
            crash(self._process)

    def _start(self) -> None:
        if self._starter != os.getpid():  # after a fork: what the parent started is not ours
            self._process, self._temporary, self._starter = None, None, os.getpid()
        account = server_account(self._data)
        if self._data is None:
            self._temporary = temporary_folder(account).resolve()
            self._data = self._temporary / "data"
        cluster = Cluster(self._data, account)
        cluster.prepare()
        with cluster.lock():
            present = self._present()
            self._process, self._joined = None, None
            if present is not None:
                self._join(cluster, present)
                return
            bin_dir = reachable_binaries(find_binaries(self._asked_bin_dir), account)
            if cluster.exists:
                cluster.check_major(bin_dir)
            else:
                cluster.initialise(bin_dir, durable=self._durable)
            password = cluster.password()
            launch = Launch(cluster=cluster, bin_dir=bin_dir, settings=self._settings)
            self._process, self._port = launch.run(self._ports(cluster))
            self._bin_dir, self._version, self._password = bin_dir, version_of(bin_dir), password
            _started_here.add(self)
            cluster.remember(port=self._port, bin_dir=bin_dir, version=self._version)

    def _present(self) -> PidFile | None:
        """A server that runs on our folder already; one that is starting or stopping is waited for."""
        found: PidFile | None = None

        def is_settled() -> bool:
            nonlocal found
            found = live_postmaster(self.data)
            return found is None or found.accepts

        if not wait_until(is_settled, seconds=START_SECONDS):
            state = f"process {found.pid} has been {found.status}" if found else "it changes"
            raise EmbeddedServerError(f"A server is on {self.data}, and {state} for {START_SECONDS:.0f} s.")
        return found

    def _join(self, cluster: Cluster, present: PidFile) -> None:
        if not self._joins:
            raise EmbeddedServerError(
                f"A server runs on {self.data} already: process {present.pid}, port {present.port}.",
                hint="Join it with postrow.embedded.serve(folder) or embedded:/folder, or stop it first.",
            )
        facts = cluster.remembered()
        self._password = cluster.password()
        self._joined, self._port = present, present.port
        self._bin_dir = Path(facts["bin_dir"]) if "bin_dir" in facts else None
        self._version = facts.get("version")

    def _ports(self, cluster: Cluster) -> Iterator[int]:
        if self._port:  # a restart of this object: its clients know the port, so wait for it
            return itertools.repeat(self._port)
        if self._asked_port:
            return iter([self._asked_port])
        last = cluster.remembered().get("port", 0)
        return itertools.chain([last] if last and is_free(last) else [], free_ports())

    def _clear(self) -> None:
        """Forgets a server that has ended, or that we joined; its address stays."""
        self._process, self._joined = None, None
        _started_here.discard(self)
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary, self._data = None, None


class _SharedServer(Server):
    """One that joins a server which already runs on its folder."""

    _joins = True


def serve(
    data: Path | None = None,
    *,
    bin_dir: Path | None = None,
    port: int = 0,
    settings: Mapping[str, str] | None = None,
    durable: bool = True,
) -> Server:
    """A running server on the folder `data` (None: `default_data_dir`): joined, or started.

    One that another process of the same user runs is joined: the other options do not matter then, and
    our `stop` leaves it running. It ends with the process that started it; a later `start` of the joined
    one starts it anew, then as ours.

    Raises:
        EmbeddedServerError: see `Server.start`.
    """
    folder = data if data is not None else default_data_dir()
    return _SharedServer(folder, bin_dir=bin_dir, port=port, settings=settings, durable=durable).start()


_started_here: set[Server] = set()


@atexit.register
def _stop_all() -> None:
    """Stops what this process has started and not stopped."""
    for server in tuple(_started_here):
        server.stop()
