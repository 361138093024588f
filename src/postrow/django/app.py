"""An app whose database is one of Django's."""

from __future__ import annotations

from dataclasses import replace

import django.db  # the package, not this one
import psycopg
from psycopg.conninfo import make_conninfo

from postrow import app as plain
from postrow.django.connections import closing
from postrow.errors import BadArgumentError
from postrow.queues import Consumer


class App(plain.App):
    """As `postrow.App`, for a Django project.

    Its DSN is made from `settings.DATABASES`, anew at each look: in a test run it is the test database's. Around each
    handler Django's connections are looked after as around a request.

    Args:
        using: the alias in `settings.DATABASES`; a database of Postgres, with Postrow's schema.
    """

    def __init__(self, using: str = "default") -> None:
        super().__init__()
        self.using = using

    @property
    def dsn(self) -> str:
        """The DSN of Django's database, for the worker's own connections.

        Raises:
            BadArgumentError: the database is not of Postgres.
        """
        conn = django.db.connections[self.using]
        if conn.vendor != "postgresql":
            raise BadArgumentError(
                f"Django's database {self.using!r} is of {conn.vendor}, and Postrow is in Postgres",
                hint=f"Write postrow.django.App('alias of a Postgres database'), or change DATABASES[{self.using!r}].",
            )
        # psycopg's own options (cursor_factory, context, prepare_threshold ...) are not libpq's
        known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
        given = {name: value for name, value in conn.get_connection_params().items() if name in known}
        role = conn.settings_dict["OPTIONS"].get("assume_role")
        if role:
            given["options"] = f"{given.get('options', '')} -c role={_escaped(role)}".strip()
        return make_conninfo("", **given)

    def add(self, consumer: Consumer) -> None:
        """Take a handler in, with Django's connections looked after around it."""
        super().add(replace(consumer, handler=closing(consumer.handler)))


def _escaped(value: str) -> str:
    """A value in `options`, where a space ends it."""
    return value.replace("\\", "\\\\").replace(" ", "\\ ")
