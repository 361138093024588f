"""Reads the pages: their fenced blocks, sections and tables. The tests compare them with the code, and run them."""

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer

from postrow.cli.program import program

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^( *)```(\w*)[ ]*(.*?)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Block:
    """A fenced block: ```language name."""

    language: str
    name: str
    text: str


@dataclass(frozen=True)
class Page:
    path: Path

    def __str__(self):
        return str(self.path.relative_to(ROOT))

    @property
    def text(self):
        return self.path.read_text(encoding="utf-8")

    def blocks(self, *languages):
        found = [Block(m[2], m[3], textwrap.dedent(m[4])) for m in FENCE.finditer(self.text)]
        return [block for block in found if block.language in languages]

    def sections(self, mark):
        """The text under each heading of the level `mark`, up to the next of that level or above."""
        text = FENCE.sub(lambda m: m[0].replace("\n#", "\n #"), self.text)  # a comment in a block is no heading
        found = {}
        for match in re.finditer(rf"^{mark} (.+)\n", text, re.MULTILINE):
            end = re.compile(rf"^#{{1,{len(mark)}}} ", re.MULTILINE).search(text, match.end())
            found[match[1]] = text[match.end() : end.start() if end else len(text)]
        return found


def rows(text):
    """The rows of the tables in a text, without their heads, as lists of cells."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    heads = {at - 1 for at, line in enumerate(lines) if set(line) <= set("|-")}
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for at, line in enumerate(lines)
        if at not in heads and at - 1 not in heads
    ]


def commands():
    """Every command that does something, by its words: {'postrow dead list': command, …}."""

    def walk(words, command):
        if not hasattr(command, "commands"):
            return {words: command}
        return {w: c for name, sub in command.commands.items() for w, c in walk(f"{words} {name}", sub).items()}

    return walk("postrow", typer.main.get_command(program))


def console_lines():
    """(page, command) of every line that a reader is told to type."""
    for page in map(Page, PAGES):
        for block in page.blocks("console"):
            yield from ((page, line[2:]) for line in block.text.splitlines() if line.startswith("$ "))


def pytest_generate_tests(metafunc):
    if "page" in metafunc.fixturenames:
        metafunc.parametrize("page", [Page(path) for path in PAGES], ids=str)
    if "typed_line" in metafunc.fixturenames:
        lines = sorted({command for _page, command in console_lines()})
        metafunc.parametrize("typed_line", lines)
    if "sql_page" in metafunc.fixturenames:
        metafunc.parametrize("sql_page", [p for p in map(Page, PAGES) if p.blocks("sql")], ids=str)


class Docs:
    """What the tests share."""

    rows = staticmethod(rows)
    commands = staticmethod(commands)
    root = ROOT
    pages = tuple(Page(path) for path in PAGES)

    def page(self, name):
        return Page(ROOT / name)

    @staticmethod
    def code(text):
        """The texts in backticks, without the fenced blocks."""
        return CODE.findall(FENCE.sub("", text))


@pytest.fixture(scope="session")
def docs():
    return Docs()
