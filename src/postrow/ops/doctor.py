"""Ops of the doctor, and those that tell a copy of a database from its original."""

from __future__ import annotations

from postrow.models import Finding
from postrow.ops.op import Op, nothing, single


def doctor() -> Op[list[Finding]]:
    """What the database finds wrong with itself: a row for each check."""
    return Op(
        "select name, level, detail, advice from postrow.doctor()", (), lambda rows: [Finding(*row) for row in rows]
    )


def function_files() -> Op[dict[str, str]]:
    """The checksums of the function files as they were applied, by name. Needs a role that may read the tables."""
    return Op("select name, checksum from postrow.function_file", (), dict)


def backend_pid() -> Op[int]:
    """The process that serves this statement: of a pooler in transaction mode, not the same as for the one before."""
    return Op("select pg_catalog.pg_backend_pid()", (), single)


def copied_from() -> Op[str | None]:
    """Where the database was copied from, in words; None when it is the one that workers work on."""
    return Op("select postrow.copied_from()", (), single)


def adopt() -> Op[bool]:
    """Make the database the one that workers work on; whether it was not."""
    return Op("select postrow.adopt()", (), single)


def refuse_copy() -> Op[None]:
    """Raise CopiedDatabaseError on a copy; adopt a database that no worker has worked on."""
    return Op("select postrow.refuse_copy()", (), nothing)
