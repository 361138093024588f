"""The database goes away, comes back, is read-only, or cuts the worker's sessions."""

import json
import socket
import struct
import threading
import urllib.error
import urllib.request

import psycopg
import pytest
from pgbouncer import POOLED

from postrow.errors import BadArgumentError
from postrow.worker import connections, health
from postrow.worker import heartbeat as heartbeat_module
from postrow.worker import sweeper as sweeper_module
from postrow.worker.health import Health, HealthServer, _Server
from postrow.worker.sweeper import Sweeper

pytestmark = pytest.mark.slow


@pytest.fixture
def handled(app):
    """The payloads that the handler of queue q has had."""
    payloads = []

    @app.queue("q").consumer(lease=30)
    async def handle(message):
        payloads.append(message.payload)

    return payloads


@pytest.mark.session("it looks for the sessions of a worker's parts")
def test_each_part_goes_on_after_its_session_was_terminated(db, start, wait_for, handled, lines):
    start()
    for n, part in enumerate(["claimer", "acker", "heartbeat", "listener", "sweeper", ""]):
        wait_for(lambda part=part: db.backends(part))
        db.terminate(part)
        db.put(payload=n)
        wait_for(lambda n=n: n in handled)
        wait_for(lambda: db.live() == 0)
    assert lines("begins again") == []


@pytest.mark.usefixtures("impatient")
def test_an_outage_is_survived_with_few_lines_and_what_was_committed_is_handled(db, start, wait_for, handled, lines):
    start(poll_interval=60)
    db.put(payload=1)
    wait_for(lambda: db.live() == 0)
    with db.away():
        wait_for(lambda: lines("database trouble"))
        wait_for(lambda: not db.backends())
    db.put(payload=2)
    wait_for(lambda: 2 in handled)
    wait_for(lambda: lines("the database is back"))
    assert 1 <= len(lines("", level=30)) <= 6


@pytest.mark.usefixtures("impatient")
def test_outcomes_of_an_outage_are_written_on_return_and_no_handler_runs_twice(
    app, db, start, wait_for, until, troubled
):
    inside, may_end = threading.Semaphore(0), threading.Event()
    starts = []

    @app.queue("q").consumer(lease=30)
    async def handle(message):
        starts.append(message.payload)
        inside.release()
        await until(may_end)
        if message.payload % 2:
            raise ValueError("odd")

    db.put_many(range(6), max_attempts=1)
    start()
    for _ in range(6):
        assert inside.acquire(timeout=20)
    with db.away():
        may_end.set()
        if not POOLED:  # PgBouncer lets its statement wait
            wait_for(lambda: "acker" in troubled)
    wait_for(lambda: db.live() == 0)
    assert sorted(starts) == list(range(6))
    assert db.done() == 3
    assert db.value("select count(*) from postrow.dead_letter where reason = 'attempts'") == 3


@pytest.mark.usefixtures("impatient")
def test_a_claim_whose_answer_was_lost_is_given_back_at_once(app, db, start, wait_for, handled, monkeypatch):
    """The session dies between the claim's commit and its answer: no lease has to end first."""
    from postrow.worker import claimer

    original, cut = claimer.execute_async, []

    async def lossy(conn, op, **options):
        answer = await original(conn, op, **options)
        if "claim_lanes" in op.sql and not cut and answer.messages:
            cut.append(answer.messages[0].id)
            raise psycopg.OperationalError("the connection is lost")
        return answer

    monkeypatch.setattr(claimer, "execute_async", lossy)
    id_ = db.put(payload=1)
    start(poll_interval=60)
    wait_for(lambda: db.history(id_))
    assert cut == [id_]
    assert handled == [1]
    assert db.history(id_).attempt == 1


@pytest.mark.usefixtures("impatient")
def test_a_claim_that_is_committed_after_its_connection_was_lost_is_given_back_a_moment_later(
    db, start, wait_for, handled, monkeypatch
):
    """The server was at it still when the worker was there again, and asked for it in vain."""
    from postrow.worker import claimer

    original, released, cut = claimer.execute_async, [], []
    with psycopg.connect(db.dsn) as server:

        async def lossy(conn, op, **options):
            if "claim_lanes" in op.sql and not cut:
                sql = "select id from postrow.claim_lanes('q', '{default}', '{0}', '{null}', 9, 9, token => %s)"
                cut.extend(server.execute(sql, [op.params[8]]).fetchall())
                raise psycopg.OperationalError("the connection is lost")
            answer = await original(conn, op, **options)
            if "release_claim" in op.sql:
                released.append(answer)
                server.commit()  # after the first of them
            return answer

        monkeypatch.setattr(claimer, "execute_async", lossy)
        id_ = db.put(payload=1)
        start(poll_interval=60)
        wait_for(lambda: db.history(id_))
    assert cut == [(id_,)]
    assert released == [0, 1]
    assert handled == [1]
    assert db.history(id_).attempt == 1


def test_a_read_only_database_is_borne_with_few_lines_and_no_loop(db, start, wait_for, handled, lines, monkeypatch):
    pauses = []
    original = connections.Backoff.pause

    def counted(self):
        pauses.append(original(self))
        return min(pauses[-1], 0.2)

    monkeypatch.setattr(connections.Backoff, "pause", counted)
    start()
    db.put(payload=1)
    wait_for(lambda: db.live() == 0)
    with db.read_only():
        db.put(payload=2)
        wait_for(lambda: len(pauses) > 20 and max(pauses) > 1)
        assert 2 not in handled
    wait_for(lambda: db.live() == 0)
    assert handled == [1, 2]
    assert 1 <= len(lines("", level=30)) <= 5
    assert max(pauses) > 1


@pytest.mark.usefixtures("impatient")
def test_a_handler_that_ends_while_the_database_is_read_only_is_done_once(app, db, start, wait_for, troubled):
    inside, may_end, starts = threading.Event(), threading.Event(), []

    @app.queue("q").consumer(lease=30)
    def handle(message):
        starts.append(message.payload)
        inside.set()
        may_end.wait(20)

    id_ = db.put()
    start()
    assert inside.wait(20)
    with db.read_only():
        may_end.set()
        wait_for(lambda: "acker" in troubled)
        assert db.message(id_).claim_token is not None
    wait_for(lambda: db.history(id_))
    assert starts == [1]


@pytest.mark.usefixtures("impatient")
def test_a_worker_that_starts_before_its_database_waits_for_it(db, start, wait_for, handled, lines):
    with db.away():
        start()
        wait_for(lambda: lines("database trouble in start"))
    db.put(payload=1)
    wait_for(lambda: handled == [1])


def test_the_pauses_grow_to_a_cap_and_are_random():
    backoff = connections.Backoff()
    pauses = [backoff.pause() for _ in range(40)]
    assert 0.05 <= pauses[0] <= 0.1
    assert all(pause <= 15 for pause in pauses)
    assert all(pause >= 7.5 for pause in pauses[10:])
    assert len(set(pauses)) == 40
    backoff.reset()
    assert backoff.pause() <= 0.1


def test_an_outage_of_many_parts_is_one_line_each_half_minute(lines, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(connections.time, "monotonic", lambda: now[0])
    weather = connections.Weather()
    for _ in range(600):  # ten minutes, four parts, a failure of each in a second
        now[0] += 1
        for part in ("claimer", "acker", "heartbeat", "listener"):
            weather.failed(part, OSError("refused"))
    assert len(lines("database trouble")) <= 21
    for part in ("claimer", "acker", "heartbeat", "listener"):
        weather.fine(part)
    (line,) = lines("the database is back")
    assert "after 599" in line


def test_a_part_that_raises_is_said_and_begins_again(app, db, start, wait_for, lines, soon, monkeypatch):
    original, failures = Sweeper.run, []

    async def fail_once(self):
        if not failures:
            failures.append(1)
            raise ZeroDivisionError("a defect")
        await original(self)

    monkeypatch.setattr(Sweeper, "run", fail_once)

    @app.queue("q").consumer(retry=soon)
    async def handle(_message):
        pass

    start()
    id_ = db.put()
    wait_for(lambda: db.history(id_))
    wait_for(lambda: lines("the sweeper failed, and begins again"))
    expired = db.put(queue="unknown", max_attempts=1)
    db.rows("select 1 from postrow.claim('unknown', 1, lease => '0.01 s')")
    assert wait_for(lambda: db.dead(expired)).reason == "lease"


def ask(port, page):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{page}", timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read()) if error.headers.get_content_subtype() == "json" else None


@pytest.mark.usefixtures("impatient")
def test_the_health_pages_tell_live_from_ready(db, start, wait_for, handled):
    running = start(health=("127.0.0.1", 0))
    port = wait_for(lambda: running.worker.health_port)
    wait_for(lambda: ask(port, "/ready")[0] == 200)
    status, page = ask(port, "/live")
    assert (status, page["live"], page["ready"]) == (200, True, True)
    assert page["detail"]["worker"] == "w1"
    assert ask(port, "/other")[0] == 404
    with db.away():
        wait_for(lambda: ask(port, "/ready")[0] == 503)
        status, page = ask(port, "/live")
        assert status == 200
        assert page["detail"]["without_database"]
    wait_for(lambda: ask(port, "/ready")[0] == 200)


@pytest.mark.usefixtures("impatient")
@pytest.mark.session("it has a connection to listen")
def test_a_worker_that_hears_no_taps_is_ready_and_says_so(db, start, wait_for, handled):
    running = start(health=("127.0.0.1", 0), listen_dsn="postgresql://127.0.0.1:1/nowhere", poll_interval=0.05)
    port = wait_for(lambda: running.worker.health_port)
    wait_for(lambda: "listener" in ask(port, "/ready")[1]["detail"]["without_database"])
    wait_for(lambda: ask(port, "/ready")[0] == 200)
    db.put(payload=1)
    wait_for(lambda: handled == [1])
    status, page = ask(port, "/ready")
    assert (status, list(page["detail"]["without_database"])) == (200, ["listener"])


def fine():
    return Health(live=True, ready=True, detail={})


def test_health_pages_are_served_on_an_address_of_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    server = HealthServer(("::1", 0), fine)
    try:
        with urllib.request.urlopen(f"http://[::1]:{server.port}/live", timeout=10) as answer:
            assert answer.status == 200
    finally:
        server.close()


def test_a_client_of_the_health_pages_that_resets_its_connection_is_no_event(monkeypatch, capfd, lines):
    monkeypatch.setattr(socket, "getfqdn", lambda _name="": pytest.fail("the name of this host was asked for"))
    ended = threading.Event()
    shut = _Server.shutdown_request
    monkeypatch.setattr(_Server, "shutdown_request", lambda *args: (shut(*args), ended.set()))
    server = HealthServer(("127.0.0.1", 0), fine)
    try:
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(b"GET /li")
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert ended.wait(20)
        assert ask(server.port, "/live")[0] == 200
    finally:
        server.close()
    assert capfd.readouterr().err == ""
    assert lines("health page") == []


@pytest.mark.usefixtures("impatient")
def test_a_worker_that_waits_for_its_database_is_live_and_not_ready(db, start, wait_for, handled):
    with db.away():
        running = start(health=("127.0.0.1", 0))
        port = wait_for(lambda: running.worker.health_port)
        wait_for(lambda: ask(port, "/live")[1]["detail"]["without_database"])
        assert [ask(port, page)[0] for page in ("/live", "/ready")] == [200, 503]
    wait_for(lambda: ask(port, "/ready")[0] == 200)


def test_a_loop_that_is_blocked_for_long_is_not_live(app, db, start, wait_for, monkeypatch):
    from postrow.worker import condition

    monkeypatch.setattr(condition, "STUCK", 0.3)
    may_end = threading.Event()

    @app.queue("q").consumer(lease=30)
    async def blocks(_message):
        may_end.wait(20)

    running = start(health=("127.0.0.1", 0))
    port = wait_for(lambda: running.worker.health_port)
    wait_for(lambda: ask(port, "/ready")[0] == 200)
    db.put()
    wait_for(lambda: ask(port, "/live")[0] == 503)
    assert ask(port, "/live")[1]["detail"]["loop_blocked_for"] > 0.3
    may_end.set()
    wait_for(lambda: ask(port, "/live")[0] == 200)


@pytest.mark.session("PgBouncer lets statements wait in an outage")
def test_an_outage_is_not_taken_for_a_blocked_loop(db, start, wait_for, handled, monkeypatch):
    monkeypatch.setattr(heartbeat_module.Backoff, "pause", lambda self: 0.5)
    monkeypatch.setattr(heartbeat_module, "IDLE_BEAT_EVERY", 0.2)  # else it is away for 20 s until that is noticed
    running = start(health=("127.0.0.1", 0))
    port = wait_for(lambda: running.worker.health_port)
    wait_for(lambda: ask(port, "/ready")[0] == 200)
    with db.away():
        wait_for(lambda: "heartbeat" in ask(port, "/ready")[1]["detail"].get("without_database", {}))
        assert all(ask(port, "/live")[1]["detail"]["loop_blocked_for"] < 0.4 for _ in range(50))


def test_a_port_that_is_taken_is_an_error_at_the_start(start, handled):
    taken = health.HealthServer(("127.0.0.1", 0), lambda: health.Health(True, True, {}))
    try:
        error = start(health=("127.0.0.1", taken.port)).end()
    finally:
        taken.close()
    assert isinstance(error, BadArgumentError)
    assert error.message == f"cannot serve health pages on 127.0.0.1:{taken.port}: Address already in use"
    assert "a free port" in error.hint


@pytest.mark.parametrize(
    ("address", "said"), [(("nowhere.invalid", 0), "nowhere.invalid:0: "), (("127.0.0.1", 70000), "127.0.0.1:70000: ")]
)
def test_so_is_an_address_that_there_is_not(start, handled, address, said):
    error = start(health=address).end()
    assert isinstance(error, BadArgumentError)
    assert said in error.message


@pytest.mark.usefixtures("impatient")
@pytest.mark.session("PgBouncer lets statements wait in an outage")
def test_a_worker_is_ready_after_an_outage_before_it_sweeps_again(db, start, wait_for, handled, monkeypatch, troubled):
    monkeypatch.setattr(sweeper_module, "AFTER_OUTAGE", 3600.0)
    sweeps, sweep = [], Sweeper._sweep

    async def noted(sweeper, conn, **options):
        await sweep(sweeper, conn, **options)
        sweeps.append(options)

    monkeypatch.setattr(Sweeper, "_sweep", noted)
    running = start(health=("127.0.0.1", 0))
    port = wait_for(lambda: running.worker.health_port)
    wait_for(lambda: sweeps)
    with db.away():
        wait_for(lambda: "sweeper" in troubled)
        before = len(sweeps)
    wait_for(lambda: ask(port, "/ready")[0] == 200)
    assert len(sweeps) == before


@pytest.mark.usefixtures("impatient")
def test_a_lease_that_ended_in_an_outage_is_renewed_on_return_and_not_swept(app, db, start, until, wait_for):
    inside, may_end, starts = threading.Event(), threading.Event(), []

    @app.queue("q").consumer(lease=0.4)
    async def handle(message):
        starts.append(message.payload)
        inside.set()
        await until(may_end)

    id_ = db.put()
    start()
    assert inside.wait(20)
    with db.away():
        wait_for(lambda: db.value("select available_at < postrow.clock() from postrow.message"))
    wait_for(lambda: db.value("select available_at > postrow.clock() from postrow.message"))
    may_end.set()
    wait_for(lambda: db.history(id_))
    assert starts == [1]
    assert db.history(id_).attempt == 1
