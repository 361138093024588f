"""The message as its handler sees it: what is there is read from the claim's row when it is asked for."""

from __future__ import annotations

import functools
import json
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any
from uuid import UUID

from postrow.models import Failure, Message, moment
from postrow.worker.slots import Slot
from postrow.worker.transactions import Transactions

NO_HEADERS: Mapping[str, Any] = MappingProxyType({})

Extend = Callable[[Slot, timedelta], Awaitable[None]]


class HandedMessage(Message[Any]):
    """A `Message` whose fields are made at the first look: most handlers need two or three of the twenty."""

    __slots__ = ("_extend_slot", "_slot", "_transactions")
    __qualname__ = "Message"

    def __getattr__(self, name: str) -> Any:
        """A field that was not asked for before, so its place is empty."""
        value: Any
        if name in _FIELDS:
            value = _FIELDS[name](self._slot)
        elif name == "_extend":
            value = functools.partial(self._extend_slot, self._slot)
        elif name == "_transaction":
            value = functools.partial(self._transactions.begin, self._slot)
        else:
            raise AttributeError(f"{type(self).__qualname__!r} object has no attribute {name!r}")
        object.__setattr__(self, name, value)
        return value


_new = HandedMessage.__new__
_set_slot = HandedMessage.__dict__["_slot"].__set__
_set_extend = HandedMessage.__dict__["_extend_slot"].__set__
_set_transactions = HandedMessage.__dict__["_transactions"].__set__
_set_payload = Message.__dict__["payload"].__set__


def hand(slot: Slot, extend: Extend, transactions: Transactions) -> HandedMessage:
    """The message of a slot for its handler.

    Raises:
        PayloadTypeError: the payload does not fit the queue's type. Where the queue has none it is read at the first
            look, like all else.
    """
    message = _new(HandedMessage)
    _set_slot(message, slot)
    _set_extend(message, extend)
    _set_transactions(message, transactions)
    codec = slot.consumer.queue.codec
    if not codec.is_plain:
        _set_payload(message, codec.decode(slot.claimed.payload))
    return message


def _headers(text: str | None) -> Mapping[str, Any]:
    return NO_HEADERS if text is None else MappingProxyType(json.loads(text))


def _failures(text: str | None) -> tuple[Failure, ...]:
    return tuple(
        Failure(
            attempt=item["attempt"],
            at=datetime.fromisoformat(item["at"]),
            worker=item.get("worker"),
            type=item.get("type"),
            message=item.get("message"),
            traceback=item.get("traceback"),
        )
        for item in json.loads(text or "[]")
    )


def _moment(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else moment(microseconds)


# By the names of Message's fields.
_FIELDS: dict[str, Callable[[Slot], Any]] = {
    "id": lambda slot: slot.claimed.id,
    "tenant": lambda slot: slot.claimed.tenant,
    "queue": lambda slot: slot.queue,
    "payload": lambda slot: slot.consumer.queue.codec.decode(slot.claimed.payload),
    "headers": lambda slot: _headers(slot.claimed.headers),
    "attempt": lambda slot: slot.claimed.attempt,
    "max_attempts": lambda slot: slot.claimed.max_attempts,
    "enqueued_at": lambda slot: moment(slot.claimed.enqueued),
    "due_at": lambda slot: moment(slot.claimed.due),
    "priority": lambda slot: slot.claimed.priority,
    "subject": lambda slot: slot.claimed.subject,
    "target": lambda slot: slot.claimed.target,
    "group_key": lambda slot: slot.claimed.group_key,
    "topic": lambda slot: slot.claimed.topic,
    "parent_id": lambda slot: None if (key := slot.claimed.parent) is None else UUID(bytes=key),
    "hops": lambda slot: slot.claimed.hops,
    "expires_at": lambda slot: _moment(slot.claimed.expires),
    "failures": lambda slot: _failures(slot.claimed.failures),
    "claim_token": lambda slot: slot.token,
}
