"""What an application is told whose connections prepare statements behind a pooler in transaction mode."""

import asyncpg
import psycopg
import pytest
from pgbouncer import POOLED, prepares, program

import postrow

pytestmark = pytest.mark.skipif(POOLED, reason="it starts poolers of its own")
NOTE = "Prepare none: connect with prepare_threshold=None (psycopg) or statement_cache_size=0 (asyncpg)"


@pytest.fixture
def pooler(bouncer, committed):
    return bouncer(committed, **({"max_prepared_statements": 0} if program() and prepares() else {}))


def test_psycopgs_error_has_a_note_of_what_to_set(pooler, stored):
    with psycopg.connect(pooler.dsn(), prepare_threshold=0) as conn, psycopg.connect(pooler.dsn()) as other:
        postrow.enqueue(conn, "q", 1)
        conn.commit()
        other.execute("select 1")  # has the session in which the statement is prepared
        with pytest.raises(psycopg.errors.InvalidSqlStatementName) as caught:
            postrow.enqueue(conn, "q", 2)
        assert any(NOTE in note for note in caught.value.__notes__)
        conn.rollback()
        conn.prepare_threshold = None
        postrow.enqueue(conn, "q", 3)
        conn.commit()
    assert stored() == [1, 3]


async def test_asyncpgs_error_has_it_too(pooler, stored):
    conn, other = await asyncpg.connect(pooler.dsn()), await asyncpg.connect(pooler.dsn(), statement_cache_size=0)
    try:
        async with conn.transaction():
            await postrow.enqueue(conn, "q", 1)
        with pytest.raises(asyncpg.InvalidSQLStatementNameError) as caught:  # noqa: PT012  # a block in a block
            async with other.transaction():
                await other.execute("select 1")
                async with conn.transaction():
                    await postrow.enqueue(conn, "q", 2)
        assert any(NOTE in note for note in caught.value.__notes__)
        async with other.transaction():
            await postrow.enqueue(other, "q", 3)
    finally:
        await conn.close()
        await other.close()
    assert stored() == [1, 3]
