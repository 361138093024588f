-- The tables. Statements are separated by a line `-- next`; each is one call.
create schema if not exists postrow

-- next
-- What has been applied here. One row a migration.
create table postrow.migration (
    version     int primary key,
    name        text collate "C" not null,
    checksum    text collate "C" not null,
    applied_at  timestamptz not null default clock_timestamp()
)

-- next
-- The function files as they stand here; a file whose checksum differs is applied again.
create table postrow.function_file (
    name        text collate "C" primary key,
    checksum    text collate "C" not null,
    applied_at  timestamptz not null default clock_timestamp()
)

-- next
-- Settings of the schema, few and by name; postrow.configure() checks them.
create table postrow.setting (
    name   text collate "C" primary key,
    value  text not null
)

-- next
insert into postrow.setting (name, value) values ('history_days', '7'), ('max_hops', '8'), ('dead_letter_days', '0')

-- next
-- Unfinished messages, and only those. Fixed-width columns first: no padding between them.
-- A claim and an extend move keys of the ready and the leased index, so no update of a claim is heap-only.
create table postrow.message (
    id            uuid not null,
    enqueued_at   timestamptz not null,
    available_at  timestamptz not null,  -- not before; the lease's end while claimed
    claimed_at    timestamptz,
    target_until  timestamptz,
    expires_at    timestamptz,
    claim_token   uuid,                  -- null: free. The whole concurrency mechanism
    parent_id     uuid,
    attempt       int not null default 0,
    max_attempts  int,
    priority      smallint not null default 0,
    hops          smallint not null default 0,
    -- of a group: free, it is not looked at until what stands before it is gone; claimed, it is handled after that
    behind        boolean not null default false,
    tenant        text collate "C" not null,
    queue         text collate "C" not null,
    enqueued_by   text,
    claimed_by    text collate "C",
    target        text collate "C",
    subject       text collate "C",
    group_key     text collate "C",
    dedup_key     text collate "C",
    topic         text collate "C",
    payload       jsonb not null,
    headers       jsonb,
    failures      jsonb,
    primary key (id, tenant)  -- ids ascend: whatever the tenant, the index grows at its end
) with (
    -- the table is small and churns: vacuum by count, not by share, and without a pause
    autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_threshold = 5000, autovacuum_analyze_scale_factor = 0.1
)

-- next
-- claim, lanes, depth_pending: the range available_at <= now bounds the scan, so a million messages
-- scheduled for tomorrow cost a claim nothing.
create index message_ready on postrow.message (queue, tenant, priority, available_at)
    where claim_token is null and target is null and not behind

-- next
-- claim of one worker's own messages, over all tenants in one probe: target stands before the lane.
create index message_targeted on postrow.message (queue, target, tenant, priority, available_at)
    where claim_token is null and target is not null and not behind

-- next
-- claim, of groups: what is claimed of one stands first, then what is free, in order. One probe says whether it is held.
create index message_group on postrow.message (queue, tenant, group_key, (claim_token is null), enqueued_at, id)
    where group_key is not null

-- next
-- sweep (groups): those that have something behind; and depth.
create index message_behind on postrow.message (queue, tenant, group_key) where behind and claim_token is null

-- next
-- sweep (leases), release_claim, depth of what is claimed.
create index message_leased on postrow.message (available_at) where claim_token is not null

-- next
-- "what happened to order 17": by the business record.
create index message_subject on postrow.message (tenant, subject) where subject is not null

-- next
-- sweep (expired).
create index message_expires on postrow.message (expires_at)
    where expires_at is not null and claim_token is null

-- next
-- sweep (targets): messages whose worker did not come in time.
create index message_target_until on postrow.message (target_until)
    where target_until is not null and claim_token is null

-- next
-- Finished messages: append-only, a partition a day, dropped whole when they are old.
create table postrow.history (
    id            uuid not null,
    enqueued_at   timestamptz not null,
    started_at    timestamptz,
    finished_at   timestamptz not null,
    expires_at    timestamptz,
    parent_id     uuid,
    attempt       int not null,
    max_attempts  int,
    priority      smallint not null,
    hops          smallint not null,
    tenant        text collate "C" not null,
    queue         text collate "C" not null,
    outcome       text collate "C" not null check (outcome in ('done', 'unrouted')),
    enqueued_by   text,
    claimed_by    text collate "C",
    target        text collate "C",
    subject       text collate "C",
    group_key     text collate "C",
    dedup_key     text collate "C",
    topic         text collate "C",
    payload       jsonb not null,
    headers       jsonb,
    failures      jsonb
) partition by range (finished_at)

-- next
-- show: by the message's id.
create index history_id on postrow.history (id)

-- next
create index history_subject on postrow.history (tenant, subject) where subject is not null

-- next
-- What no day's partition takes; the sweep moves its rows to one.
create table postrow.history_default partition of postrow.history default

-- next
-- sweep (history): whose rows these are.
create index history_default_finished on postrow.history_default (finished_at)

-- next
-- Messages that ran out of attempts, expired or were buried; kept until a person decides.
create table postrow.dead_letter (
    id                 uuid not null,
    enqueued_at        timestamptz not null,
    claimed_at         timestamptz,
    died_at            timestamptz not null,
    expires_at         timestamptz,
    resolved_at        timestamptz,
    parent_id          uuid,
    redriven_as        uuid,
    attempt            int not null,
    max_attempts       int,
    priority           smallint not null,
    hops               smallint not null,
    tenant             text collate "C" not null,
    queue              text collate "C" not null,
    reason             text collate "C" not null
        check (reason in ('attempts', 'expired', 'buried', 'hops', 'lease')),
    resolution         text collate "C" check (resolution in ('redriven', 'ignored', 'handled')),
    resolution_reason  text,
    resolved_by        text,
    enqueued_by        text,
    claimed_by         text collate "C",
    target             text collate "C",
    subject            text collate "C",
    group_key          text collate "C",
    dedup_key          text collate "C",
    topic              text collate "C",
    payload            jsonb not null,
    headers            jsonb,
    failures           jsonb,
    primary key (id, tenant)  -- the id first: show looks for it alone
)

-- next
-- status and dead list: what waits for a decision.
create index dead_letter_open on postrow.dead_letter (queue, tenant, died_at) where resolved_at is null

-- next
-- claim: what blocks a group, where the consumer has on_dead = 'block'.
create index dead_letter_group on postrow.dead_letter (queue, tenant, group_key)
    where group_key is not null and resolved_at is null

-- next
-- sweep (dead): what is older than dead_letter_days, but for what may block a group.
create index dead_letter_old on postrow.dead_letter (coalesce(resolved_at, died_at))
    where resolved_at is not null or group_key is null

-- next
-- show: where a redriven message came from.
create index dead_letter_redriven on postrow.dead_letter (redriven_as) where redriven_as is not null

-- next
-- The ledger behind caller-supplied ids, deduplication and once: its key is inserted in the caller's
-- transaction before the message, and lives for a stated time whatever the history keeps.
create table postrow.seen (
    until       timestamptz not null,
    message_id  uuid,
    tenant      text collate "C" not null,
    scope       text collate "C" not null,
    key         text collate "C" not null,
    queue       text collate "C",
    primary key (tenant, scope, key)
)

-- next
-- sweep (seen).
create index seen_until on postrow.seen (until)

-- next
-- What is published to a topic that fits the pattern goes to the queue, too. Read by every publish: few rows.
create table postrow.subscription (
    tenant         text collate "C" not null,
    pattern        text collate "C" not null,
    queue          text collate "C" not null,
    registered_by  text not null,
    registered_at  timestamptz not null,
    primary key (tenant, pattern, queue)
)

-- next
-- What is not claimed until it is resumed: of one tenant or of all ('*'), in one queue or in all ('*'). Read by each claim.
create table postrow.pause (
    tenant     text collate "C" not null,
    queue      text collate "C" not null,
    reason     text,
    paused_by  text not null,
    paused_at  timestamptz not null,
    primary key (tenant, queue)
)

-- next
-- What is enqueued at times. Written by who declares it, and by the scheduler that has it when it is due.
create table postrow.schedule (
    tenant         text collate "C" not null,
    name           text collate "C" not null,
    kind           text collate "C" not null check (kind in ('cron', 'every', 'at')),
    spec           text not null,
    timezone       text not null,
    queue          text collate "C" not null,
    payload        jsonb not null,
    priority       smallint not null,
    headers        jsonb,
    max_attempts   int,
    missed         text collate "C" not null check (missed in ('skip', 'once', 'all')),
    paused         boolean not null default false,
    next_at        timestamptz,  -- null: it is over
    last_at        timestamptz,  -- the last time that was enqueued
    registered_by  text not null,
    registered_at  timestamptz not null,
    primary key (tenant, name)
)

-- next
-- due_schedules, next_schedule.
create index schedule_next on postrow.schedule (next_at) where next_at is not null and not paused

-- next
-- What handles a queue, one for each (tenant or '*' for all, queue), how it is retried, and how much of it goes on at once.
create table postrow.consumer (
    tenant         text collate "C" not null,
    queue          text collate "C" not null,
    handler        text collate "C" not null,
    kind           text collate "C" not null,
    lease          interval not null,
    retry          text collate "C" not null check (retry in ('exponential', 'linear', 'constant')),
    retry_base     interval not null,
    retry_factor   double precision not null,
    retry_cap      interval not null,
    retry_jitter   boolean not null,
    max_attempts   int not null check (max_attempts >= 1),
    keep_history   boolean not null,
    tells_dead     boolean not null,  -- its dead letters are told to the queue with `:dead` behind its name
    on_dead        text collate "C" not null check (on_dead in ('continue', 'block')),  -- what a group does then
    max_in_flight         int check (max_in_flight >= 1),  -- of all that it handles; null, here and below: no limit
    tenant_max_in_flight  int check (tenant_max_in_flight >= 1),  -- of each tenant
    rate                  int check (rate >= 1),  -- so many claims each rate_period, of all that it handles
    rate_period           interval,
    tenant_rate           int check (tenant_rate >= 1),
    tenant_rate_period    interval,
    registered_by  text,
    registered_at  timestamptz not null,
    primary key (tenant, queue)
)

-- next
-- claim: whether its queue has a limit.
create index consumer_limited on postrow.consumer (queue)
    where coalesce(max_in_flight, tenant_max_in_flight, rate, tenant_rate) is not null

-- next
-- What is left of a rate: tokens at a moment, from which it fills up again. A row for each consumer with a rate (tenant as
-- its own) and, in scope `tenant`, for each tenant of one with a tenant_rate. Written by each claim of such a queue, under
-- its lock, and by no other.
create table postrow.bucket (
    at      timestamptz not null,
    tokens  double precision not null,
    tenant  text collate "C" not null,
    queue   text collate "C" not null,
    scope   text collate "C" not null check (scope in ('consumer', 'tenant')),
    primary key (queue, scope, tenant)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.1,
    autovacuum_vacuum_cost_delay = 0)

-- next
-- The workers that were seen lately. Nothing depends on it: leases are the truth.
create table postrow.worker (
    id          uuid primary key,
    name        text collate "C" not null,
    host        text not null,
    pid         int not null,
    queues      text[] not null,
    tenants     text[],  -- of each queue: whose consumer it is, '*' for all; null: it does not say
    version     text not null,
    started_at  timestamptz not null,
    beat_at     timestamptz not null,
    skew        interval  -- its clock less the database's; null: it does not say
)

-- next
-- The database that workers work on: where the first one started, or what was adopted since. A copy has its original's row.
create table postrow.home (
    one                boolean primary key default true check (one),
    system_identifier  bigint,  -- of the server; null: the schema's owner may not read it
    database_oid       oid not null,
    database_name      text not null,
    adopted_by         text not null,
    adopted_at         timestamptz not null
)

-- next
-- What a claim gives: a row for each message; and, from claim_lanes (and claim with `after`), one with a null
-- id for each lane that gave none, for its frontier.
create type postrow.claimed as (
    lane          int,
    tenant        text collate "C",
    id            uuid,
    queue         text collate "C",
    priority      smallint,
    payload       jsonb,
    headers       jsonb,
    attempt       int,
    max_attempts  int,
    claim_token   uuid,
    claimed_at    timestamptz,
    lease_until   timestamptz,
    due_at        timestamptz,
    enqueued_at   timestamptz,
    subject       text collate "C",
    target        text collate "C",
    group_key     text collate "C",
    topic         text collate "C",
    parent_id     uuid,
    hops          smallint,
    expires_at    timestamptz,
    failures      jsonb,
    frontier      timestamptz,
    place         tid           -- where it is, as long as nobody changes it
)

-- next
-- What a step of the sweep did.
create type postrow.swept as (step text collate "C", done int, more boolean)

-- next
-- Memory cells for the last taps (functions/30_tap.sql): set at once, seen by all sessions, never rolled back, no WAL; a
-- crash forgets them. Nothing is numbered by them.
do $$
begin
    for n in 0..31 loop
        execute format('create unlogged sequence postrow.tap_%s minvalue -4611686018427387904 maxvalue 4611686018427387903 '
            'start 0', n);
    end loop;
end
$$

-- next
-- Another one: which worker sweeps, and when it last did (functions/80_sweep.sql).
create unlogged sequence postrow.sweeper minvalue 0 start 0
