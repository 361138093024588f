"""JSON lines, read in batches: each line a payload, checked before anything of its batch is sent."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from postrow import payload as payloads
from postrow.cli.screen import cut
from postrow.errors import PayloadError

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Batch:
    """Payloads as JSON text, the lines that they stand in (from 1, both counted in), and their size with all before."""

    first: int
    last: int
    texts: list[str]
    bytes_read: int


def batches(source: Iterable[bytes], *, size: int) -> Iterator[Batch]:
    """Batches of `size` payloads, the last one shorter. Blank lines are passed over, and counted.

    The text goes on as it stands, not as Python would write it: jsonb keeps every digit of a number.

    Raises:
        PayloadError: a line that is not JSON, or not storable; the message has its number.
    """
    texts: list[str] = []
    first, number, read = 1, 0, 0
    for number, line in enumerate(source, start=1):  # used after the loop
        read += len(line)
        text = line.removeprefix(_BOM).strip() if number == 1 else line.strip()
        if not text:
            continue
        texts.append(_checked(text, number))
        if len(texts) == size:
            yield Batch(first, number, texts, read)
            texts, first = [], number + 1
    if texts:
        yield Batch(first, number, texts, read)


def _checked(line: bytes, number: int) -> str:
    try:
        payloads.encode(payloads.decode(line))
    except PayloadError as error:
        why = re.sub(r": line 1 (column \d+) \(char \d+\)", r" at \1", error.message)
        shown = cut(line.decode(errors="replace"), 60)
        raise PayloadError(f"line {number} cannot be a payload: {why} It is: {shown}", hint=error.hint) from None
    return line.decode()
