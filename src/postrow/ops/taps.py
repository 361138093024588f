"""Ops of those who hear taps."""

from __future__ import annotations

from postrow.ops.op import Op, single


def kept_back(queue: str) -> Op[bool]:
    """Whether a transaction that is open now may have kept back a tap of this queue."""
    return Op("select postrow.taps_kept_back($1::text)", (queue,), single)
