"""What is documented is what exists: names, signatures, errors, commands, options, settings, in both directions."""

import ast
import dataclasses
import importlib
import inspect
import json
import re
from datetime import timedelta
from enum import Enum

import pytest
import typer

import postrow
import postrow.errors
from postrow import payload
from postrow.cli import failure, main
from postrow.cli.program import program
from postrow.errors import PostrowError
from postrow.ops.produce import Options

API = "docs/reference/api.md"


def resolved(name):
    """What a documented name stands for: enqueue, App.send, postrow.worker.Worker."""
    parts = name.removeprefix("postrow.").split(".")
    found = postrow
    for at, part in enumerate(parts):
        try:
            found = inspect.getattr_static(found, part) if inspect.isclass(found) else getattr(found, part)
        except AttributeError:
            found = importlib.import_module(".".join(("postrow", *parts[: at + 1])))
    return found


def test_every_public_name_is_in_the_api_reference_and_no_other(docs):
    documented = {name for name in docs.page(API).sections("###") if "." not in name}
    assert documented == set(postrow.__all__)


@pytest.mark.parametrize("cls", [postrow.App, postrow.Queue, postrow.Message])
def test_every_public_method_is_in_the_api_reference_and_no_other(cls, docs):
    methods = {
        f"{cls.__name__}.{name}"
        for name, member in vars(cls).items()
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property))
    }
    documented = {name for name in docs.page(API).sections("###") if name.startswith(f"{cls.__name__}.")}
    assert documented == methods


def test_every_signature_of_the_api_reference_is_the_real_one(docs):
    checked = []
    for name, text in docs.page(API).sections("###").items():
        target = resolved(name)
        shown = re.match(r"\n`([^`]*\w\([^`]*)`", text)
        if shown is None or isinstance(target, property):
            continue
        call = re.search(r"\((.*)\)", shown[1].partition(" -> ")[0], re.DOTALL)[1]
        stated = ast.parse(f"def f({call}): ...").body[0].args
        defaults = dict(zip([a.arg for a in stated.args][-len(stated.defaults) or 99 :], stated.defaults, strict=False))
        defaults |= {a.arg: d for a, d in zip(stated.kwonlyargs, stated.kw_defaults, strict=True) if d is not None}
        names = [a.arg for a in (*stated.posonlyargs, *stated.args)]
        real = inspect.signature(target).parameters.values()
        real = [p for p in real if p.name != "self" and not p.name.startswith("_")]
        positional = [p for p in real if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        assert names == [p.name.rstrip("_") if p.kind is p.POSITIONAL_ONLY else p.name for p in positional], name
        assert [a.arg for a in stated.kwonlyargs] == [p.name for p in real if p.kind is p.KEYWORD_ONLY], name
        for p in real:
            given = defaults.get(p.name)
            if isinstance(given, ast.Constant) and given.value is ...:
                continue
            expected = p.default if p.default is not p.empty else None
            assert (ast.literal_eval(given) if given is not None else None) == expected, f"{name}: {p.name}"
        checked.append(name)
    assert {"enqueue", "App.send", "Queue.consumer", "Message.extend", "Retry", "postrow.worker.Worker"} <= set(checked)


@pytest.mark.parametrize("cls", [postrow.Message, postrow.Failure, postrow.Enqueued, postrow.RetryPolicy])
def test_every_field_of_a_public_value_is_in_the_api_reference(cls, docs):
    text = " ".join(docs.code(docs.page(API).sections("###")[cls.__name__]))
    names = [field.name for field in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else cls._fields
    fields = {name for name in names if not name.startswith("_")}
    assert fields <= set(re.findall(r"\w+", text))


def test_every_option_of_a_message_is_in_the_api_reference(docs):
    rows = docs.rows(docs.page(API).sections("###")["enqueue"])
    documented = {names[0] for row in rows if (names := docs.code(row[0]))}  # the table of handles has none
    assert documented == {"id", *Options.__annotations__}


def test_every_error_is_documented_with_its_code_and_exit_code(docs):
    classes = {cls for cls in vars(postrow.errors).values() if isinstance(cls, type) and issubclass(cls, PostrowError)}
    table = docs.rows(docs.page("docs/reference/errors.md").text.partition("## Exit codes")[0])
    documented = {(row[0].strip("`"), row[1], row[2]) for row in table}
    assert documented == {(cls.__name__, cls.sqlstate or "", str(cls.exit_code)) for cls in classes}


def test_every_exit_code_is_documented(docs):
    table = docs.rows(docs.page("docs/reference/errors.md").sections("##")["Exit codes"])
    documented = {int(row[0]): row[1] for row in table}
    assert documented.items() >= failure.EXIT_CODES.items()
    assert documented.keys() - failure.EXIT_CODES.keys() == {failure.UNEXPECTED, failure.BROKEN_PIPE}


def shown_default(value):
    """How a default stands in a table."""
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g} s"
    if isinstance(value, Enum):
        return value.value
    return f"{value:g}" if isinstance(value, float) else str(value)


def test_every_command_is_documented_and_no_other(docs):
    documented = {name for name in docs.page("docs/reference/command-line.md").sections("##") if "postrow " in name}
    assert documented == set(docs.commands())


def test_every_option_of_a_command_is_documented_with_its_default(docs):
    sections = docs.page("docs/reference/command-line.md").sections("##")
    for name, command in docs.commands().items():
        table = docs.rows(sections[name])
        options = [p for p in command.params if p.param_type_name == "option"]
        documented = {option for row in table for option in docs.code(row[0])}
        assert documented == {o for p in options for o in (*p.opts, *p.secondary_opts)}, name
        usage = docs.code(sections[name])[0]
        for argument in (p for p in command.params if p.param_type_name == "argument"):
            assert (argument.metavar or argument.name.upper()).strip("[]") in usage, name
        for p in options:
            row = next(row for row in table if p.opts[0] in docs.code(row[0]))
            if p.default not in (None, "", True, False) and not callable(p.default):
                assert shown_default(p.default) == row[2].strip("`"), f"{name} {p.opts[0]}"


def test_every_option_of_the_program_is_documented(docs):
    table = docs.rows(docs.page("docs/reference/command-line.md").sections("##")["postrow"])
    documented = {option for row in table for option in docs.code(row[0])}
    options = {option for p in typer.main.get_command(program).params for option in p.opts}
    assert documented == options | {"--help", "-h"}


def test_every_check_of_the_doctor_is_documented(docs, committed, capsys):
    assert main(["doctor", "--json", "--dsn", committed]) in {0, 1}
    made = [finding["name"] for finding in json.loads(capsys.readouterr().out)]
    table = docs.rows(docs.page("docs/howto/when-something-is-wrong.md").sections("##")["What is checked"])
    assert [docs.code(row[0])[0] for row in table] == made
    assert f"of {len(made)} checks" in docs.page("docs/howto/when-something-is-wrong.md").text


def test_every_environment_variable_is_documented(docs):
    sources = (docs.root / "src/postrow").rglob("*.py")
    named = {n for path in sources for n in re.findall(r"POSTROW_[A-Z_]+", path.read_text(encoding="utf-8"))}
    private = ("POSTROW_DEMO_", "POSTROW_DEV_")  # between these commands and their workers
    named = {name for name in named if not name.startswith(private)}
    sections = docs.page("docs/reference/settings.md").sections("##")
    tables = [docs.rows(sections[name]) for name in ("Environment", "Of a Django project")]
    assert {docs.code(row[0])[0] for table in tables for row in table} == named


def test_every_setting_is_documented(docs, conn):
    sections = docs.page("docs/reference/settings.md").sections("##")
    stored = conn.execute("select name, value from postrow.setting").fetchall()
    assert {(docs.code(row[0])[0], row[2]) for row in docs.rows(sections["Of the schema"])} == set(stored)
    functions = (docs.root / "src/postrow/sql/functions").glob("*.sql")
    read = {n for path in functions for n in re.findall(r"current_setting\('(postrow\.\w+)'", path.read_text())}
    assert {n for n in docs.code(sections["Of a session"]) if n.startswith("postrow.")} == read


def test_the_table_of_payloads_is_the_one_of_the_module(docs):
    table = [line for line in payload.__doc__.splitlines() if line.startswith("|")]
    page = docs.page("docs/reference/payloads.md").text
    assert [line for line in page.splitlines() if line.startswith("|")] == table
