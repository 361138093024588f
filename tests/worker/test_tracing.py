"""Spans of producers and handlers, and how they hang together."""

import asyncio

import psycopg
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.trace import SpanKind, StatusCode

import postrow


class Spans:
    """What was exported, by name."""

    def __init__(self, wait_for):
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("the test")
        self._wait_for = wait_for

    def all(self, name):
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def one(self, name):
        self._wait_for(lambda: self.all(name), what=f"a span {name}")
        (span,) = self.all(name)
        return span


@pytest.fixture
def spans(wait_for, monkeypatch):
    """A program that has set up OpenTelemetry; its own setter works once a process."""
    it = Spans(wait_for)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", it.provider)
    yield it
    it.provider.shutdown()


def headers_of(db, id_):
    return db.message(id_).headers or {}


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_handlers_span_is_a_child_of_the_one_that_made_its_message(kind, spans, app, db, start):
    inside = []
    if kind == "async":

        @app.queue("q").consumer(name="handler")
        async def handle(message):
            await asyncio.sleep(0)
            inside.append(trace.get_current_span().get_span_context().span_id)
    else:

        @app.queue("q").consumer(name="handler")
        def handle(message):
            inside.append(trace.get_current_span().get_span_context().span_id)

    with spans.tracer.start_as_current_span("a request") as request:
        sent = app.send("q", 1, tenant="acme")
    start()
    made, ran = spans.one("enqueue q"), spans.one("process q")
    assert made.parent.span_id == request.get_span_context().span_id
    assert ran.parent.span_id == made.context.span_id
    assert [link.context.span_id for link in ran.links] == [made.context.span_id]
    assert ran.context.trace_id == made.context.trace_id == request.get_span_context().trace_id
    assert (made.kind, ran.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert dict(made.attributes) == {
        "messaging.system": "postrow",
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "create",
        "messaging.destination.name": "q",
        "messaging.message.id": str(sent.id),
        "messaging.postrow.tenant": "acme",
    }
    assert dict(ran.attributes) == {
        "messaging.system": "postrow",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "q",
        "messaging.consumer.group.name": "handler",
        "messaging.client.id": "w1",
        "messaging.message.id": str(sent.id),
        "messaging.postrow.tenant": "acme",
        "messaging.postrow.message.attempt": 1,
    }
    assert ran.status.status_code is StatusCode.UNSET
    assert inside == [ran.context.span_id]
    known = {value for name, value in vars(messaging_attributes).items() if name.startswith("MESSAGING_")}
    assert {name for name in {**made.attributes, **ran.attributes} if ".postrow." not in name} <= known


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_what_a_handler_enqueues_goes_on_with_its_trace(kind, spans, app, db, start):
    second = app.queue("second")
    if kind == "async":

        @app.queue("first").consumer()
        async def handle(message):
            async with message.transaction() as tx:
                await postrow.enqueue(tx, "second", 2)
    else:

        @app.queue("first").consumer()
        def handle(message):
            with message.transaction() as tx:
                postrow.enqueue(tx, "second", 2)

    @second.consumer()
    async def follow(message):
        pass

    db.put("first")
    start()
    first, made, last = spans.one("process first"), spans.one("enqueue second"), spans.one("process second")
    assert first.parent is None
    assert made.parent.span_id == first.context.span_id
    assert last.parent.span_id == made.context.span_id
    assert last.context.trace_id == first.context.trace_id


@pytest.mark.parametrize("raised", [ValueError("no"), postrow.Retry("later"), postrow.Bury("never")])
@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_failure_is_the_spans_error(kind, raised, spans, app, db, start):
    queue = app.queue("q")
    if kind == "async":

        @queue.consumer(max_attempts=1)
        async def handle(message):
            raise raised
    else:

        @queue.consumer(max_attempts=1)
        def handle(message):
            raise raised

    db.put()
    start()
    span = spans.one("process q")
    name = type(raised).__name__
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == f"{name}: {raised}"
    assert span.attributes["error.type"] == name
    (event,) = span.events
    assert event.name == "exception"
    assert event.attributes["exception.message"] == str(raised)


def test_a_handler_that_takes_too_long_has_failed_in_its_span(spans, app, db, start):
    @app.queue("q").consumer(timeout=0.05, max_attempts=1)
    async def handle(message):
        await asyncio.sleep(60)

    db.put()
    start()
    assert spans.one("process q").attributes["error.type"] == "TimeoutError"


def test_a_snooze_is_no_error(spans, app, db, start):
    @app.queue("q").consumer()
    async def handle(message):
        raise postrow.Snooze(3600)

    db.put()
    start()
    span = spans.one("process q")
    assert span.status.status_code is StatusCode.UNSET
    assert span.events == ()


def test_each_attempt_is_a_span_of_the_same_trace(spans, app, db, start, soon, wait_for):
    @app.queue("q").consumer(retry=soon)
    async def handle(message):
        if message.attempt == 1:
            raise ValueError

    with spans.tracer.start_as_current_span("a request"):
        app.send("q", 1)
    start()
    wait_for(lambda: len(spans.all("process q")) == 2, what="two spans")
    first, second = spans.all("process q")
    assert first.parent == second.parent
    assert [s.attributes["messaging.postrow.message.attempt"] for s in (first, second)] == [1, 2]


def test_where_no_span_is_active_a_message_has_no_context(spans, app, db):
    sent = app.send("q", 1, headers={"mine": 1})
    assert headers_of(db, sent.id) == {"mine": 1}
    assert spans.exporter.get_finished_spans() == ()


def test_the_callers_headers_win(spans, app, db):
    theirs = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with spans.tracer.start_as_current_span("a request"):
        sent = app.send("q", 1, headers={"traceparent": theirs})
    assert headers_of(db, sent.id) == {"traceparent": theirs}
    assert spans.all("enqueue q") == []


def test_other_headers_of_the_caller_stay(spans, app, db):
    with spans.tracer.start_as_current_span("a request"):
        sent = app.send("q", 1, headers={"mine": [1]})
    context = spans.one("enqueue q").context
    kept = headers_of(db, sent.id)
    assert kept.pop("traceparent").startswith(f"00-{context.trace_id:032x}-{context.span_id:016x}-")
    assert kept == {"mine": [1]}


def test_many_messages_share_one_context(spans, db):
    with spans.tracer.start_as_current_span("a request"), psycopg.connect(db.dsn) as conn:
        sent = postrow.enqueue_many(conn, "q", range(5000))
    made = spans.one("enqueue_many q")
    found = db.rows("select distinct headers->>'traceparent' from postrow.message")
    assert len(sent) == 5000
    assert [row[0].split("-")[2] for row in found] == [f"{made.context.span_id:016x}"]


def test_what_is_published_carries_the_trace_to_each_queue(spans, app, db, start, wait_for):
    for queue in ("a", "b"):

        @app.subscribe("order.paid", queue=queue)
        async def handle(message):
            pass

    start()
    wait_for(lambda: db.value("select count(*) from postrow.subscription") == 2, what="the subscriptions")
    with spans.tracer.start_as_current_span("a request"), psycopg.connect(db.dsn) as conn:
        postrow.publish(conn, "order.paid", 1)
    made = spans.one("publish order.paid")
    assert {spans.one(f"process {queue}").parent.span_id for queue in ("a", "b")} == {made.context.span_id}


@pytest.mark.parametrize("broken", ["nonsense", 17, None, "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
def test_a_context_that_cannot_be_read_begins_a_new_trace(broken, spans, app, db, start):
    @app.queue("q").consumer()
    async def handle(message):
        pass

    app.send("q", 1, headers={"traceparent": broken, "tracestate": 3})
    start()
    span = spans.one("process q")
    assert span.parent is None
    assert span.links == ()


def test_a_span_around_the_worker_is_no_parent(spans, app, db, wait_for):
    from postrow.worker import Worker

    @app.queue("q").consumer()
    async def handle(message):
        pass

    async def serve():
        worker = Worker(app)
        with spans.tracer.start_as_current_span("the program"):
            task = asyncio.create_task(worker.serve())
            while not spans.all("process q"):  # noqa: ASYNC110  # another thread exports it
                await asyncio.sleep(0.01)
        worker.stop()
        await task

    db.put()
    asyncio.run(serve())
    assert spans.one("process q").parent is None


def test_a_sampler_that_breaks_fails_no_message(app, db, start, wait_for, monkeypatch, lines):
    class Broken(Sampler):
        def should_sample(self, *args, **kwargs):
            raise RuntimeError("a bug")

        def get_description(self):
            return "broken"

    monkeypatch.setattr(trace, "_TRACER_PROVIDER", TracerProvider(sampler=Broken()))

    @app.queue("q").consumer()
    async def handle(message):
        pass

    id_ = db.put()
    start()
    wait_for(lambda: db.history(id_), what="the message")
    assert db.history(id_).outcome == "done"
    assert lines("no span could be made")


def test_a_program_that_has_not_set_up_tracing_makes_no_spans(app, db, start, wait_for, monkeypatch, lines):
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    seen = []

    @app.queue("q").consumer()
    def handle(message):
        seen.append((trace.get_current_span().get_span_context().is_valid, dict(message.headers)))

    app.send("q", 1)
    start()
    wait_for(lambda: seen, what="the handler")
    assert seen == [(False, {})]
    assert lines("traced") == []


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_batchs_span_is_linked_to_those_that_made_its_messages_and_is_a_child_of_none(kind, spans, app, db, start):
    inside = []

    def handle(messages):
        inside.append(trace.get_current_span().get_span_context().span_id)
        return [LookupError("no such user"), None]

    async def handle_async(messages):
        return handle(messages)

    app.queue("q").consumer(name="handler", batch=2)(handle if kind == "sync" else handle_async)
    with spans.tracer.start_as_current_span("a request"):
        db_first, db_second = app.send("q", 1), app.send("q", 2)
    start()
    ran = spans.one("process q")
    assert ran.parent is None
    made = {span.attributes["messaging.message.id"]: span.context.span_id for span in spans.all("enqueue q")}
    assert [link.context.span_id for link in ran.links] == [made[str(db_first.id)], made[str(db_second.id)]]
    assert ran.attributes["messaging.batch.message_count"] == 2
    assert "messaging.message.id" not in ran.attributes
    assert inside == [ran.context.span_id]
