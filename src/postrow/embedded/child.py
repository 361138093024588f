"""Runs as a program of its own, between fork and Postgres: drop to an account, ask to die with the parent.

A small program instead of `preexec_fn`, which is unsafe when the parent has threads. Standard library
only: it is started with ``-I -S``, from this file.

Arguments: the parent's process id, user id, group id (both -1: stay as we are), then the command.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Becomes the command; the order matters: changing the user clears the death signal."""
    parent, uid, gid = (int(number) for number in arguments[:3])
    command = arguments[3:]
    if uid >= 0:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGINT), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        # The parent died before the signal was armed: nobody would ever stop the server.
        sys.exit("postrow: the program that started this server has ended")
    os.execv(command[0], command)  # noqa: S606 - to become Postgres is the purpose of this program


if __name__ == "__main__":
    main(sys.argv[1:])
