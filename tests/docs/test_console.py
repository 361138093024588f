import re
import shlex

from postrow.sql import SCHEMA_VERSION

SHELL = {"python", "pip", "export", ".", "psql"}


def words_of(line):
    """The words of a command, up to a redirection or a pipe."""
    words = shlex.split(line, comments=True)
    end = next((at for at, word in enumerate(words) if word in {">", "|", "&"}), len(words))
    return words[:end]


def test_every_command_in_the_docs_is_one_that_exists(typed_line, docs):
    program, *words = words_of(typed_line)
    while "=" in program and not program.startswith("export"):
        program, *words = words
    if program == "make":
        targets = re.findall(r"^([a-z-]+):", (docs.root / "Makefile").read_text(), re.MULTILINE)
        assert set(words) <= set(targets)
    elif program == "postrow":
        commands = docs.commands()
        name = next(" ".join(("postrow", *words[:n])) for n in (1, 2) if " ".join(("postrow", *words[:n])) in commands)
        command = commands[name]
        command.make_context(name, words[len(name.split()) - 1 :])  # an unknown option or a bad value raises
    else:
        assert program in SHELL


def test_every_make_target_that_the_pages_name_exists(page, docs):
    targets = set(re.findall(r"^([a-z-]+):", (docs.root / "Makefile").read_text(), re.MULTILINE))
    named = {code.split()[1] for code in docs.code(page.text) if re.fullmatch(r"make [a-z-]+", code)}
    assert named <= targets


def test_the_pages_name_the_schema_version_of_the_package(docs):
    version = ".".join(map(str, SCHEMA_VERSION))
    assert f"the schema is now {version}" in docs.page("docs/tutorial/first-queue.md").text
    assert f"Schema {version}." in docs.page("CHANGELOG.md").text
