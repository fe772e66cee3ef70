"""Ordered consumers on a server whose replica of the stream lags, or whose stream became shorter."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from fixtures.threads import SCALE

from jetstream_sync import (
    Connection,
    JetStream,
    JetStreamMsg,
    Msg,
    Stream,
)

#: A reader: returns the payload numbers of its next messages.
Read = Callable[[int], list[int]]


class LaggingAPI:
    """
    Forwards API requests, and lowers the start of new consumers like a lagging server.

    A replica that ends before ``opt_start_seq`` delivers from its own end
    (`selectStartingSeqNo` in nats-server's consumer.go), which the first ``times`` changed
    requests produce here.
    """

    def __init__(self, nc: Connection) -> None:
        self._nc = nc
        self.times = 0
        self.creations = 0
        self._sub = nc.subscribe("lagging.API.>", cb=self._pass_on)

    def _pass_on(self, msg: Msg) -> None:
        data = msg.data
        if ".CONSUMER.CREATE." in msg.subject:
            self.creations += 1
            request = json.loads(data)
            start = request["config"].get("opt_start_seq")
            if start and self.times:
                self.times -= 1
                request["config"]["opt_start_seq"] = start - 5
                data = json.dumps(request).encode()
        subject = msg.subject.replace("lagging.API", "$JS.API", 1)
        if subject.endswith(">"):
            subject = ".".join(subject.split(".")[:6])  # without the filter, which is in the config
        self._nc.publish(subject, data, reply=msg.reply or None)

    def close(self) -> None:
        self._sub.unsubscribe()


def fill(js: JetStream, name: str, first: int, count: int) -> None:
    """Store messages with their numbers as payloads."""
    for number in range(first, first + count):
        js.publish(f"{name}.n", b"%d" % number)


@contextmanager
def fetching(js: JetStream, stream: Stream) -> Iterator[Read]:
    """Fetch from an ordered consumer."""
    with js.ordered_consumer(stream.name) as consumer:

        def read(count: int) -> list[int]:
            got: list[JetStreamMsg] = []
            while len(got) < count:
                got += consumer.fetch(count - len(got), timeout=5 * SCALE)
            return [int(msg.data) for msg in got]

        yield read


@contextmanager
def iterating(js: JetStream, stream: Stream) -> Iterator[Read]:
    """Iterate over an ordered consumer."""
    with js.ordered_consumer(stream.name).messages(expires=1, heartbeat=0.5) as messages:
        yield lambda count: [int(messages.next(10 * SCALE).data) for _ in range(count)]


@contextmanager
def pushed(js: JetStream, stream: Stream) -> Iterator[Read]:
    """Read from an ordered subscription."""
    sub = js.subscribe(f"{stream.name}.>", ordered_consumer=True, idle_heartbeat=0.5)
    yield lambda count: [int(sub.next_msg(10 * SCALE).data) for _ in range(count)]
    sub.unsubscribe()


WAYS = pytest.mark.parametrize("way", [fetching, iterating, pushed])


@pytest.fixture
def lagging(nc: Connection) -> Iterator[LaggingAPI]:
    """The API through which the readers create their consumers."""
    api = LaggingAPI(nc)
    yield api
    api.close()


def lose_consumers(stream: Stream) -> None:
    """Delete the consumers on the server."""
    for name in stream.consumer_names():
        stream.delete_consumer(name)


@WAYS
def test_no_message_comes_twice_from_a_lagging_server(js, nc, stream, lagging, way):
    """A consumer that starts before the position is replaced until one starts after it."""
    fill(js, stream.name, 0, 20)
    with way(nc.jetstream(prefix="lagging.API"), stream) as read:
        assert read(20) == list(range(20))
        lagging.times = 2
        lose_consumers(stream)
        fill(js, stream.name, 20, 10)
        assert read(10) == list(range(20, 30))
        assert lagging.times == 0
        assert lagging.creations == 4
        assert len(stream.consumer_names()) == 1
