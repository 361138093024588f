"""The command line: `postrow`, one module a sub-command.

`program.py` is the whole of it: it names the commands and runs one. A command raises `PostrowError`; `failure.py` says
it in one line and gives the exit code. `database.py` connects, `screen.py` writes.
"""

from postrow.cli.program import main

__all__ = ["main"]
