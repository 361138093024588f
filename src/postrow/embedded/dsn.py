"""What ``embedded:`` means where a DSN is expected."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from postrow.embedded.server import Server, serve

SCHEME = "embedded:"
DATABASE = "postrow"


def resolve(dsn: str) -> tuple[str, Server | None]:
    """A DSN that a driver understands, and the server behind it if it is ours.

    ``embedded:`` is the server on `default_data_dir`, ``embedded:/some/folder`` the one on that folder;
    the rest is a path as it stands (a leading ``~`` is your home). It is joined or started, and the
    database ``postrow`` is made if it is missing. Any other `dsn` is given back, with None.

    Raises:
        EmbeddedServerError: the server cannot be started.
    """
    if not dsn.startswith(SCHEME):
        return dsn, None
    place = dsn.removeprefix(SCHEME)
    if place.startswith("//"):  # embedded:///some/folder, as in a URL
        place = place.removeprefix("//")
    server = serve(Path(place) if place else None)
    try:
        _make_database(server)
    except BaseException:
        server.stop()
        raise
    return server.dsn(DATABASE), server


def _make_database(server: Server) -> None:
    import psycopg  # noqa: PLC0415 - heavy, and not needed to know that a DSN is not ours

    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        if connection.execute("select from pg_database where datname = %s", [DATABASE]).fetchone():
            return
        # Another process that resolves the same DSN may be first.
        with suppress(psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
            connection.execute(f"create database {DATABASE}")
