"""Start the server process until it takes connections, and end it in each of the known ways."""

from __future__ import annotations

import itertools
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from postrow.embedded.cluster import Cluster
from postrow.embedded.postmaster import children_of, is_gone, read_pid_file, wait_until
from postrow.embedded.spawn import spawn
from postrow.errors import EmbeddedServerError

Mode = Literal["fast", "immediate", "smart"]

HOST = "127.0.0.1"
START_SECONDS = 30.0
STOP_SECONDS = 60.0
RETRY_SECONDS = 20.0  # of those 30: how long to wait for a port, or for memory that orphans still use
# Not in the range that systems give to outgoing connections (32768 and up, or 49152 and up): there a
# port can be lost to a client between kill and start, and a client that polls it can meet itself.
PORTS = range(20_000, 32_768)
SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}


@dataclass(frozen=True, slots=True)
class Launch:
    """All that a start needs, but the port."""

    cluster: Cluster
    bin_dir: Path
    settings: Mapping[str, str]

    def run(self, ports: Iterator[int]) -> tuple[subprocess.Popen[bytes], int]:
        """The running server and its port: the first of `ports` that it can have.

        Raises:
            EmbeddedServerError: it ended, or takes no connections within 30 s; with the log's tail.
        """
        begin = time.monotonic()
        port = next(ports)
        while True:
            process, start = self._spawn(port)
            data = self.cluster.data
            try:
                settled = wait_until(
                    lambda: process.poll() is not None or _accepts(process.pid, data),  # noqa: B023 - called at once
                    seconds=begin + START_SECONDS - time.monotonic(),
                )
            except BaseException:  # Ctrl-C: nobody would know of the process
                crash(process)
                raise
            if settled:
                if process.poll() is None:
                    return process, port
                tail = self.cluster.log_tail(start)
                following = next(ports, None) if "Address already in use" in tail else None
                # Children of a server that was killed may still be ending.
                shared = "pre-existing shared memory block" in tail
                if (following or shared) and time.monotonic() < begin + RETRY_SECONDS:
                    time.sleep(0 if following not in {None, port} else 0.1)
                    port = following or port
                    continue
                why = "ended at once" if "Address already in use" not in tail else f"cannot have port {port}"
            else:
                end(process, "immediate")
                tail = self.cluster.log_tail(start)
                why = f"took no connections within {START_SECONDS:.0f} s"
            raise EmbeddedServerError(
                f"The server of {data} {why}. Its log says:\n{tail}",
                hint=f"The whole log: {self.cluster.log}",
            )

    def _spawn(self, port: int) -> tuple[subprocess.Popen[bytes], int]:
        """The process, and where in the log its words begin."""
        settings = {
            "unix_socket_directories": "",
            "password_encryption": "scram-sha-256",
            **self.settings,
            "listen_addresses": HOST,
            "port": str(port),
            "logging_collector": "off",  # so that the log is where we read it
        }
        options = itertools.chain.from_iterable(("-c", f"{name}={value}") for name, value in settings.items())
        command: list[str | Path] = [self.bin_dir / "postgres", "-D", self.cluster.data, *options]
        left = read_pid_file(self.cluster.data)
        # We know that the server which left its pid file is dead; Postgres believes it alive when a stranger
        # has its number now (the rule in containers). It never takes its parents for a server, so we call
        # the stranger its grandparent. To delete the file instead would lose Postgres's own check that no
        # child of the dead server still writes.
        extra = {"PG_GRANDPARENT_PID": str(left.pid)} if left else {}
        with self.cluster.open_log() as log:
            start = log.tell()
            return spawn(command, account=self.cluster.account, output=log, extra=extra), start


def _accepts(pid: int, data: Path) -> bool:
    found = read_pid_file(data)
    return found is not None and found.pid == pid and found.accepts


def free_ports() -> Iterator[int]:
    """Ports on loopback that nobody listened on a moment ago, twenty at most."""
    found = 0
    for _ in range(1000):
        port = secrets.choice(PORTS)
        if is_free(port):
            yield port
            found += 1
            if found == 20:
                return
    if not found:
        raise EmbeddedServerError(f"No port from {PORTS.start} to {PORTS.stop - 1} is free.", hint="Name one: port=…")


def is_free(port: int) -> bool:
    """Whether a server could listen on this port just now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Postgres does
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def end(process: subprocess.Popen[bytes], mode: Mode) -> None:
    """Stops the server and waits; a fast stop that takes more than a minute becomes a hard one.

    Raises:
        EmbeddedServerError: a smart stop, and clients are still connected after a minute.
    """
    process.send_signal(SIGNALS[mode])
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        if mode == "smart":
            raise EmbeddedServerError(
                f"Clients are still connected to the server {STOP_SECONDS:.0f} s after a smart stop.",
                hint='Close them, or stop(mode="fast"), which ends their sessions.',
            ) from None
        crash(process)


def crash(process: subprocess.Popen[bytes]) -> None:
    """Kills the server and all its children, as a power cut would, and waits until they are gone."""
    if process.poll() is not None:
        return
    # Stopped, it makes no more children and reaps none: the list is whole and no number in it is used again.
    process.send_signal(signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)
    children = children_of(process.pid)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    process.kill()
    process.wait()
    if not wait_until(lambda: all(is_gone(pid) for pid in children), seconds=STOP_SECONDS):
        raise EmbeddedServerError(f"Children of the killed server do not end: {children}.")
