"""A private Postgres for development and tests: find its programs, start it, stop it.

`Server` is a server of our own. `serve` joins one that already runs on the folder, or starts one.
`resolve` is what a DSN like ``embedded:`` or ``embedded:/some/folder`` means.
"""

from postrow.embedded.binaries import find_binaries
from postrow.embedded.dsn import resolve
from postrow.embedded.folders import default_data_dir
from postrow.embedded.server import Server, serve

__all__ = ["Server", "default_data_dir", "find_binaries", "resolve", "serve"]
