"""The queue against a small model of it: any order of calls, a clock that a rule moves, two workers, three tenants.

POSTROW_MODEL_EXAMPLES=2000 looks further, with random examples, and makes a failing one small; without it they are
the same ones each time.
"""

import os
import uuid
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta

import psycopg
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

EXAMPLES = os.environ.get("POSTROW_MODEL_EXAMPLES")
SETTINGS = settings(
    max_examples=int(EXAMPLES or 20),
    stateful_step_count=40,
    deadline=None,
    derandomize=not EXAMPLES,
    database=None,
    report_multiple_bugs=False,
    phases=[Phase.generate, Phase.shrink] if EXAMPLES else [Phase.generate],  # shrinking takes minutes
)
QUEUES = ("emails", "reports")
TENANTS = ("a", "b", "c")
PRIORITIES = (-5, 0)
LANES = [(tenant, priority) for tenant in TENANTS for priority in PRIORITIES]
PAYLOAD, PAYLOAD_BYTES = '{"n": 1}', 8
IDS = [uuid.UUID(int=n) for n in range(1, 4)]
TRAIL = timedelta(seconds=0.2)

# few lanes with many messages, rather than many with one
queues = st.sampled_from(["emails", "emails", "emails", "reports"])
tenants = st.sampled_from(TENANTS)
workers = st.sampled_from([None, "w1", "w2"])
limits = st.integers(1, 6) | st.just(12)
seconds = st.sampled_from([None, 5, 20, 100]).map(lambda n: n and timedelta(seconds=n))
picks = st.lists(st.integers(0, 12), min_size=1, max_size=5)  # from the last receipt back


@dataclass(slots=True)
class Policy:
    """What a consumer says; the values here are those of a queue without one."""

    lease: timedelta = timedelta(seconds=60)
    max_attempts: int = 5
    keep_history: bool = True

    def delays(self, attempt):
        """The shortest and the longest wait after a failed attempt: the default has jitter."""
        longest = timedelta(seconds=10 * 2 ** (attempt - 1))
        return longest / 2, longest


class Constant(Policy):
    """Ten seconds, without jitter."""

    def delays(self, attempt):
        return timedelta(seconds=10), timedelta(seconds=10)


FOR_ALL = Constant(lease=timedelta(seconds=30), max_attempts=2)
FOR_B = Constant(lease=timedelta(seconds=90), max_attempts=3, keep_history=False)


def policy_of(queue, tenant):
    if queue != "emails":
        return Policy()
    return FOR_B if tenant == "b" else FOR_ALL


@dataclass(slots=True)
class Mail:
    """One message as the model knows it. `place`: message, history, dead_letter, or forgotten (no history kept)."""

    tenant: str
    id: uuid.UUID
    queue: str
    priority: int
    enqueued_at: object
    available_at: object
    max_attempts: int | None = None
    target: str | None = None
    target_until: object = None
    expires_at: object = None
    place: str = "message"
    attempt: int = 0
    token: uuid.UUID | None = None
    worker: str | None = None
    failures: int = 0
    reason: str | None = None
    resolved: bool = False

    @property
    def key(self):
        return self.tenant, self.id

    @property
    def lane(self):
        return self.tenant, self.priority

    @property
    def bound(self):
        return self.max_attempts or policy_of(self.queue, self.tenant).max_attempts

    def free(self):
        self.token = self.worker = None

    def die(self, reason, *, recorded=True):
        self.place, self.reason, self.token = "dead_letter", reason, None
        self.failures = min(self.failures + recorded, 10)


@dataclass(slots=True)
class Receipt:
    """What a worker holds after a claim, live or stale."""

    tenant: str
    id: uuid.UUID
    token: uuid.UUID


@dataclass(slots=True)
class World:
    mails: dict = field(default_factory=dict)
    receipts: list = field(default_factory=list)
    ids: dict = field(default_factory=dict)  # (tenant, caller's id) -> queue

    def live(self, queue=None):
        return [m for m in self.mails.values() if m.place == "message" and queue in {None, m.queue}]


class Queue(RuleBasedStateMachine):
    def __init__(self, conn, clock):
        super().__init__()
        self.conn, self.clock, self.world = conn, clock, World()
        self.began = clock.now
        self.stack = ExitStack()
        self.stack.enter_context(conn.transaction(force_rollback=True))

    def teardown(self):
        self.stack.close()
        self.clock.now = self.began

    def rows(self, statement, *params):
        with self.conn.cursor(row_factory=psycopg.rows.namedtuple_row) as cursor:
            return cursor.execute(statement, params).fetchall()

    @initialize()
    def consumers(self):
        self.rows(
            "select postrow.register_consumer('emails', 'h', lease => '30 s', retry => 'constant', "
            "retry_jitter => false, max_attempts => 2)"
        )
        self.rows(
            "select postrow.register_consumer('emails', 'h', 'b', lease => '90 s', retry => 'constant', "
            "retry_jitter => false, max_attempts => 3, keep_history => false)"
        )

    @initialize(
        backlog=st.lists(
            st.tuples(
                tenants,
                st.sampled_from(PRIORITIES),
                st.just(None) | workers,
                st.sampled_from([None, 1, 2]),
                st.sampled_from([None, None, 20]),
                st.integers(1, 4),
            ),
            min_size=3,
            max_size=6,
        )
    )
    def backlog(self, backlog):
        """Something to claim at the start: most of the rules need company."""
        for tenant, priority, name, max_attempts, expires, count in backlog:
            options = {"tenant": tenant, "priority": priority, "delay": None, "target": name}
            options |= {"max_attempts": max_attempts}
            options |= {"expires_at": expires and self.clock.now + timedelta(seconds=expires)}
            self._put("emails", options, count)

    @rule(by=st.sampled_from([0.001, 1, 15, 31, 100, 7200]))
    def time_passes(self, by):
        self.clock.advance(by)

    # -- producers

    @rule(
        queue=queues, tenant=tenants, priority=st.sampled_from(PRIORITIES), delay=st.just(None) | seconds,
        max_attempts=st.sampled_from([None, None, 1, 3]), name=st.just(None) | workers, target_for=seconds,
        expires=st.just(None) | seconds, count=st.integers(1, 6),
    )  # fmt: skip
    def enqueue(self, queue, tenant, priority, delay, max_attempts, name, target_for, expires, count):
        options = {
            "tenant": tenant, "priority": priority, "delay": delay, "max_attempts": max_attempts, "target": name,
            "target_for": name and target_for, "expires_at": expires and self.clock.now + expires,
        }  # fmt: skip
        self._put(queue, options, count)

    def _put(self, queue, options, count):
        for _ in range(count):
            [sent] = self._enqueue(queue, options)
            assert not sent.deduplicated
            self._remember(sent.id, queue, options)
            self.clock.advance(0.001)

    @rule(queue=queues, tenant=tenants, id_=st.sampled_from(IDS), delay=seconds)
    def enqueue_with_an_id(self, queue, tenant, id_, delay):
        options = {"tenant": tenant, "priority": 0, "delay": delay, "id": id_}
        known = self.world.ids.get((tenant, id_))
        if known not in {None, queue}:
            with pytest.raises(psycopg.Error) as refused, self.conn.transaction():
                self._enqueue(queue, options)
            assert refused.value.sqlstate == "PW006"
            return
        [sent] = self._enqueue(queue, options)
        assert (sent.id, sent.deduplicated) == (id_, known is not None)
        if not known:
            self.world.ids[tenant, id_] = queue
            self._remember(id_, queue, options)

    def _enqueue(self, queue, options):
        named = ", ".join(f"{name} => %s" for name in options)
        return self.rows(f"select * from postrow.enqueue(%s, %s, {named})", queue, PAYLOAD, *options.values())

    def _remember(self, id_, queue, options):
        now, tenant = self.clock.now, options["tenant"]
        due = now + (options["delay"] or timedelta())
        mail = Mail(tenant, id_, queue, options["priority"], now, due, options.get("max_attempts"))
        mail.target, mail.expires_at = options.get("target"), options.get("expires_at")
        mail.target_until = due + options["target_for"] if options.get("target_for") else None
        assert mail.key not in self.world.mails
        self.world.mails[mail.key] = mail

    # -- workers: claim

    def _ready(self, queue, *, target, tenant=None):
        now = self.clock.now
        return [
            m
            for m in self.world.live(queue)
            if m.token is None and m.target == target and m.available_at <= now
            and (m.expires_at is None or m.expires_at > now) and tenant in {None, m.tenant}
        ]  # fmt: skip

    def _take(self, rows, candidates, lease, worker, token):
        """Moves what was claimed, and checks each row of it and that nothing older was left in its lane."""
        now = self.clock.now
        assert len({(r.tenant, r.id) for r in rows}) == len(rows)
        taken = []
        for row in rows:
            mail = self.world.mails[row.tenant, row.id]
            assert mail in candidates, f"claimed what was not to be had: {mail}"
            assert row.due_at == mail.available_at
            mail.attempt += 1
            mail.token, mail.worker = row.claim_token, worker
            mail.available_at = now + (lease or policy_of(mail.queue, mail.tenant).lease)
            assert (row.attempt, row.lease_until, row.claimed_at) == (mail.attempt, mail.available_at, now)
            assert token in {None, row.claim_token}
            assert (row.priority, row.queue, row.target) == (mail.priority, mail.queue, mail.target)
            taken.append(mail)
            self.world.receipts.append(Receipt(row.tenant, row.id, row.claim_token))
        last = {}
        for row in rows:
            lane = row.tenant, row.priority, row.target
            last[lane] = max(row.due_at, last.get(lane, row.due_at))
        for left in candidates:
            if left.token is None and (*left.lane, left.target) in last:
                assert left.available_at >= last[*left.lane, left.target], "an older message of the lane was passed by"
        return taken

    def _check_frontiers(self, rows, queue):
        """A frontier never lies behind a ready message that was left: a claim from there on would miss it."""
        for row in rows:
            if row.frontier is not None:
                assert row.frontier <= self.clock.now - TRAIL
                for left in self._ready(queue, target=None):
                    if left.lane == (row.tenant, row.priority):
                        assert left.available_at >= row.frontier

    @rule(
        queue=queues, limit=limits, tenant=st.sampled_from([None, *TENANTS]), worker=workers, lease=seconds,
        own_token=st.booleans(), frontiers=st.booleans(), fit=st.sampled_from([None, None, None, 0.5, 1, 2.5]),
    )  # fmt: skip
    def claim(self, queue, limit, tenant, worker, lease, own_token, frontiers, fit):
        token = uuid.uuid4() if own_token else None
        found = self.rows(
            "select * from postrow.claim(%s, %s, tenant => %s, lease => %s, worker => %s, token => %s, after => %s, "
            "max_bytes => %s)",
            queue, limit, tenant, lease, worker, token, "-infinity" if frontiers else None,
            fit and int(fit * PAYLOAD_BYTES),
        )  # fmt: skip
        rows = [row for row in found if row.id]
        assert frontiers or rows == found
        fits = limit if fit is None else min(limit, max(1, int(fit)))
        own = self._ready(queue, target=worker, tenant=tenant) if worker else []
        anyones = self._ready(queue, target=None, tenant=tenant)
        assert len(rows) == min(fits, len(own) + len(anyones))
        assert sum(row.target is not None for row in rows) == min(fits, len(own)), "the worker's own come first"
        rest = fits - min(fits, len(own))
        want = Counter(sorted(m.priority for m in anyones)[:rest])
        assert Counter(row.priority for row in rows if row.target is None) == want, "lower priorities come first"
        if fit is None and rest and anyones:  # each lane of the first priority has its share
            first = min(m.priority for m in anyones)
            ready = Counter(m.tenant for m in anyones if m.priority == first)
            got = Counter(r.tenant for r in rows if r.target is None and r.priority == first)
            lanes = len({m.tenant for m in self.world.live(queue) if m.priority == first})
            assert all(got[name] >= min(ready[name], rest // lanes) for name in ready)
        self._take(rows, own + anyones, lease, worker, token)
        self._check_frontiers(found, queue)

    @rule(
        queue=queues, lanes=st.lists(st.sampled_from(LANES), unique=True), per_lane=st.integers(1, 3),
        limit=limits, worker=workers, lease=seconds, fit=st.sampled_from([None, None, None, 0.5, 2.5]),
    )  # fmt: skip
    def claim_lanes(self, queue, lanes, per_lane, limit, worker, lease, fit):
        found = self.rows(
            "select * from postrow.claim_lanes(%s, %s::text[], %s::smallint[], %s::timestamptz[], %s, %s, "
            "lease => %s, worker => %s, max_bytes => %s)",
            queue, [lane[0] for lane in lanes], [lane[1] for lane in lanes], [None] * len(lanes), per_lane, limit,
            lease, worker, fit and int(fit * PAYLOAD_BYTES),
        )  # fmt: skip
        fits = limit if fit is None else min(limit, max(1, int(fit)))
        rows = [row for row in found if row.id]
        among = {tenant for tenant, _ in lanes}
        own = [m for m in self._ready(queue, target=worker) if worker and m.tenant in among]
        anyones = [m for m in self._ready(queue, target=None) if m.lane in lanes]
        left = fits - min(fits, len(own))
        expected = Counter()
        for lane in lanes:
            expected[lane] = min(sum(m.lane == lane for m in anyones), per_lane, left)
            left -= expected[lane]
        assert sum(row.target is not None for row in rows) == min(fits, len(own))
        assert Counter((r.tenant, r.priority) for r in rows if r.target is None) == +expected
        for row in found:
            assert (row.lane == 0) == (row.target is not None)
            assert row.lane == 0 or lanes[row.lane - 1] == (row.tenant, row.priority)
        numbers = Counter(row.lane for row in found)
        assert all(numbers[n] == (expected[lane] or 1) for n, lane in enumerate(lanes, 1)), "every lane answers"
        self._take(rows, own + anyones, lease, worker, None)
        self._check_frontiers([row for row in found if row.lane], queue)

    # -- workers: settle

    def _settle(self, call, chosen, *params):
        """Calls a settlement for some receipts, checks what it says of each, and gives the accepted ones."""
        receipts = {}
        for n in chosen:
            receipt = self.world.receipts[-1 - n % len(self.world.receipts)]
            receipts.setdefault((receipt.tenant, receipt.id), receipt)
        keys = list(receipts)
        extra = [value(len(keys)) if callable(value) else value for value in params]
        found = self.rows(
            f"select * from postrow.{call}",
            [key[0] for key in keys], [key[1] for key in keys], [receipts[key].token for key in keys], *extra,
        )  # fmt: skip
        expected = {}
        for key in keys:
            mail = self.world.mails[key]
            fresh = mail.token == receipts[key].token
            expected[key] = "unknown" if mail.place != "message" else "accepted" if fresh else "stale"
        assert {(row.tenant, row.id): row.outcome for row in found} == expected
        assert len(found) == len(keys)
        return [(n, self.world.mails[key]) for n, key in enumerate(keys) if expected[key] == "accepted"]

    some_receipts = precondition(lambda self: self.world.receipts)

    @some_receipts
    @rule(chosen=picks, wait=st.booleans())
    def ack(self, chosen, wait):
        for _, mail in self._settle("ack(%s, %s, %s, wait => %s)", chosen, wait):
            mail.free()
            mail.place = "history" if policy_of(mail.queue, mail.tenant).keep_history else "forgotten"

    @some_receipts
    @rule(chosen=picks, until=st.none() | st.lists(seconds, min_size=5, max_size=5))
    def release(self, chosen, until):
        moments = until and [wait and self.clock.now + wait for wait in until]
        call = "release(%s, %s, %s, until => %s::timestamptz[])"
        for n, mail in self._settle(call, chosen, lambda length: moments and moments[:length]):
            mail.free()
            mail.attempt -= 1
            mail.available_at = (moments and moments[n]) or mail.enqueued_at

    @some_receipts
    @rule(chosen=picks, lease=seconds.filter(bool))
    def extend(self, chosen, lease):
        for _, mail in self._settle("extend(%s, %s, %s, %s)", chosen, lease):
            mail.available_at = self.clock.now + lease

    @some_receipts
    @rule(chosen=picks)
    def bury(self, chosen):
        for _, mail in self._settle("bury(%s, %s, %s, %s::text[])", chosen, lambda length: ["why"] * length):
            mail.die("buried")

    @some_receipts
    @rule(chosen=picks, retry=st.none() | st.lists(seconds, min_size=5, max_size=5))
    def fail(self, chosen, retry):
        moments = retry and [wait and self.clock.now + wait for wait in retry]
        for n, mail in self._settle(
            "fail(%s, %s, %s, %s::text[], retry_at => %s::timestamptz[])",
            chosen,
            lambda length: ["boom"] * length,
            lambda length: moments and moments[:length],
        ):
            self._retry_or_die(mail, "attempts", moments and moments[n])

    def _retry_or_die(self, mail, reason, at=None):
        if mail.attempt >= mail.bound:
            mail.die(reason)
            return
        mail.free()
        mail.failures = min(mail.failures + 1, 10)
        if at is None:
            shortest, longest = policy_of(mail.queue, mail.tenant).delays(mail.attempt)
            [(at,)] = self.rows("select available_at from postrow.message where tenant = %s and id = %s", *mail.key)
            assert self.clock.now + shortest <= at <= self.clock.now + longest
        mail.available_at = at

    @some_receipts
    @rule(n=st.integers(0, 1000))
    def release_claim(self, n):
        token = self.world.receipts[-1 - n % len(self.world.receipts)].token
        held = [mail for mail in self.world.live() if mail.token == token]
        assert self.rows("select postrow.release_claim(%s)", token)[0][0] == len(held)
        for mail in held:
            mail.free()
            mail.attempt -= 1
            mail.available_at = mail.enqueued_at

    # -- the sweep and the operator

    @rule(limit=st.sampled_from([1, 2, 1000]), later=st.sampled_from([0, 0, 21, 61, 101]))
    def sweep(self, limit, later):
        """All steps, perhaps when leases have ended; what each one finds depends on what those before it did."""
        self.clock.advance(later)
        now = self.clock.now
        expired = sorted(
            (m for m in self.world.live() if m.token and m.available_at < now), key=lambda m: m.available_at
        )
        done = {row.step: row for row in self.rows("select * from postrow.sweep('leases', %s)", limit)}
        assert done["leases"].done == min(limit, len(expired))
        self._find_swept(expired, limit, lambda mail: mail.available_at, self._lease_ended)
        late = sorted(
            (m for m in self.world.live() if not m.token and m.expires_at and m.expires_at <= now),
            key=lambda m: m.expires_at,
        )
        assert self.rows("select * from postrow.sweep('expired', %s)", limit)[0].done == min(limit, len(late))
        self._find_swept(late, limit, lambda mail: mail.expires_at, lambda mail: mail.die("expired", recorded=False))
        missed = sorted(
            (m for m in self.world.live() if not m.token and m.target_until and m.target_until <= now),
            key=lambda m: m.target_until,
        )
        assert self.rows("select * from postrow.sweep('targets', %s)", limit)[0].done == min(limit, len(missed))
        self._find_swept(missed, limit, lambda mail: mail.target_until, self._anybodys)

    def _find_swept(self, candidates, limit, order, move):
        """Oldest first; of equals the database chooses, so it is asked which ones it took."""
        if len(candidates) > limit:
            edge = order(candidates[limit - 1])
            equals = [mail for mail in candidates if order(mail) == edge]
            swept = [mail for mail in equals if not self._stands(mail)]
            before = [mail for mail in candidates if order(mail) < edge]
            assert len(before) + len(swept) == limit
            candidates = before + swept
        for mail in candidates:
            move(mail)

    def _stands(self, mail):
        """Whether a message is as the model knows it."""
        return self.rows(
            "select from postrow.message where tenant = %s and id = %s and claim_token is not distinct from %s "
            "and target is not distinct from %s",
            *mail.key, mail.token, mail.target,
        )  # fmt: skip

    def _lease_ended(self, mail):
        self._retry_or_die(mail, "lease")
        if mail.place == "message":
            mail.target = mail.target_until = None

    @staticmethod
    def _anybodys(mail):
        mail.target = mail.target_until = None

    def _dead(self, n):
        dead = [mail for mail in self.world.mails.values() if mail.place == "dead_letter"]
        return dead[n % len(dead)]

    some_dead = precondition(lambda self: any(m.place == "dead_letter" for m in self.world.mails.values()))

    @some_dead
    @rule(n=st.integers(0, 1000))
    def redrive(self, n):
        dead, now = self._dead(n), self.clock.now
        if dead.resolved:
            self._refused_as_decided("select postrow.redrive(id => %s, tenant => %s)", dead)
            return
        [(new,)] = self.rows("select postrow.redrive(id => %s, tenant => %s)", dead.id, dead.tenant)
        dead.resolved = True
        again = Mail(dead.tenant, new, dead.queue, dead.priority, now, now, dead.max_attempts, failures=dead.failures)
        again.expires_at = dead.expires_at if dead.expires_at and dead.expires_at > now else None
        self.world.mails[again.key] = again

    @some_dead
    @rule(n=st.integers(0, 1000))
    def resolve(self, n):
        dead = self._dead(n)
        call = "select postrow.resolve(id => %s, tenant => %s, resolution => 'ignored', reason => 'known')"
        if dead.resolved:
            self._refused_as_decided(call, dead)
            return
        self.rows(call, dead.id, dead.tenant)
        dead.resolved = True

    def _refused_as_decided(self, call, dead):
        with pytest.raises(psycopg.Error) as refused, self.conn.transaction():
            self.rows(call, dead.id, dead.tenant)
        assert refused.value.sqlstate == "PW009"

    # -- what is always true

    @invariant()
    def every_message_is_in_its_one_place(self):
        found = self.rows("""
            select 'message' as place, tenant, id, attempt, claim_token, claimed_by, available_at, target, target_until,
                null as reason, false as resolved, coalesce(jsonb_array_length(failures), 0) as failures
            from postrow.message
            union all select 'history', tenant, id, attempt, null, null, null, target, null, null, false,
                coalesce(jsonb_array_length(failures), 0) from postrow.history
            union all select 'dead_letter', tenant, id, attempt, null, null, null, target, null, reason,
                resolved_at is not null, coalesce(jsonb_array_length(failures), 0) from postrow.dead_letter
        """)
        expected = {
            (m.place, m.tenant, m.id, m.attempt, m.token, m.worker if live else None, m.available_at if live else None,
             m.target, m.target_until if live else None, m.reason, m.resolved, m.failures)
            for m in self.world.mails.values() if m.place != "forgotten" for live in [m.place == "message"]
        }  # fmt: skip
        assert len(found) == len(expected)
        assert {tuple(row) for row in found} == expected

    @invariant()
    def attempts_are_bounded(self):
        assert all(m.attempt <= m.bound for m in self.world.mails.values())

    @invariant()
    def depths_are_exact(self):
        now, live = self.clock.now, Counter()
        for m in self.world.live():
            ready = m.token is None and m.available_at <= now and (m.expires_at is None or m.expires_at > now)
            for name in (m.tenant, None):
                live[m.queue, name] += 1
                live[m.queue, name, "pending"] += ready
        for queue, tenant, depth, pending in self.rows(
            "select q, t, postrow.depth(q, t), postrow.depth_pending(q, t) "
            "from unnest(%s::text[]) q, unnest(%s::text[]) t",
            list(QUEUES),
            [None, *TENANTS],
        ):
            assert (depth, pending) == (live[queue, tenant], live[queue, tenant, "pending"])


@pytest.mark.parametrize("examples", [20, pytest.param(100, marks=pytest.mark.slow)])
def test_the_queue_behaves_as_its_model(conn, clock, examples):
    chosen = SETTINGS if EXAMPLES else settings(SETTINGS, max_examples=examples)
    run_state_machine_as_test(lambda: Queue(conn, clock), settings=chosen)


def test_what_does_not_fit_of_the_workers_own_uses_up_the_bytes(conn):
    """Found by the model: a lane of targeted messages of which none fitted took the bound of bytes away."""
    for tenant, name, count in (("a", "w1", 2), ("c", "w1", 1), ("a", None, 1)):
        for _ in range(count):
            conn.execute("select postrow.enqueue('emails', %s, tenant => %s, target => %s)", [PAYLOAD, tenant, name])
    for call in (
        "claim('emails', 12, worker => 'w1', max_bytes => 20)",
        "claim_lanes('emails', '{a,c}', '{0,0}', '{null,null}', 5, 12, worker => 'w1', max_bytes => 20)",
    ):
        with conn.transaction(force_rollback=True):
            assert conn.execute(f"select tenant, target from postrow.{call} where id is not null").fetchall() == [
                ("a", "w1"),
                ("a", "w1"),
            ]
