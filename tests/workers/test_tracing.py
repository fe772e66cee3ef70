"""Traces of handlers: which spans there are, and how they refer to each other."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from urllib.request import Request, urlopen

import pytest
from fixtures.apps import free_port
from fixtures.threads import wait_until
from fixtures.worker import WorkerProgram, is_settled, running
from opentelemetry import propagate, trace
from opentelemetry.context import Context as TraceContext
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from jetstream_sync import JetStream, shared_connection
from jetstream_sync.workers import Backoff, Context, Reject, Worker, WorkerCollector
from jetstream_sync.workers.tracing import tracing_middleware

FAST = Backoff(first=0.1, factor=1.0, jitter=0.0, attempts=2)


class Fault(SpanProcessor):
    """Raises while it is active."""

    active = False

    def on_start(self, span: Span, parent_context: TraceContext | None = None) -> None:
        if self.active:
            raise RuntimeError("the tracer is broken")


EXPORTER = InMemorySpanExporter()
FAULT = Fault()


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """The finished spans; the provider can be set only once in a process."""
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
        provider.add_span_processor(FAULT)
        trace.set_tracer_provider(provider)
    EXPORTER.clear()
    yield EXPORTER
    FAULT.active = False


def publish_traced(js: JetStream, subject: str, payload: bytes = b"") -> trace.SpanContext:
    """Publish a message as the documentation shows; return the context of the span."""
    with trace.get_tracer("tests").start_as_current_span("producer") as span:
        headers: dict[str, str] = {}
        propagate.inject(headers)
        js.publish(subject, payload, headers=headers)
        return span.get_span_context()


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


def ids(context: trace.SpanContext | None) -> tuple[int, int]:
    return context.trace_id, context.span_id


def test_a_trace_spans_workers_and_dead_letters(js, stream, worker, spans, jsm):
    """From the producer through two workers and a requeued dead letter, each span refers to the one before."""
    heal = []

    @worker.handler(stream=stream.name, consumer="A", filter_subject=f"{stream.name}.in")
    def first(ctx: Context) -> None:
        ctx.publish(f"{stream.name}.out", b"x", headers={"Customer": "7"})

    @worker.handler(stream=stream.name, consumer="B", filter_subject=f"{stream.name}.out")
    def second(ctx: Context) -> None:
        assert ctx.message.headers["Customer"] == "7"
        if not heal:
            raise Reject("not yet")

    with running(worker):
        producer = publish_traced(js, f"{stream.name}.in")
        wait_until(lambda: len(named(spans, "process B")) == 1 and is_settled(stream, "B"))
        heal.append(True)
        jsm("consumer", "dlq", "requeue", stream.name, "B", "--all", "-f").ok()
        wait_until(lambda: len(named(spans, "process B")) == 2)
    (process_a,) = named(spans, "process A")
    (publish,) = named(spans, "publish")
    rejected, handled = named(spans, "process B")
    assert [ids(link.context) for link in process_a.links] == [ids(producer)]
    assert process_a.parent is None
    assert ids(publish.parent) == ids(process_a.context)
    for span in (rejected, handled):
        assert [ids(link.context) for link in span.links] == [ids(publish.context)]
    assert (process_a.kind, publish.kind) == (SpanKind.CONSUMER, SpanKind.PRODUCER)
    assert rejected.attributes["error.type"] == "Reject"
    assert rejected.status.status_code is StatusCode.ERROR
    assert handled.status.status_code is StatusCode.UNSET
    found = dict(process_a.attributes or {})
    assert str(found.pop("messaging.message.id")).startswith(f"{stream.name}/A/1/")
    assert found == {
        "messaging.system": "nats",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": f"{stream.name}.in",
        "messaging.consumer.group.name": "A",
        "messaging.message.body.size": 0,
        "messaging.nats.stream": stream.name,
        "messaging.nats.stream_sequence": 1,
        "messaging.nats.delivery_attempt": 1,
    }


def scraped(port: int, accept: str) -> tuple[str, str]:
    """Return the content type and the text of the metrics."""
    request = Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept": accept})
    with urlopen(request, timeout=10) as response:
        return response.headers["Content-Type"], response.read().decode()


OPENMETRICS = "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5"


@pytest.mark.parametrize("mode", ["link", None])
def test_openmetrics_have_the_traces_of_durations(js, stream, nats_server, spans, mode):
    """In OpenMetrics each bucket has its last trace; without tracing there is none."""
    port = free_port()
    worker = Worker(nats_server.url, http=f"127.0.0.1:{port}", trace=mode)

    @worker.handler(stream=stream.name, consumer="A")
    def handle() -> None: ...

    with running(worker):
        for _ in range(20):
            js.publish(f"{stream.name}.in", b"x")
        wait_until(lambda: is_settled(stream, "A"))
        wait_until(lambda: " 20\n" in scraped(port, "text/plain")[1])
        kind, text = scraped(port, OPENMETRICS)
        assert kind.startswith("application/openmetrics-text; version=1.0.0")
        families = {
            family.name: family for family in openmetrics.text_string_to_metric_families(text)
        }
        marks = [
            sample.exemplar for sample in families["jetstream_worker_duration_seconds"].samples
        ]
        found = {mark.labels["trace_id"] for mark in marks if mark is not None}
        kind, text = scraped(port, "text/plain")
        assert kind.startswith("text/plain; version=0.0.4")
        plain = {family.name: family for family in text_string_to_metric_families(text)}
        assert plain.keys() == families.keys()
        assert "trace_id" not in text
        registry = CollectorRegistry()
        registry.register(WorkerCollector(worker))
        collected = generate_latest(registry).decode()
    traces = {f"{span.context.trace_id:032x}" for span in named(spans, "process A")}
    assert bool(found) is (mode is not None)
    assert found <= traces
    assert all(trace_id in collected for trace_id in found)


def test_a_task_of_a_task_continues_its_trace(nats_server, js, spans):
    """A call that a handler sends is a span of its trace, and the run of the call is linked to it."""
    worker = Worker(nats_server.url, name="traced-tasks")

    worker.queue("default", stream="TRACED", subject="traced")

    @worker.task(name="task-inner")
    def inner() -> None:
        pass

    @worker.task(name="task-outer")
    def outer() -> None:
        inner.delay()

    outer.delay()
    with running(worker):
        wait_until(lambda: len(named(spans, "process task-inner")) == 1)
    shared_connection(nats_server.url, name="traced-tasks").close()
    js.delete_stream("TRACED")
    (publish,) = named(spans, "publish")
    assert ids(publish.parent) == ids(named(spans, "process task-outer")[0].context)
    (link,) = named(spans, "process task-inner")[0].links
    assert ids(link.context) == ids(publish.context)


def test_a_handler_can_continue_the_trace_of_the_producer(js, stream, nats_server, spans):
    """With trace="parent" all attempts are children of the producer's span; None makes no spans."""
    worker = Worker(nats_server.url, trace="parent")
    silent = Worker(nats_server.url, trace=None)

    @worker.handler(stream=stream.name, consumer="C", retry=FAST)
    def handle(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise OSError("busy")

    silent.handler(stream=stream.name, consumer="SILENT")(bytes)
    with running(worker), running(silent):
        producer = publish_traced(js, f"{stream.name}.a")
        wait_until(lambda: len(named(spans, "process C")) == 2)
        wait_until(lambda: is_settled(stream, "SILENT"))
    assert [ids(span.parent) for span in named(spans, "process C")] == 2 * [ids(producer)]
    assert not named(spans, "process SILENT")


@pytest.mark.parametrize("mode", ["link", "parent"])
def test_the_span_of_a_batch_refers_to_all_publishers(js, stream, nats_server, spans, mode):
    """Each publisher of a message of the batch has one link; with "parent", the first one is the parent."""
    worker = Worker(nats_server.url, trace=mode)
    worker.batch(stream=stream.name, consumer="C", max_messages=4, max_wait=60)(list)
    first = publish_traced(js, f"{stream.name}.a")
    second = publish_traced(js, f"{stream.name}.a")
    js.publish(f"{stream.name}.a", b"not traced")
    headers: dict[str, str] = {}
    propagate.inject(headers, trace.set_span_in_context(trace.NonRecordingSpan(second)))
    js.publish(f"{stream.name}.a", b"of the same span", headers=headers)
    with running(worker):
        wait_until(lambda: is_settled(stream))
    (span,) = named(spans, "process C")
    assert span.attributes["messaging.batch.message_count"] == 4
    links = [ids(link.context) for link in span.links]
    if mode == "parent":
        assert ids(span.parent) == ids(first)
        assert links == [ids(second)]
    else:
        assert span.parent is None
        assert links == [ids(first), ids(second)]


def test_a_tracer_that_raises_changes_nothing(js, stream, worker, spans, caplog):
    """Its first error is logged; messages are handled, and what handlers publish is stored."""

    @worker.handler(stream=stream.name, consumer="C", filter_subject=f"{stream.name}.in")
    def handle(ctx: Context) -> None:
        FAULT.active = ctx.message.data == b"first"
        ctx.publish(f"{stream.name}.out", ctx.message.data)

    for payload in (b"first", b"second", b"third"):
        js.publish(f"{stream.name}.in", payload)
    with running(worker):
        wait_until(lambda: stream.info().state.messages == 6 and is_settled(stream))
    assert stream.consumer_info("C").delivered.consumer_seq == 3
    errors = [record for record in caplog.records if record.getMessage() == "tracing failed"]
    assert len([error for error in errors if error.levelname == "ERROR"]) == 1
    # The broken tracer made no span for the first publication and the second message.
    assert len(named(spans, "process C")) == 2
    assert len(named(spans, "publish")) == 1


@pytest.mark.usefixtures("spans")
def test_there_is_no_tracing_without_opentelemetry(monkeypatch):
    """The extra is optional, and without an SDK no spans are made."""
    assert len(tracing_middleware("link")) == 1
    with monkeypatch.context() as patched:
        patched.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)
        assert tracing_middleware("link") == ()
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert tracing_middleware("link") == ()


def test_a_handler_in_a_process_is_traced(js, stream, nats_server, tmp_path):
    """The span is made in the process of the handler; its logs and publications belong to it."""
    code = f"""
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from jetstream_sync.workers import LogContextFilter

class ToFile(SpanExporter):
    def export(self, spans):
        for span in spans:
            trace_id = trace.format_trace_id(span.context.trace_id)
            record(f"{{span.name}} {{trace_id}} {{len(span.links)}}")
        return SpanExportResult.SUCCESS

trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(ToFile()))
for handler in logging.getLogger().handlers:
    handler.addFilter(LogContextFilter())
    handler.setFormatter(logging.Formatter("%(message)s [%(handler)s %(seq)s %(trace_id)s]"))
worker = Worker(name="tests")

@worker.handler(
    stream={stream.name!r}, consumer="C", filter_subject="{stream.name}.in", pool="processes"
)
def handle(ctx: Context):
    logging.getLogger("library").warning("hello")
    ctx.publish("{stream.name}.out")
"""
    producer = f"00-{'a' * 32}-{'b' * 16}-01"
    js.publish(f"{stream.name}.in", headers={"traceparent": producer})
    with WorkerProgram(code, nats_server.url, tmp_path) as program:
        publish, process = program.wait_runs(2)
        name, trace_id, links = process.rsplit(maxsplit=2)
        assert (name, links) == ("process C", "1")
        assert publish == f"publish {trace_id} 0"
        program.wait_for(f"hello [handle 1 {trace_id}]")
    out = stream.get_msg(last_by_subject=f"{stream.name}.out")
    assert out.headers["traceparent"].startswith(f"00-{trace_id}-")
