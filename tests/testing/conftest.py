"""The fixtures as users have them, on the tests' own server instead of one more."""

import psycopg
import pytest

from postrow import App
from postrow.testing import Databases
from postrow.testing.fixtures import postrow_clock, postrow_conn, postrow_dsn, postrow_prepare  # noqa: F401


@pytest.fixture(scope="session")
def postrow_server(server):
    with Databases(server.dsn()) as databases:
        yield databases


@pytest.fixture
def app(postrow_dsn):  # noqa: F811
    made = App(postrow_dsn)
    yield made
    made.close()


@pytest.fixture
def rows(postrow_dsn):  # noqa: F811
    """The rows of a query, in the test's database."""
    with psycopg.connect(postrow_dsn, autocommit=True) as conn:
        yield lambda statement, params=None: conn.execute(statement, params).fetchall()
