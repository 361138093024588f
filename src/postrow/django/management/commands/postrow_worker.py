"""`manage.py postrow_worker`: run an app's handlers."""

from __future__ import annotations

import argparse
import logging
from dataclasses import replace
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils.module_loading import import_string

from postrow.app import App
from postrow.django.connections import closing
from postrow.errors import PostrowError
from postrow.queues import GRACE, OPEN_AT_ONCE, POLL_INTERVAL
from postrow.worker import Worker

SETTING = "POSTROW_APP"
LEVELS = {0: logging.WARNING, 1: logging.INFO}  # by --verbosity; above it is DEBUG


class Command(BaseCommand):
    """The command; its options are those of `postrow worker`, with durations in seconds."""

    help = "Run the handlers of an app, until SIGTERM or Ctrl-C."
    # the worker refuses a schema that does not fit
    requires_migrations_checks = False

    def add_arguments(self, parser: CommandParser) -> None:
        """The options of `Worker`."""
        add = parser.add_argument
        add("app", nargs="?", metavar="MODULE:APP", help=f"Where the app is. Default: settings.{SETTING}.")
        add("--name", help="A stable name, for targeted messages and the record. Default: host and pid.")
        add("--queues", metavar="A,B", type=_names, help="Only these queues of the app. Default: all.")
        add("--concurrency", metavar="N", type=int, help="Messages at once in this process. Default: its queues' sum.")
        add("--transport", choices=("tap", "poll"), default="tap", help="tap: LISTEN, and look now and then (default).")
        add("--listen-dsn", metavar="DSN", help="A direct connection for LISTEN, where DATABASES names a pooler.")
        add(
            "--poll-interval",
            metavar="SECONDS",
            type=float,
            default=POLL_INTERVAL,
            help="How often it looks. Default: %(default)g.",
        )
        add(
            "--grace",
            metavar="SECONDS",
            type=float,
            default=GRACE,
            help="For running handlers at a stop. Default: %(default)g.",
        )
        add(
            "--health",
            metavar="[HOST:]PORT",
            type=_address,
            help="Serve /live, /ready and /metrics; on loopback if no host is given.",
        )
        add("--no-sweep", dest="sweep", action="store_false", help="Take no part in the sweep; one process has to.")
        add(
            "--no-schedule",
            dest="schedule",
            action="store_false",
            help="Enqueue nothing that is scheduled; one process has to.",
        )
        add("--transactions", metavar="N", type=int, default=OPEN_AT_ONCE, help="Connections of message.transaction().")

    def handle(self, *_args: Any, **options: Any) -> None:
        """Run until it is stopped."""
        app = _app(options["app"] or getattr(settings, SETTING, None))
        for key, consumer in app.consumers.items():
            app.consumers[key] = replace(consumer, handler=closing(consumer.handler))
        # for who has set up no logging of the root
        logging.basicConfig(
            level=LEVELS.get(options["verbosity"], logging.DEBUG), format="%(asctime)s %(levelname)s %(message)s"
        )
        names = (
            "name", "queues", "concurrency", "transport", "listen_dsn", "poll_interval", "grace", "health", "sweep",
            "schedule", "transactions",
        )  # fmt: skip
        try:
            Worker(app, **{name: options[name] for name in names}).run()
        except PostrowError as error:
            message = f"{error.message}\n{error.hint}" if error.hint else error.message
            raise CommandError(message, returncode=error.exit_code) from error


def _app(place: str | None) -> App:
    if not place:
        raise CommandError(
            f"no app is given\nWrite {SETTING} = 'shop.jobs:app' in the settings, for app = postrow.django.App() in "
            "shop/jobs.py."
        )
    try:
        found = import_string(place.replace(":", "."))
    except ImportError as error:
        raise CommandError(f"{place!r} cannot be imported: {error}") from error
    if not isinstance(found, App):
        raise CommandError(f"{place} is a {type(found).__name__}, not a postrow.django.App")
    return found


def _names(value: str) -> list[str]:
    return value.split(",")


def _address(value: str) -> tuple[str, int]:
    host, _, port = value.rpartition(":")
    if not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise argparse.ArgumentTypeError(f"{value!r} is no address: write PORT, HOST:PORT or [::1]:PORT")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)
