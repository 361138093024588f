import inspect
import re

import psycopg
import pytest

import postrow
from postrow import errors, sql
from postrow.drivers import psycopg3
from postrow.errors import BY_SQLSTATE, PostrowError, from_sqlstate
from postrow.ops import Op

CLIENT_ONLY = {
    "PW001",  # not in a transaction
    "PW007",  # too many hops
    "PW008",  # the schema does not fit
}
CLASSES = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, PostrowError)]


def codes_in_the_sql():
    texts = [statement for file in (*sql.migrations(), *sql.functions()) for statement in file.statements]
    return set(re.findall(r"errcode = '(\w{5})'", "\n".join(texts)))


def codes_in_comments_and_code():
    texts = [statement for file in (*sql.migrations(), *sql.functions()) for statement in file.statements]
    return set(re.findall(r"\bPW\d{3}\b", "\n".join(texts)))


def test_every_code_that_the_sql_raises_has_a_class():
    assert codes_in_the_sql() <= set(BY_SQLSTATE)
    assert codes_in_comments_and_code() <= set(BY_SQLSTATE)


def test_every_code_of_ours_is_raised_by_the_sql_or_by_the_client_alone():
    ours = {code for code in BY_SQLSTATE if code.startswith("PW")}
    assert ours == codes_in_the_sql() | CLIENT_ONLY
    assert not codes_in_the_sql() & CLIENT_ONLY


def test_every_class_with_a_code_of_its_own_is_in_the_table():
    own = {cls.__dict__["sqlstate"]: cls for cls in CLASSES if cls.__dict__.get("sqlstate")}
    assert own == BY_SQLSTATE


@pytest.mark.parametrize("code", sorted(BY_SQLSTATE))
def test_a_code_raised_in_the_database_is_its_class(conn, code):
    raising = Op(
        f"do $do$ begin raise exception using errcode = '{code}', message = 'it says', hint = 'do that'; end $do$",
        (),
        list,
    )
    with pytest.raises(PostrowError) as caught:
        psycopg3.execute(conn, raising)
    assert isinstance(caught.value, BY_SQLSTATE[code])
    assert caught.value.sqlstate == code
    assert caught.value.sqlstate == code
    assert caught.value.message == "it says"
    assert caught.value.hint
    if code.startswith("PW"):
        assert str(caught.value) == "it says\ndo that"
    assert isinstance(caught.value.__cause__, psycopg.Error)
    assert caught.value.__cause__.sqlstate == code


@pytest.mark.parametrize(
    ("code", "message", "expected"),
    [
        ("42883", "function postrow.enqueue(text) does not exist", errors.SchemaMismatchError),
        ("42P01", "Relation »postrow.dead_letter« existiert nicht", errors.SchemaMismatchError),
        ("3F000", 'schema "postrow" does not exist', errors.SchemaMismatchError),
        ("42704", 'type "postrow.claimed" does not exist', errors.SchemaMismatchError),
        ("42883", "function mine(text) does not exist", None),
        ("42P01", 'relation "orders" does not exist', None),
        ("22003", "value overflows numeric format", errors.BadArgumentError),
        ("22008", "timestamp out of range", errors.BadArgumentError),
        ("54000", "total size of jsonb array elements exceeds the maximum", errors.PayloadError),
        ("XX000", "invalid memory alloc request size 1073741824", errors.PayloadError),  # of [1, 1, ...], 50 MB of it
        ("XX000", "could not find tuple", None),
        ("23505", "duplicate key", None),
        ("57014", "canceling statement", None),
        ("40P01", "deadlock detected", None),
        (None, "the connection is closed", None),
        (None, 'schema "postrow" does not exist', None),
    ],
)
def test_what_postgres_raises_itself(code, message, expected):
    found = from_sqlstate(code, message)
    assert type(found) is (expected or type(None))


def test_a_schema_that_does_not_fit_says_what_to_run():
    assert from_sqlstate("3F000", 'schema "postrow" does not exist').hint == "Run: postrow migrate"


def test_a_statement_of_ours_on_a_missing_function_is_a_schema_mismatch(conn):
    with pytest.raises(errors.SchemaMismatchError, match="does not fit this package"):
        psycopg3.execute(conn, Op("select postrow.not_there($1::int)", (1,), list))


def test_every_class_has_an_exit_code_and_a_sentence():
    for cls in CLASSES:
        assert 1 <= cls.exit_code <= 5
        assert cls.__doc__
        assert cls.__doc__ != PostrowError.__doc__ or cls is PostrowError


def test_every_class_is_a_public_name():
    assert {cls.__name__ for cls in CLASSES} <= set(postrow.__all__)


def test_an_error_shows_its_message_and_the_next_step():
    error = postrow.BadNameError("queue is bad", hint="Name it well.")
    assert (error.message, error.hint, str(error)) == ("queue is bad", "Name it well.", "queue is bad\nName it well.")
    assert str(postrow.BadNameError("queue is bad")) == "queue is bad"
