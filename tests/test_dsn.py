import pytest

from postrow import dsn
from postrow.errors import BadArgumentError


@pytest.mark.parametrize(
    ("given", "plain", "pooled"),
    [
        ("postgresql://shop:a%3Fb@db:6432/shop?pgbouncer=true", "postgresql://shop:a%3Fb@db:6432/shop", True),
        ("postgres://db/shop?sslmode=require&pgbouncer=1&connect_timeout=3", None, True),
        ("POSTGRES://db/shop?pgbouncer=TRUE", "POSTGRES://db/shop", True),
        ("postgresql://db/shop?pgbouncer=false", "postgresql://db/shop", False),
        ("postgresql://db/shop?sslmode=require", "postgresql://db/shop?sslmode=require", False),
        ("postgresql://db/pgbouncer", "postgresql://db/pgbouncer", False),
        ("host=db pgbouncer=true dbname=shop", "host=db dbname=shop", True),
        ("pgbouncer = 'yes' host=db", "host=db", True),
        (r"host=db password='it\'s pgbouncer=true'", r"host=db password='it\'s pgbouncer=true'", False),
        ("embedded:", "embedded:", False),
        ("", "", False),
    ],
)
def test_a_dsn_says_whether_a_pooler_is_in_between_and_libpq_does_not_see_it(given, plain, pooled):
    expected = "postgres://db/shop?sslmode=require&connect_timeout=3" if plain is None else plain
    assert dsn.read(given) == (expected, pooled)
    assert dsn.plain(given) == expected


@pytest.mark.parametrize(
    "given", ["postgresql://db/shop?pgbouncer=ture", "host=db pgbouncer=''", "postgres://db?pgbouncer"]
)
def test_a_word_that_is_neither_true_nor_false_is_refused(given):
    with pytest.raises(BadArgumentError, match="neither true nor false") as caught:
        dsn.read(given)
    assert "pgbouncer=true" in caught.value.hint
