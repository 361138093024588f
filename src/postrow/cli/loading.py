"""Finding an app by the name that a person writes: MODULE:APP."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from postrow.app import App
from postrow.errors import BadArgumentError

Target = Annotated[
    str, typer.Argument(metavar="MODULE:APP", help="Where the app is: shop.jobs:app is `app` in shop/jobs.py.")
]


def load_app(target: str) -> App:
    """The app that `target` names, with the current folder on the module path.

    Raises:
        BadArgumentError: there is no such module, it cannot be imported, or it has no such app; the message says which.
    """
    module_name, colon, attribute = target.partition(":")
    if not colon or not module_name or not attribute:
        raise BadArgumentError(
            f"{target!r} is not MODULE:APP", hint="Write shop.jobs:app for `app = postrow.App()` in shop/jobs.py."
        )
    if "/" in module_name or module_name.endswith(".py"):
        dotted = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise BadArgumentError(f"{module_name!r} is a file, and a module is needed", hint=f"Write {dotted}:{attribute}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    module = _import(module_name)
    found: object = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise BadArgumentError(f"module {module_name} has no {attribute}", hint=_apps(module))
        found = getattr(found, part)
    if not isinstance(found, App):
        raise BadArgumentError(f"{target} is a {type(found).__name__}, not a postrow.App", hint=_apps(module))
    if not found.consumers:
        raise BadArgumentError(
            f"the app {target} has no handlers, so there is nothing to work on",
            hint=f"Decorate one with @queue.consumer(), in {module_name} or in a module that it imports.",
        )
    return found


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise BadArgumentError(
                f"there is no module {name}" + (f" (nor {error.name})" if error.name != name else ""),
                hint=f"The current folder is {Path.cwd()}; run postrow where the first part of the name is.",
            ) from error
        raise _broken(name, error) from error
    except Exception as error:
        raise _broken(name, error) from error


def _broken(name: str, error: Exception) -> BadArgumentError:
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and frame.filename != __file__
    ]  # fmt: skip
    place, why = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else "", str(error)
    if isinstance(error, SyntaxError) and error.filename:
        place, why = f" at {error.filename}:{error.lineno}", error.msg
    return BadArgumentError(
        f"module {name} cannot be imported: {type(error).__name__}: {why}{place}",
        hint="POSTROW_DEBUG=1 shows the whole traceback.",
    )


def _apps(module: ModuleType) -> str:
    apps = [name for name, value in vars(module).items() if isinstance(value, App)]
    if not apps:
        return f"There is no postrow.App in {module.__name__}."
    return f"Write {' or '.join(f'{module.__name__}:{name}' for name in apps)}"
