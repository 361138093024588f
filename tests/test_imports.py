"""What `import postrow` gives, and what it does not load."""

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import postrow

HEAVY = ["psycopg", "pydantic", "typer", "rich", "asyncpg", "sqlalchemy", "django"]
REFERENCE = Path(__file__).parents[1] / "docs" / "reference" / "api.md"


def test_the_package_alone_loads_no_heavy_library():
    code = f"import sys, postrow; print(*(name for name in {HEAVY} if name in sys.modules))"
    ended = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == []


def test_every_public_name_is_there_and_explained():
    assert sorted(postrow.__all__) == list(postrow.__all__)
    for name in postrow.__all__:
        member = getattr(postrow, name)
        assert inspect.getdoc(member), name
        own = member.__dict__.get("__doc__") if inspect.isclass(member) else member.__doc__
        assert own, f"{name} has no docstring of its own"


def test_nothing_else_is_public():
    found = {
        name for name, member in vars(postrow).items() if not name.startswith("_") and not inspect.ismodule(member)
    }
    assert found == set(postrow.__all__)


def public_members():
    """The public names, and the methods and properties of the public classes."""
    for name in postrow.__all__:
        yield name, getattr(postrow, name)
        if inspect.isclass(getattr(postrow, name)):
            for key, value in vars(getattr(postrow, name)).items():
                if not key.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
                    yield f"{name}.{key}", value


def test_every_public_member_is_explained():
    assert [name for name, member in public_members() if not member.__doc__] == []


def test_the_reference_lists_every_public_member_and_no_other():
    if not REFERENCE.exists():
        pytest.skip("the reference is not written yet")
    text = REFERENCE.read_text(encoding="utf-8").partition("\n## Modules\n")[0]
    assert sorted(re.findall(r"(?m)^### ([\w.]+)$", text)) == sorted(name for name, _ in public_members())


def test_every_module_can_be_imported_alone():
    import pkgutil

    for found in pkgutil.walk_packages(postrow.__path__, "postrow."):
        # a Django project imports its parts, once it is set up
        if not found.name.endswith("__main__") and not found.name.startswith("postrow.django."):
            importlib.import_module(found.name)
