"""Numbers, ages and moments as a person reads them."""

from __future__ import annotations

from datetime import datetime

_LARGE = ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k"))
_AGES = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"))


def count(number: int) -> str:
    """9,999 and less as it is, then 12.3 k, 1.2 M: rounded down, so that it never says more than there is."""
    if number < 10_000:
        return str(number)
    for size, letter in _LARGE:
        if number >= size:
            tenths = number * 10 // size
            return f"{tenths // 10} {letter}" if tenths >= 1000 else f"{tenths / 10:.1f} {letter}"
    raise AssertionError(number)


def age(seconds: float) -> str:
    """4 ms, 4 s, 3 min, 3 h, 2 d: one unit, rounded down; a negative one counts as 0."""
    for size, unit in _AGES:
        if seconds >= size:
            return f"{int(seconds / size)} {unit}"
    return f"{max(0, int(seconds * 1000))} ms"


def cut(text: str, limit: int) -> str:
    """The head of a text, with an ellipsis where it was cut: `limit` characters at most."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def moment(text: str) -> datetime:
    """A moment as the database writes it in JSON, in the time zone of this machine."""
    return datetime.fromisoformat(text).astimezone()


def clock(at: datetime, *, seen_from: datetime | None = None) -> str:
    """10:02:11 on the day of `seen_from` (None: today), otherwise with the date."""
    day = (seen_from or datetime.now().astimezone()).date()
    return at.strftime("%H:%M:%S" if at.date() == day else "%Y-%m-%d %H:%M:%S")


def plural(number: int, word: str) -> str:
    """1 worker, 2 workers, 12,345 messages."""
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"
