"""pytest fixtures: `pytest_plugins = ["postrow.testing.fixtures"]` in the top conftest.py.

Not an entry point of pytest's: that would load this package into every test run on the machine's environment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from postrow.testing.clocks import Clock, clock
from postrow.testing.databases import Databases

__all__ = ["postrow_clock", "postrow_conn", "postrow_dsn", "postrow_prepare", "postrow_server"]


@pytest.fixture(scope="session")
def postrow_prepare() -> Callable[[str], object] | None:
    """Override it to give a function that makes your own tables: it is called once, with the template's DSN."""
    return None


@pytest.fixture(scope="session")
def postrow_server(postrow_prepare: Callable[[str], object] | None) -> Iterator[Databases]:
    """A private Postgres for this test process, or the one that POSTROW_TEST_DSN names."""
    with Databases(prepare=postrow_prepare) as databases:
        yield databases


@pytest.fixture
def postrow_dsn(postrow_server: Databases) -> Iterator[str]:
    """The DSN of a fresh database with the schema, for this test alone."""
    with postrow_server.new() as dsn:
        yield dsn


@pytest.fixture
def postrow_conn(postrow_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A psycopg connection to the test's database, not in autocommit mode; what is not committed is rolled back."""
    conn = psycopg.connect(postrow_dsn)
    try:
        yield conn
    finally:
        conn.close()


@pytest.fixture
def postrow_clock(postrow_dsn: str) -> Iterator[Clock]:
    """The clock of the test's database, to be moved."""
    with clock(postrow_dsn) as moved:
        yield moved
