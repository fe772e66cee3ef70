"""The readers: every way of reading, each with its own consumer."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable

from jetstream_sync import Connection, ConsumerConfig, JetStreamMsg, PullConsumer, Stream, errors

from .recorder import Recorder, read_payload
from .testbed import STREAM

__all__ = ["DURABLES", "LOOK_S", "Reader", "RequestReader", "check_alive", "readers"]

#: The consumers that only one reader uses.
DURABLES = ("consume", "messages", "fetch", "next")

#: The ack wait of the consumers, in seconds; an operator changes it.
_ACK_WAIT_S = 3.0
#: Maximum duration of each call that waits for messages, in seconds.
LOOK_S = 1.0
#: Timeout of the longest fetches, in seconds. Only they have heartbeats: a pause of a busy machine ends a fetch with
#: shorter ones, and the messages that are in flight then are delivered again without a fault.
_LONG_FETCH_S = 2.0
#: Messages and seconds of ordered fetches. Most wait for more messages than there are, so that the
#: last messages are an incomplete reply.
_ORDERED_FETCHES = ((1, 0.2), (50, 1.0), (500, 0.2), (500, 2.0), (500, 2.0), (500, 2.0))
#: The same where the link stays: they end before a stall does.
_PATIENT_FETCHES = ((1, 0.2), (500, 0.2), (500, 1.0), (500, 1.0), (500, 1.0))
#: Maximum time for creating a consumer in an ordered fetch, in seconds.
_RENEWAL = 5.0


class Reader:
    """
    A thread that reads until it is stopped.

    Args:
        name: its name, and that of its consumer.
        nc: the connection.
        recorder: the record of the run.
        rng: for its choices.
        line: the line of the connection.
        mistake: a deliberate mistake, see `run.MISTAKES`.

    """

    def __init__(
        self,
        name: str,
        nc: Connection,
        recorder: Recorder,
        rng: random.Random,
        line: str,
        mistake: str = "",
    ) -> None:
        self.name = name
        self.line = line
        self.drops_acks = mistake == "drop acks"
        #: By message: when it was received first, and whether it was left to be redelivered since then.
        self._received: dict[str, float] = {}
        self._left: set[str] = set()
        self.nc = nc
        self.js = nc.jetstream()
        self.recorder = recorder
        self.rng = rng
        self.seen = recorder.seen.setdefault(name, Counter())

    def run(self, stop: threading.Event) -> None:
        """Read until ``stop`` is set, and then end everything that was started."""
        raise NotImplementedError

    def take(self, msg: JetStreamMsg) -> None:
        """Record a message, and settle it in one of the possible ways."""
        message = read_payload(msg.data)
        self.seen[message] += 1
        self._check_redelivery(message, msg.metadata.num_delivered)
        way = self.rng.random()
        if not 0.05 < way <= 0.051 and not 0.03 <= way < 0.04:
            self._left.discard(message)
        else:
            self._left.add(message)
        if self.drops_acks and self.rng.randrange(300) == 0:
            return
        try:
            if way < 0.03:
                with self.recorder.within("ack_sync", LOOK_S, self.line):
                    msg.ack_sync(LOOK_S)
            elif way < 0.04:
                msg.nak(delay=0.1)
            elif way < 0.05:
                msg.in_progress()
                msg.ack()
            elif way > 0.051:
                msg.ack()
            # The others are left to be redelivered.
        except errors.Error as error:
            check_alive(error)

    def _check_redelivery(self, message: str, delivered: int) -> None:
        """Report a redelivery that neither this reader nor a fault explains."""
        now = time.monotonic()
        first = self._received.setdefault(message, now)
        if delivered == 1 or message in self._left:
            return
        # If the first delivery was lost, it was sent some time ago.
        since = first if first < now else now - delivered * _ACK_WAIT_S
        if not self.recorder.explained(since, self.line):
            self.recorder.complain(
                f"{self.name}: {message} was delivered {delivered} times without a fault of {self.line}"
            )

    def looking(
        self, what: str, limit: float, look: Callable[[], list[JetStreamMsg]], *, waits: bool = True
    ) -> None:
        """Make one call, and take the messages that it returns; ``waits``: it has the time to receive one."""
        # A timeout is right if there is no message for this reader, or too little time.
        awaited = waits and limit >= LOOK_S and self.recorder.lag(self.name) > 0
        try:
            with self.recorder.within(what, limit, self.line, awaited=awaited):
                messages = look()
        except errors.TimeoutError:
            return
        except errors.Error as error:
            check_alive(error)
            return
        for msg in messages:
            self.take(msg)


def check_alive(error: errors.Error) -> None:
    """Raise an error that no fault may cause."""
    if isinstance(error, errors.InvalidResponseError):
        raise error
    alive = (errors.ConnectionLostError, errors.MsgAlreadyAckdError)
    if isinstance(error, errors.ConnectionClosedError) and not isinstance(error, alive):
        raise error


class ConsumeReader(Reader):
    """With a callback, which fails sometimes."""

    def run(self, stop: threading.Event) -> None:
        consumer = self.js.get_consumer(STREAM, self.name)
        handle = consumer.consume(self._called, max_messages=200, expires=4, heartbeat=1)
        stop.wait()
        with self.recorder.within("consume.stop", 1):
            handle.stop()
        with self.recorder.within("consume.wait_closed", 2):
            handle.wait_closed(2)
        if handle.error is not None:
            self.recorder.complain(f"consume ended: {handle.error!r}")

    def _called(self, msg: JetStreamMsg) -> None:
        self.take(msg)
        if self.rng.random() < 0.001:
            raise RuntimeError("a callback fails")


class MessagesReader(Reader):
    """With an iterator that runs continuously."""

    def run(self, stop: threading.Event) -> None:
        consumer = self.js.get_consumer(STREAM, self.name)
        with consumer.messages(max_messages=100, expires=3, heartbeat=0.5) as messages:
            while not stop.is_set():
                self.looking("messages.next", LOOK_S, lambda: [messages.next(LOOK_S)])


class FetchReader(Reader):
    """With fetches of all kinds."""

    def run(self, stop: threading.Event) -> None:
        consumer = self.js.get_consumer(STREAM, self.name)
        while not stop.is_set():
            timeout = self.rng.choice((0.1, 0.5, _LONG_FETCH_S))
            self._fetch(consumer, self.rng.choice((1, 10, 200)), timeout)

    def _fetch(self, consumer: PullConsumer, batch: int, timeout: float) -> None:
        way = self.rng.randrange(4)
        if way == 0:
            self.looking("fetch_no_wait", 6, lambda: consumer.fetch_no_wait(batch))
        elif way == 1:
            self.looking(
                "fetch_bytes",
                timeout + 1,
                lambda: consumer.fetch(timeout=timeout, max_bytes=20_000),
            )
        elif way == 2:
            self.looking(
                "fetch_heartbeat",
                _LONG_FETCH_S + 1,
                lambda: consumer.fetch(batch, _LONG_FETCH_S, heartbeat=_LONG_FETCH_S / 3),
            )
        else:
            self.looking("fetch", timeout + 1, lambda: consumer.fetch(batch, timeout))


class NextReader(Reader):
    """One message at a time."""

    def run(self, stop: threading.Event) -> None:
        consumer = self.js.get_consumer(STREAM, self.name)
        while not stop.is_set():
            self._next(consumer, self.rng.choice((0.2, 1.0)))

    def _next(self, consumer: PullConsumer, timeout: float) -> None:
        waits = timeout >= LOOK_S
        self.looking("next", timeout + 1, lambda: [consumer.next(timeout)], waits=waits)


class _OrderedReader(Reader):
    def __init__(
        self, name: str, nc: Connection, recorder: Recorder, rng: random.Random, line: str
    ) -> None:
        super().__init__(name, nc, recorder, rng, line)
        self.order = recorder.order.setdefault(name, [])
        self._last = 0
        self.consumer = self.js.ordered_consumer(STREAM, inactive_threshold=5)

    def take(self, msg: JetStreamMsg) -> None:
        message = read_payload(msg.data)
        self.seen[message] += 1
        self.order.append(message)
        seq = msg.metadata.stream_seq
        if seq != self._last + 1:
            self.recorder.complain(f"{self.name}: {seq} came after {self._last}")
        self._last = seq


class OrderedMessagesReader(_OrderedReader):
    """An ordered iterator."""

    def run(self, stop: threading.Event) -> None:
        with self.consumer.messages(max_messages=300, expires=3, heartbeat=0.5) as messages:
            while not stop.is_set():
                self.looking("ordered.next", LOOK_S, lambda: [messages.next(LOOK_S)])


class OrderedConsumeReader(_OrderedReader):
    """An ordered consume."""

    def run(self, stop: threading.Event) -> None:
        handle = self.consumer.consume(self.take, max_messages=300, expires=3, heartbeat=0.5)
        stop.wait()
        with self.recorder.within("ordered.stop", 1):
            handle.stop()
        with self.recorder.within("ordered.wait_closed", 7):
            handle.wait_closed(7)
        if handle.error is not None:
            self.recorder.complain(f"ordered consume ended: {handle.error!r}")


class OrderedFetchReader(_OrderedReader):
    """Ordered fetches."""

    def run(self, stop: threading.Event) -> None:
        fetches = _PATIENT_FETCHES if self.name.startswith("patient") else _ORDERED_FETCHES
        with self.consumer:
            while not stop.is_set():
                self._fetch(*self.rng.choice(fetches))

    def _fetch(self, batch: int, timeout: float) -> None:
        limit = timeout + _RENEWAL + 1
        if self.rng.random() < 0.1:
            # It waits for the reply for 5 seconds, and for another consumer.
            limit = 5 + _RENEWAL + 1
            self.looking("ordered.no_wait", limit, lambda: self.consumer.fetch_no_wait(batch))
        else:
            self.looking("ordered.fetch", limit, lambda: self.consumer.fetch(batch, timeout))


class OrderedSubscriptionReader(_OrderedReader):
    """An ordered subscription."""

    def run(self, stop: threading.Event) -> None:
        # The deletion of a consumer may be lost with a link; the server deletes it after this threshold then.
        config = ConsumerConfig(inactive_threshold=5)
        sub = self.js.subscribe(
            stream=STREAM, ordered_consumer=True, idle_heartbeat=0.5, config=config
        )
        while not stop.is_set():
            self.looking("ordered.next_msg", LOOK_S, lambda: [sub.next_msg(LOOK_S)])
        with self.recorder.within("ordered.unsubscribe", 7):
            sub.unsubscribe()


class RequestReader(Reader):
    """Not a reader: sends API requests, requests to another connection, and flushes; gets stored messages."""

    _stream: Stream | None = None

    def run(self, stop: threading.Event) -> None:
        deeds: list[tuple[str, Callable[[], object]]] = [
            ("request", lambda: self.nc.request("echo", b"?", timeout=LOOK_S)),
            ("flush", lambda: self.nc.flush(LOOK_S)),
            ("rtt", lambda: self.nc.rtt(LOOK_S)),
            ("info", self._info),
            ("get", self._get),
        ]
        while not stop.wait(0.02):
            what, deed = self.rng.choice(deeds)
            try:
                with self.recorder.within(what, LOOK_S, self.line, "publishing"):
                    deed()
            except errors.Error as error:
                check_alive(error)

    def _info(self) -> None:
        self._stream = self.nc.jetstream(timeout=LOOK_S).get_stream(STREAM)

    def _get(self) -> None:
        """Get an acknowledged message: what a mirror or a replica does not have is not missing."""
        if self._stream is None:
            return
        message, seq = self.rng.choice(list(self.recorder.acknowledged.copy().items()) or [("", 1)])
        try:
            found = read_payload(self._stream.get_msg(seq).data)
        except errors.NotFoundError as error:
            found = str(error)
        if message not in {"", found}:
            self.recorder.complain(f"{message} has the sequence {seq}, where {found!r} was found")


def readers(
    lines: dict[str, Connection],
    recorder: Recorder,
    make_rng: Callable[[str], random.Random],
    mistake: str,
) -> list[Reader]:
    """Return one of each kind; those with acknowledgements make the mistake."""
    kinds: tuple[tuple[type[Reader], str, str], ...] = (
        (ConsumeReader, "consume", "reading"),
        (MessagesReader, "messages", "reading"),
        (FetchReader, "fetch", "fetching"),
        (NextReader, "next", "fetching"),
        (OrderedMessagesReader, "ordered messages", "reading"),
        (OrderedConsumeReader, "ordered consume", "publishing"),
        (OrderedFetchReader, "ordered fetch", "fetching"),
        (OrderedFetchReader, "patient ordered fetch", "patient"),
        (OrderedMessagesReader, "patient ordered messages", "patient"),
        (OrderedSubscriptionReader, "ordered subscription", "reading"),
    )
    return [
        kind(name, lines[line], recorder, make_rng(name), line, *[mistake] * (name in DURABLES))
        for kind, name, line in kinds
    ]
