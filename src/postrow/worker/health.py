"""Pages for an orchestrator: /live, the process does its work or can; /ready, it has its database; /metrics."""

from __future__ import annotations

import json
import logging
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer

from postrow.errors import BadArgumentError

log = logging.getLogger("postrow.worker")

PLAIN = "text/plain; charset=utf-8"
NO_METRICS = "There are no metrics: the library is not installed. Run: pip install 'postrow[metrics]'\n"


@dataclass(frozen=True, slots=True)
class Health:
    """`live` false: restart it. `ready` false: it waits for its database, or is stopping."""

    live: bool
    ready: bool
    detail: dict[str, object]


Metrics = Callable[[str], tuple[str, bytes]]
"""Gives the page of metrics, its content type and its text, in the format that an Accept header asks for."""


class HealthServer:
    """Serves GET /live and /ready on a thread: 200 or 503, and the detail as JSON; and /metrics.

    Args:
        address: host and port; port 0 takes a free one.
        look: gives the health now; called on the server's threads.
        metrics: gives the page of metrics, on them too; None: there is none, since the library is missing.

    Raises:
        BadArgumentError: the address cannot be had; the message names it and says why.
    """

    def __init__(self, address: tuple[str, int], look: Callable[[], Health], *, metrics: Metrics | None = None) -> None:
        class Pages(BaseHTTPRequestHandler):
            server_version = "postrow"
            sys_version = ""
            timeout = 10.0  # seconds for a silent client: each has a thread

            def do_GET(self) -> None:  # the name that http.server calls
                path = self.path.partition("?")[0]
                if path == "/metrics":
                    self._metrics()
                    return
                health = look()
                known = {"/live": health.live, "/ready": health.ready}
                if path not in known:
                    self._answer(404, PLAIN, b"Ask for /live, /ready or /metrics.\n")
                    return
                self._answer(200 if known[path] else 503, "application/json", json.dumps(asdict(health)).encode())

            def _metrics(self) -> None:
                if metrics is None:
                    self._answer(404, PLAIN, NO_METRICS.encode())
                    return
                try:
                    kind, body = metrics(", ".join(self.headers.get_all("Accept", [])))
                except Exception:
                    log.exception("the page /metrics could not be made")
                    self._answer(500, PLAIN, b"The page could not be made: see the worker's log.\n")
                else:
                    self._answer(200, kind, body)

            def _answer(self, code: int, kind: str, body: bytes) -> None:
                self.send_response(code)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_args: object) -> None:
                """Say nothing: it is asked every few seconds."""

        self._server = _server(address, Pages)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="postrow-health", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], pages: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, pages)

    def server_bind(self) -> None:
        """Without the look-up of this host's name that the library makes: a slow resolver holds up nothing."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def handle_error(self, *_args: object) -> None:
        """A client that went away, as a check of the port alone does, is no event; all else is a bug of ours."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            log.error("a health page could not be made", exc_info=error)


def _server(address: tuple[str, int], pages: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    try:
        return _Server(address, pages)
    except (OSError, OverflowError) as error:  # the latter of a port that there is not
        host, port = address
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        raise BadArgumentError(
            f"cannot serve health pages on {place}: {getattr(error, 'strerror', None) or error}",
            hint="Give a free port, and an address of this machine.",
        ) from error
