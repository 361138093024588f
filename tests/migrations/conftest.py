"""What a schema is made of, to compare two databases."""

import psycopg
import pytest

CATALOGS = {
    "tables": """
        select relname, relkind, reloptions, relpersistence, pg_get_expr(relpartbound, oid) as bounds,
            (select array_agg(a::text order by a::text) from unnest(relacl) a) as grants
        from pg_class where relnamespace = 'postrow'::regnamespace and relkind in ('r', 'p', 'c', 'v', 'S')
        order by relname""",
    "columns": """
        select c.relname, a.attname, a.attnum, format_type(a.atttypid, a.atttypmod), a.attnotnull, l.collname,
            pg_get_expr(d.adbin, d.adrelid)
        from pg_attribute a join pg_class c on c.oid = a.attrelid
        left join pg_collation l on l.oid = a.attcollation
        left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
        where c.relnamespace = 'postrow'::regnamespace and c.relkind in ('r', 'p', 'c') and a.attnum > 0
        order by 1, 3""",
    "indexes": """
        select i.indexrelid::regclass::text, pg_get_indexdef(i.indexrelid), i.indisvalid
        from pg_index i join pg_class c on c.oid = i.indrelid
        where c.relnamespace = 'postrow'::regnamespace order by 1""",
    "constraints": """
        select conrelid::regclass::text, conname, pg_get_constraintdef(oid) from pg_constraint
        where connamespace = 'postrow'::regnamespace order by 1, 2""",
    "functions": """
        select p.oid::regprocedure::text, pg_get_functiondef(p.oid),
            (select array_agg(a::text order by a::text) from unnest(p.proacl) a)
        from pg_proc p where p.pronamespace = 'postrow'::regnamespace order by 1""",
    "schema": """
        select (select array_agg(a::text order by a::text) from unnest(nspacl) a)
        from pg_namespace where nspname = 'postrow'""",
    "settings": "select * from postrow.setting order by name",
    "migrations": "select version, name, checksum from postrow.migration order by version",
    "function files": "select name, checksum from postrow.function_file order by name",
}


def read(dsn):
    with psycopg.connect(dsn) as conn:
        return {name: conn.execute(statement).fetchall() for name, statement in CATALOGS.items()}


@pytest.fixture
def catalog(server, template):
    """Asserts that a database has the whole schema: the same as one that was migrated undisturbed."""
    expected = read(server.dsn(template))

    def is_whole(dsn):
        found = read(dsn)
        for name, rows in expected.items():
            assert found[name] == rows, name

    return is_whole
