"""Two pages for an orchestrator: /live, the process does its work or can; /ready, it has its database."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True, slots=True)
class Health:
    """`live` false: restart it. `ready` false: it waits for its database, or is stopping."""

    live: bool
    ready: bool
    detail: dict[str, object]


class HealthServer:
    """Serves GET /live and /ready on a thread: 200 or 503, and the detail as JSON.

    Args:
        address: host and port; port 0 takes a free one.
        look: gives the health now; called on the server's threads.
    """

    def __init__(self, address: tuple[str, int], look: Callable[[], Health]) -> None:
        class Pages(BaseHTTPRequestHandler):
            server_version = "postrow"
            sys_version = ""

            def do_GET(self) -> None:  # the name that http.server calls
                health = look()
                known = {"/live": health.live, "/ready": health.ready}
                if self.path not in known:
                    self.send_error(404, "ask for /live or /ready")
                    return
                body = json.dumps(asdict(health)).encode()
                self.send_response(200 if known[self.path] else 503)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_args: object) -> None:
                """Say nothing: it is asked every few seconds."""

        self._server = ThreadingHTTPServer(address, Pages)
        self._server.daemon_threads = True
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
