"""What is no handle of any library, and what is loaded when."""

import subprocess
import sys

import pytest

import postrow
from postrow.drivers import _MODULES

ANY = "psycopg 3, asyncpg, SQLAlchemy or Django"


def of_module(module, name):
    """Something that a library has, but no connection."""
    return type(name, (), {"__module__": module})()


@pytest.mark.parametrize(
    ("handle", "message", "hint"),
    [
        ("postgresql://localhost/x", "str is no transaction", "not a name or a DSN"),
        (None, "NoneType is no transaction", "not a name or a DSN"),
        (object(), "object is no transaction", ANY),
        (sys, "the module sys is no transaction", ANY),
        (of_module("sqlalchemy.orm.session", "Session"), "SQLAlchemy's Session", "Pass the connection"),
        (of_module("psycopg_pool.pool", "ConnectionPool"), "psycopg's ConnectionPool", "pool.connection()"),
        (of_module("aiopg.connection", "Connection"), r"aiopg\.connection\.Connection is no transaction", ANY),
    ],
    ids=["text", "none", "object", "module", "stranger", "pool", "another library"],
)
def test_what_no_driver_knows_is_refused_with_the_next_step(handle, message, hint):
    for call in (postrow.enqueue, postrow.enqueue_many):
        with pytest.raises(postrow.UnsupportedHandleError, match=message) as caught:
            call(handle, "q", [1])
        assert hint in caught.value.hint


@pytest.mark.parametrize("package", sorted({name for name in _MODULES if name != "psycopg_pool"}))
def test_a_driver_loads_its_own_library_and_no_other(package):
    program = f"""
import sys, importlib
import postrow.drivers
importlib.import_module(postrow.drivers._MODULES[{package!r}])
print(*sorted({{"psycopg", "asyncpg", "sqlalchemy", "django"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.split() == [package]
