"""The SQL reference has every function that a role may call, with its real signature, and every table and column."""

import re

import pytest

PAGE = "docs/reference/sql.md"
ROLES = ("producer", "worker", "admin", "reader")
TYPES = {"integer": "int", "timestamp with time zone": "timestamptz"}
SIGNATURE = re.compile(r"```text\n(\w+)\((.*?)\)\s+returns (.+?)\n```", re.DOTALL)
GRANTED = """
select p.proname, p.proargnames, p.proargmodes::text[],
    array(select format_type(u.t, null)
          from unnest(coalesce(p.proallargtypes, p.proargtypes::oid[])) with ordinality u(t, n) order by n),
    array(select pg_get_function_arg_default(p.oid, n) from generate_series(1, p.pronargs) n order by n),
    pg_get_function_result(p.oid),
    array(select distinct a.grantee::regrole::text from aclexplode(p.proacl) a where a.grantee <> p.proowner)
from pg_proc p where p.pronamespace = 'postrow'::regnamespace order by p.proname
"""

COLUMNS = """
select c.relname, a.attname, format_type(a.atttypid, null) from pg_class c join pg_attribute a on a.attrelid = c.oid
where c.relnamespace = 'postrow'::regnamespace and c.relkind in ('r', 'p', 'c') and not c.relispartition
    and a.attnum > 0 and not a.attisdropped
"""


def short(type_):
    """A type as the page writes it."""
    base = type_.removesuffix("[]")
    return TYPES.get(base, base) + type_[len(base) :]


@pytest.fixture
def functions(conn):
    """name: (parameters [(name, type, default)], result, roles) of every function that a role of ours may call."""
    found = {}
    for name, names, modes, types, defaults, result, grantees in conn.execute(GRANTED).fetchall():
        if not grantees:
            continue
        named = list(zip(names or [], modes or ["i"] * len(types), map(short, types), strict=True))
        inputs = [(n, t) for n, m, t in named if m in "ib"]
        outputs = [f"{n} {t}" for n, m, t in named if m in "tbo"]
        parameters = [(n, t, d) for (n, t), d in zip(inputs, defaults, strict=True)]
        found[name] = (parameters, ", ".join(outputs) or short(result.lower()), set(grantees))
    return found


@pytest.fixture
def sections(docs):
    return docs.page(PAGE).sections("###")


def stated(text):
    """The signature of a section: name, parameters [(name, type, default or None)], result."""
    name, inside, result = SIGNATURE.search(text).groups()
    parameters = []
    for part in filter(None, (p.strip() for p in inside.split(","))):
        declaration, _, default = (piece.strip() for piece in part.partition(" = "))
        parameter, _, type_ = declaration.partition(" ")
        parameters.append((parameter.strip('"'), type_, default or None))
    return name, parameters, " ".join(result.split()).lower()


def documented(sections):
    return {name: text for name, text in sections.items() if not name.startswith("postrow.")}


def test_every_function_that_a_role_may_call_is_documented_and_no_other(functions, sections):
    assert set(documented(sections)) == set(functions)


def test_every_signature_is_the_real_one(functions, sections, conn):
    for name, text in documented(sections).items():
        shown, parameters, result = stated(text)
        real, real_result, _ = functions[name]
        assert shown == name
        assert [p[:2] for p in parameters] == [p[:2] for p in real], name
        assert result == real_result, name
        for (parameter, type_, given), (_, _, default) in zip(parameters, real, strict=True):
            assert (given is None) == (default is None), f"{name}: {parameter}"
            if given is not None:
                same = f"select ({given})::{type_} is not distinct from ({default})::{type_}"
                assert conn.execute(same).fetchone()[0], f"{name}: {parameter} defaults to {default}"


def test_every_function_is_documented_with_the_roles_that_may_call_it(functions, sections):
    for name, text in documented(sections).items():
        line = re.search(r"^Roles: ([^.]+)\.", text, re.MULTILINE)
        assert {f"postrow_{role}" for role in line[1].split(", ")} == functions[name][2], name


def test_every_parameter_is_explained(sections, docs):
    explained = {word for code in docs.code(docs.page(PAGE).text) for word in re.findall(r"\w+", code)}
    for name, text in documented(sections).items():
        for parameter, _, _ in stated(text)[1]:
            assert parameter in explained, f"{name}: {parameter}"


def test_every_code_that_the_functions_raise_is_documented(sections, docs):
    sources = (docs.root / "src/postrow/sql/functions").glob("*.sql")
    raised = {code for path in sources for code in re.findall(r"errcode = '(PW\d{3})'", path.read_text())}
    named = {code for text in documented(sections).values() for code in re.findall(r"PW\d{3}", text)}
    assert named == raised


def test_every_table_and_column_is_documented(sections, docs, conn):
    real = {}
    for table, column, type_ in conn.execute(COLUMNS).fetchall():
        real.setdefault(f"postrow.{table}", {})[column] = short(type_)
    tables = {name: docs.rows(text) for name, text in sections.items() if name.startswith("postrow.")}
    assert tables.keys() == real.keys()
    for table, rows in tables.items():
        columns = [(name, row[1]) for row in rows for name in docs.code(row[0])]
        assert sorted(name for name, _ in columns) == sorted(real[table]), table
        for name, type_ in columns:
            assert type_ in ("", real[table][name]), f"{table}.{name}"
