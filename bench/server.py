"""The private, durable server of the benchmarks, in the state of one that has worked for a while."""

from contextlib import contextmanager

import psycopg

from postrow.embedded import Server

SEGMENTS = 256  # of 16 MB: `min_wal_size`
SETTINGS = {  # fsync and synchronous_commit are on by default
    "shared_buffers": "256MB",
    "min_wal_size": "4GB",
    "max_wal_size": "8GB",
}


@contextmanager
def serving(bin_dir=None, *, smoke=False, **settings):
    """The server, running; the programs of `bin_dir`, or the embedded ones. For a smoke run it is as new as it is."""
    with Server(bin_dir=bin_dir, settings=SETTINGS | settings) as server:
        if not smoke:
            leave_segments(server)
        yield server


def leave_segments(server):
    """Write 4 GB of WAL, whose files are written over from then on.

    A new server has none, and to make one takes some 80 ms in which nobody's commit goes on: 5,000 messages a second
    need one each two seconds.
    """
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        for _ in range(SEGMENTS):
            conn.execute("select pg_logical_emit_message(false, 'bench', '')")
            conn.execute("select pg_switch_wal()")
        conn.execute("checkpoint")
