"""Workloads of groups and of limits: what order, and a bound that holds in the whole fleet, cost."""

import psycopg
from bed import backlog, database, drained, settle


def groups(server, *, count=100_000, neighbours=20_000):
    """The drain, of messages without groups, of many groups, and of one; and of neighbours behind one deep group."""
    kinds = {
        "no groups": "null",
        f"{count:,} groups of one": "g::text",
        f"{count // 10:,} groups of ten": f"mod(g, {count // 10})::text",
        "one group": "'one'",
    }
    rates = {}
    with database(server) as dsn, psycopg.connect(dsn) as conn:
        for kind, key in kinds.items():
            backlog(conn, "noop", count, group=key)
            settle(dsn)
            rates[kind] = drained(dsn, count)
        backlog(conn, "noop", neighbours)
        settle(dsn)
        alone = drained(dsn, neighbours)
        backlog(conn, "noop", count, group="'deep'")
        backlog(conn, "noop", neighbours)
        settle(dsn)
        # they stand behind it: without groups they would have to wait for all of it
        beside = drained(dsn, neighbours, what="group_key is null")
    base = rates.pop("no groups")
    figures = {"groups: none, messages/s": base}
    for kind, rate in rates.items():
        figures |= {f"groups: {kind}, messages/s": rate, f"groups: {kind} / none": rate / base}
    return figures | {"groups: neighbours behind one deep group / alone": beside / alone}


def limits(server, *, count=50_000):
    """The drain of a queue with limits that are never reached, over the drain of one without."""
    rates = {}
    with database(server) as dsn, psycopg.connect(dsn) as conn:
        for queue in ("noop", "bounded", "rated", "noop"):
            backlog(conn, queue, count)
            settle(dsn)
            rates.setdefault(queue, []).append(drained(dsn, count, queue))
    base = sum(rates["noop"]) / 2
    return {
        "limits: none, messages/s": base,
        "limits: max_in_flight and tenant_max_in_flight / none": rates["bounded"][0] / base,
        "limits: rate and tenant_rate / none": rates["rated"][0] / base,
    }


WORKLOADS = {"groups": groups, "limits": limits}
SMALL = {"groups": {"count": 1000, "neighbours": 500}, "limits": {"count": 2000}}
