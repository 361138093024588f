"""The operation that Postrow's Django migrations are made of."""

from __future__ import annotations

from typing import Any

from django.db import router
from django.db.migrations.exceptions import IrreversibleError
from django.db.migrations.operations.base import Operation
from typing_extensions import override

from postrow import migrate


class BringSchema(Operation):
    """Brings the schema `postrow` to the version of the package that is installed.

    What is there already stays, whoever made it. So on a new database the first migration makes everything, and the
    later ones find nothing to do. Each step commits by itself, under the lock that `postrow migrate` takes too: the
    migration has to be `atomic = False`. Databases that are not of Postgres are passed over.
    """

    reduces_to_sql = True
    reversible = True  # it refuses by itself, and says the next step
    atomic = False
    elidable = False

    @override
    def state_forwards(self, app_label: str, state: Any) -> None:
        """The models are declared beside it."""

    @override
    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Run what is missing; for `sqlmigrate`, print all of it."""
        conn = schema_editor.connection
        if conn.vendor != "postgresql" or not router.allow_migrate(conn.alias, app_label):
            return
        if schema_editor.collect_sql:
            for statement in ("begin", *migrate.statements(), "commit"):
                schema_editor.execute(statement, params=None)  # a % in it is no placeholder
            return
        conn.ensure_connection()
        migrate.apply_on(conn.connection)

    @override
    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Refuse.

        Raises:
            IrreversibleError: always.
        """
        raise IrreversibleError(
            "Postrow's schema is not taken back: its messages would be lost, and an older package works with a newer "
            "schema. To remove it with all messages: run drop schema postrow cascade, then "
            "manage.py migrate --fake postrow zero."
        )

    @override
    def describe(self) -> str:
        """A line for `migrate --plan` and `sqlmigrate`."""
        return "Bring the schema postrow to the version of the package"
