"""
Traces of handlers and of what they publish, with ``opentelemetry-api`` (the extra ``otel``).

Rules:

1. A handler runs in a span of its own. It has a link to the span that published the message, because a
   message can be handled long after it, and several times; with ``"parent"`` it continues that trace.
   The span of a batch has a link to each publisher of its messages.
2. What `Context.publish` stores has the span of the publication in its headers, as the configured
   propagator writes it. A dead letter keeps the headers of its message.
3. An error of the tracer is logged once. It changes nothing for the message.

The conventions for messaging are in development: all names are in `_process_attributes` and
`_publish_attributes`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TypeVar

from .. import Headers, codec, errors
from .deliveries import log_context
from .logs import log

if TYPE_CHECKING:
    from opentelemetry.context import Context as OriginContext
    from opentelemetry.trace import Span, SpanContext

    from .. import JetStreamMsg
    from .context import Context

TRACE_MODES: Final = ("link", "parent")

T = TypeVar("T")
_HeadersLike = Headers | Mapping[str, str] | Mapping[str, list[str]] | None


def _process_attributes(context: Context) -> dict[str, str | int]:
    """Return the attributes of the span of a handler."""
    message, where = context.message, context.message.metadata
    batch: dict[str, str | int] = {}
    if context.batch:
        batch["messaging.batch.message_count"] = len(context.batch)
    return batch | {
        "messaging.system": "nats",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": message.subject,
        "messaging.consumer.group.name": where.consumer,
        "messaging.message.id": context.id,
        "messaging.message.body.size": len(message.data),
        "messaging.nats.stream": where.stream,
        "messaging.nats.stream_sequence": where.stream_seq,
        "messaging.nats.delivery_attempt": context.attempt,
    }


def _publish_attributes(subject: str, payload: bytes, msg_id: str) -> dict[str, str | int]:
    """Return the attributes of the span of a publication."""
    return {
        "messaging.system": "nats",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": subject,
        "messaging.message.id": msg_id,
        "messaging.message.body.size": len(payload),
    }


#: The tracer of the handler that this thread runs.
_active: ContextVar[_SpanMiddleware | None] = ContextVar("jetstream_sync_tracer", default=None)


def tracing_middleware(mode: str | None) -> tuple[_SpanMiddleware, ...]:
    """Return the middleware that traces handlers; empty if no OpenTelemetry SDK is configured."""
    if mode is None:
        return ()
    try:
        from opentelemetry import trace  # noqa: PLC0415 - an extra
    except ImportError:
        return ()
    # Without an SDK spans go nowhere, and creating them takes longer than the rest of the runtime.
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return ()
    return (_SpanMiddleware(parent=mode == "parent"),)


class _SpanMiddleware:
    """Middleware that runs a handler in a span."""

    def __init__(self, *, parent: bool) -> None:
        from opentelemetry import context, propagate, trace  # noqa: PLC0415 - an extra

        self._context, self._propagate, self._trace = context, propagate, trace
        self._parent = parent
        self._tracer = trace.get_tracer("jetstream_sync")
        self._failed = False

    def __call__(self, call: Callable[[], object], context: Context) -> object:
        """Call the handler in a span."""
        started = self.guarded(lambda: self._start(context))
        if started is None:
            return call()
        span, token = started
        active = _active.set(self)
        try:
            return call()
        except BaseException as error:
            failure = error
            self.guarded(lambda: self.fail(span, failure))
            raise
        finally:
            _active.reset(active)
            self.guarded(lambda: self._context.detach(token))
            self.guarded(span.end)

    def _start(self, context: Context) -> tuple[Span, Any]:
        trace = self._trace
        origin, publisher = self._origin(context.message)
        publishers = [self._origin(item)[1] for item in context.batch] or [publisher]
        if self._parent:
            # Of a batch, the publisher of the first message is the parent.
            del publishers[0]
        else:
            origin = trace.set_span_in_context(trace.INVALID_SPAN, origin)
        distinct = {
            (publisher.trace_id, publisher.span_id): publisher
            for publisher in publishers
            if publisher.is_valid
        }
        links = [trace.Link(item) for item in distinct.values()]
        span = self._tracer.start_span(
            f"process {context.task or context.message.metadata.consumer}",
            context=origin,
            kind=trace.SpanKind.CONSUMER,
            attributes=_process_attributes(context),
            links=links,
        )
        delivery = log_context.get()
        if delivery is not None and span.get_span_context().is_valid:
            delivery.trace_id = trace.format_trace_id(span.get_span_context().trace_id)
        return span, self._context.attach(trace.set_span_in_context(span, origin))

    def _origin(self, message: JetStreamMsg) -> tuple[OriginContext, SpanContext]:
        """Return the context in the headers of a message, and its span."""
        headers = message.headers
        origin = self._propagate.extract({} if headers is None else headers)
        return origin, self._trace.get_current_span(origin).get_span_context()

    def publish(self, subject: str, payload: bytes, headers: Headers, msg_id: str) -> Span:
        """Start the span of a publication, and add it to the headers."""
        trace = self._trace
        span = self._tracer.start_span(
            "publish",
            kind=trace.SpanKind.PRODUCER,
            attributes=_publish_attributes(subject, payload, msg_id),
        )
        self._propagate.inject(headers, trace.set_span_in_context(span))
        return span

    def fail(self, span: Span, error: BaseException) -> None:
        """Record an error in a span."""
        span.set_attribute("error.type", type(error).__qualname__)
        span.record_exception(error)
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, codec.text_of(error)))

    def guarded(self, function: Callable[[], T]) -> T | None:
        """Call a function of the tracer; log its first error, and return ``None``."""
        try:
            return function()
        except Exception as error:
            level = logging.DEBUG if self._failed else logging.ERROR
            self._failed = True
            log.log(level, "tracing failed", exc_info=error)
            return None


@contextmanager
def publishing(
    subject: str, payload: bytes, headers: _HeadersLike, msg_id: str
) -> Iterator[_HeadersLike]:
    """Yield the headers with which to publish a message; in a traced handler, within a span."""
    tracer = _active.get()
    if tracer is None:
        yield headers
        return
    try:
        traced = Headers(headers or {})
    except (errors.Error, TypeError):
        yield headers  # publishing them raises
        return
    span = tracer.guarded(lambda: tracer.publish(subject, payload, traced, msg_id))
    try:
        yield traced
    except BaseException as error:
        failure = error
        if span is not None:
            tracer.guarded(lambda: tracer.fail(span, failure))
        raise
    finally:
        if span is not None:
            tracer.guarded(span.end)


def traced(publish: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that publishes as `JetStream.publish` does; in a traced handler, within a span."""

    def run(
        subject: str, payload: bytes, *, headers: _HeadersLike, msg_id: str, **options: Any
    ) -> Any:
        with publishing(subject, payload, headers, msg_id) as found:
            return publish(subject, payload, headers=found, msg_id=msg_id, **options)

    return run
