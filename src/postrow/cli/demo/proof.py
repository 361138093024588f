"""What became of every order and every message, asked from the database; and whether that is what was promised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from postrow import payload as payloads
from postrow.cli.demo import events
from postrow.cli.demo.orders import QUEUES, Website
from postrow.cli.demo.shop import BUSY_MAIL, UNTAXED, MailServerBusyError, NoTaxRateError
from postrow.cli.figures import plural
from postrow.cli.screen import Cell, Column, clean

if TYPE_CHECKING:
    import psycopg

    from postrow.cli.demo.stage import Stage

# Every committed order must have one message in each queue. `found` is every message of the shop, wherever it is now.
_MESSAGES = """
create temporary view expected as
    select o.shop, o.number, q.queue from orders o, unnest(%s::text[]) q(queue);
create temporary view found as
    select id, tenant, queue, subject, 'handled' as state, attempt, failures from postrow.history
    union all select id, tenant, queue, subject, 'dead', attempt, failures from postrow.dead_letter
    union all select id, tenant, queue, subject, 'waiting', attempt, failures from postrow.message;
create temporary view traced as
    select e.shop, e.number, e.queue, f.id, f.state from expected e
    left join found f on f.tenant = e.shop and f.queue = e.queue and f.subject = 'order:' || e.number
"""
_SHOPS = """
select shop, count(distinct number), count(distinct (number, queue)), count(*) filter (where state = 'handled'),
    count(*) filter (where state = 'dead'), count(*) filter (where state = 'waiting'),
    count(*) filter (where id is null)
from traced group by shop order by shop
"""
_DEAD = """
select queue, reason, attempt, failures -> -1 ->> 'message', count(*)
from postrow.dead_letter group by 1, 2, 3, 4 order by 5 desc
"""
_REASONS = {"attempts": "tried {} times", "lease": "tried {} times, the last one on the killed worker"}

SHOP_COLUMNS = (
    Column("shop (tenant)", folds=True),
    Column("orders", right=True),
    Column("messages", right=True),
    Column("handled", right=True),
    Column("dead letters", right=True),
    Column("waiting", right=True),
    Column("lost", right=True),
)
CHECK_COLUMNS = (Column("check", folds=True), Column("expected", right=True), Column("found", right=True), Column(""))

_RIGHT, _WRONG = Cell("ok", "green"), Cell("WRONG", "bold red")


@dataclass(frozen=True, slots=True)
class Check:
    """One sentence with the number that it must have, and the number that it has; `most`: and no more than that."""

    text: str
    expected: int
    found: int
    most: int | None = None

    @property
    def holds(self) -> bool:
        """Whether it is true."""
        return self.expected <= self.found <= (self.expected if self.most is None else self.most)

    @property
    def wanted(self) -> str:
        """The expectation in words."""
        return str(self.expected) if self.most in {None, self.expected} else f"{self.expected} to {self.most}"


@dataclass(frozen=True, slots=True)
class Findings:
    """A row for each shop (name, orders, messages, handled, dead, waiting, lost); the checks; kinds of dead letters."""

    shops: list[tuple[Any, ...]]
    checks: list[Check]
    dead: list[tuple[Any, ...]]

    @property
    def holds(self) -> bool:
        """Whether everything is as promised."""
        return all(check.holds for check in self.checks)

    def total(self, column: int) -> int:
        """The sum of one column of `shops`."""
        return sum(int(row[column]) for row in self.shops)


def ask(conn: psycopg.Connection[Any], website: Website, *, killed: str, held: Sequence[UUID]) -> Findings:
    """Ask the database; `killed` is the worker that was killed, and `held` the messages that it held then."""
    names = [queue.name for queue in QUEUES]
    with conn.cursor() as cursor:
        for statement in _MESSAGES.split(";\n"):
            # a view takes no parameters
            cursor.execute(statement.replace("%s", "'{" + ",".join(names) + "}'").encode())

    def number(query: str, *values: object) -> int:
        row = conn.execute(query.encode(), values).fetchone()
        assert row is not None
        return int(row[0])

    findings = Findings(conn.execute(_SHOPS).fetchall(), [], conn.execute(_DEAD).fetchall())
    expired = "jsonb_path_exists(failures, '$[*] ? (@.type == \"lease_expired\")')"
    of_worker = "e ->> 'type' = 'lease_expired' and e ->> 'worker' = %s"
    by_worker = f"exists (select from jsonb_array_elements(failures) e where {of_worker})"
    twice = "select message_id from effect group by message_id having count(*) > 1"
    findings.checks.extend(
        [
            Check("Orders that were committed, and are in the table", website.committed, findings.total(1)),
            Check(
                "Their messages: each is handled or a dead letter, once",
                len(names) * website.committed,
                number(
                    "select count(*) from (select from traced where state in ('handled', 'dead') "
                    "group by number, queue having count(*) = 1) t"
                ),
            ),
            Check("Messages lost", 0, findings.total(6)),
            Check(
                f"Messages of {plural(website.refused, 'rolled back order')}, anywhere",
                0,
                number(
                    "select (select count(*) from found where id in (select message_id from rolled_back)) + "
                    "(select count(*) from effect where message_id in (select message_id from rolled_back))"
                ),
            ),
            Check(
                "Messages that no committed order has sent",
                0,
                number(
                    "select count(*) from found f where queue = any (%s) and not exists "
                    "(select from traced t where t.id = f.id)",
                    names,
                ),
            ),
            Check(
                "Handled messages that are in the handlers' own record, too",
                findings.total(3),
                number(
                    "select count(distinct message_id) from effect where queue = any (%s) and message_id in "
                    "(select id from found where state = 'handled')",
                    names,
                ),
            ),
            Check(
                "E-mails that failed twice (server busy) and were then sent",
                number("select count(*) from orders where email like %s", f"%@{BUSY_MAIL}"),
                number(
                    "select count(*) from found where queue = 'demo.email' and state = 'handled' and (select count(*) "
                    "from jsonb_array_elements(failures) e where e ->> 'type' like %s) = 2",
                    f"%{MailServerBusyError.__name__}",
                ),
            ),
            Check(
                "Invoices that always fail: dead letters, with the reason",
                number("select count(*) from orders where article = %s", UNTAXED),
                number(
                    "select count(*) from found where queue = 'demo.invoice' and state = 'dead' and exists (select "
                    "from jsonb_array_elements(failures) e where e ->> 'type' like %s)",
                    f"%{NoTaxRateError.__name__}",
                ),
            ),
            Check(
                f"Messages that came back from {killed}, which was killed",
                len(held),
                number(
                    f"select count(*) from found where id = any (%s) and state <> 'waiting' and {by_worker}",
                    list(held),
                    killed,
                ),
            ),
            Check(
                f"Messages done twice: {killed} died before it could say so",
                1,
                number(f"select count(*) from ({twice}) t"),
                most=number(f"select count(*) from found where {expired}"),
            ),
        ]
    )
    if website.events:
        findings.checks.append(_events(conn, website))
    return findings


def _events(conn: psycopg.Connection[Any], website: Website) -> Check:
    equal: set[UUID] = set()
    wrong: set[UUID] = set()
    for message_id, received in conn.execute("select message_id, received from effect where received is not null"):
        event = website.events.get(message_id)
        same = event is not None and events.equal(event.payload, payloads.decode(received))
        (equal if same else wrong).add(message_id)
    text = "Messages from your file that arrived equal to what was sent"
    if wrong:
        lines = sorted(website.events[message_id].line for message_id in wrong if message_id in website.events)
        text += f" (not equal: line {', '.join(map(str, lines[:5]))}{', …' if len(lines) > 5 else ''})"
    return Check(text, len(website.events), len(equal - wrong))


def show(findings: Findings, stage: Stage) -> int:
    """The tables, and the exit code."""
    rows = [
        *([str(cell) for cell in row] for row in findings.shops),
        ["all", *(str(findings.total(column)) for column in range(1, 7))],
    ]
    stage.table(SHOP_COLUMNS, rows)
    stage.say()
    stage.table(
        CHECK_COLUMNS,
        [(check.text, check.wanted, str(check.found), _RIGHT if check.holds else _WRONG) for check in findings.checks],
    )
    stage.say()
    for queue, reason, attempt, message, count in findings.dead:
        why = _REASONS.get(reason, reason).format(attempt)
        stage.say(f"{plural(count, 'dead letter')} in {queue}, {why}: {clean(message)}")
    stage.say("Delivery is at least once: use the message's id as a key to act only once.")
    if findings.holds:
        stage.say(
            f"Proven: {findings.total(2)} messages committed, {findings.total(3)} handled, "
            f"{plural(findings.total(4), 'dead letter')}, {findings.total(6)} lost.",
            "bold green",
        )
        return 0
    stage.say("NOT proven: see the lines marked WRONG.", "bold red")
    return 1
