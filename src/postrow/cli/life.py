"""The life of a message as lines of a story, from the row that `postrow.show` gives. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from postrow.cli.figures import age, clock, moment

GOOD, BAD = "green", "red"
_KEPT = 10  # failures that the database keeps

_DEATHS = {
    "attempts": "dead: its attempts are spent",
    "lease": "dead: its attempts are spent, the last one by a lease that expired",
    "expired": "dead: it expired before it was handled",
    "buried": "dead: its handler buried it",
    "hops": "dead: handlers published from handlers too often",
}


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, or will (`at` in the future), and the colour it has."""

    at: datetime
    text: str
    style: str = ""


def life(row: dict[str, Any], *, now: datetime) -> list[Event]:
    """What happened to a message, oldest first, and what it waits for."""
    events = [_enqueued(row)]
    failures = row.get("failures") or []
    events += map(_failure, failures)
    events.sort(key=lambda event: event.at)  # a redriven message brings the failures of its life before
    if len(failures) == _KEPT and failures[0]["attempt"] > 1:
        first = moment(failures[0]["at"])
        events.insert(
            next(i for i, event in enumerate(events) if event.at >= first),
            Event(first, f"(attempts before {failures[0]['attempt']} are not kept)"),
        )
    return events + _end(row, now)


def _enqueued(row: dict[str, Any]) -> Event:
    origin = f", redriven from dead letter {row['redriven_from']}" if row.get("redriven_from") else ""
    return Event(moment(row["enqueued_at"]), f"enqueued by {row.get('enqueued_by') or 'unknown'}{origin}")


def _failure(failure: dict[str, Any]) -> Event:
    worker = f", {failure['worker']}" if failure.get("worker") else ""
    what = ": ".join(filter(None, (failure.get("type"), failure.get("message")))) or "no error text"
    return Event(moment(failure["at"]), f"failed (attempt {failure['attempt']}{worker}): {what}", BAD)


def _claimed(row: dict[str, Any], at: str) -> Event:
    worker = row.get("claimed_by") or "unknown"
    waited = ""
    if row["attempt"] == 1 and not row.get("failures"):
        waited = f", waited {age((moment(at) - moment(row['enqueued_at'])).total_seconds())}"
    return Event(moment(at), f"claimed by {worker} (attempt {row['attempt']}){waited}")


def _end(row: dict[str, Any], now: datetime) -> list[Event]:
    match row["state"]:
        case "claimed":
            until = moment(row["available_at"])
            left = (until - now).total_seconds()
            lease = f"its lease ends in {age(left)}" if left > 0 else f"its lease ended {age(-left)} ago"
            return [_claimed(row, row["claimed_at"]), Event(until, f"{lease} unless it is renewed", "dim")]
        case "scheduled":
            due = moment(row["available_at"])
            tries = f", attempt {row['attempt'] + 1}" if row["attempt"] else ""
            return [Event(due, f"due in {age((due - now).total_seconds())}{tries}", "dim")]
        case "ready":
            due = moment(row["available_at"])
            for_ = f" for worker {row['target']}" if row.get("target") else ""
            return [Event(due, f"ready{for_}: waits for {age((now - due).total_seconds())}", "dim")]
        case "dead":
            return _dead(row)
        case "done":
            return _done(row)
        case outcome:
            return [Event(moment(row["finished_at"]), outcome)]


def _done(row: dict[str, Any]) -> list[Event]:
    finished = Event(moment(row["finished_at"]), "done", GOOD)
    if not row.get("started_at"):
        return [finished]
    ran = (moment(row["finished_at"]) - moment(row["started_at"])).total_seconds()
    return [_claimed(row, row["started_at"]), Event(finished.at, f"done, ran {age(ran)}", GOOD)]


def _dead(row: dict[str, Any]) -> list[Event]:
    events = [Event(moment(row["died_at"]), _DEATHS.get(row["reason"], f"dead: {row['reason']}"), BAD)]
    if row.get("resolved_at"):
        why = f": {row['resolution_reason']}" if row.get("resolution_reason") else ""
        into = f" as {row['redriven_as']}" if row.get("redriven_as") else ""
        text = f"{row['resolution']}{into} by {row.get('resolved_by') or 'unknown'}{why}"
        events.append(Event(moment(row["resolved_at"]), text, GOOD))
    return events


def moments(events: list[Event]) -> list[str]:
    """The times of events: of one day just the time, else with the date where it changes."""
    return [clock(event.at, seen_from=events[at - 1].at if at else None) for at, event in enumerate(events)]
