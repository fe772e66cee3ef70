"""Readers whose stream was deleted and created again, lost with its server, or restored to an old copy."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, TypeAlias

import pytest
from fixtures.server import Errors
from fixtures.threads import SCALE, wait_until

import jetstream_sync
from jetstream_sync import Connection, JetStream
from jetstream_sync.errors import (
    BadSubscriptionError,
    IteratorClosedError,
    ServerError,
    StreamNotFoundError,
    StreamRecreatedError,
    TimeoutError,
)
from jetstream_sync.server import NatsServer

#: Returns the payload of the next message.
Take: TypeAlias = Callable[[], str]
#: Lets a stream be another one: gets the server, its number of new messages follows.
Change: TypeAlias = Callable[[NatsServer, int], None]

FAST: dict[str, Any] = {"expires": 1, "heartbeat": 0.5}
LIMIT_S = 10 * SCALE


def fill(js: JetStream, first: str, count: int) -> None:
    for number in range(count):
        js.publish("S.a", f"{first}{number}".encode())


def create(js: JetStream, storage: str) -> None:
    """Create the stream, also when the server is still deleting the files of the old one."""

    def created() -> bool:
        try:
            js.create_stream(name="S", subjects=["S.>"], storage=storage, max_msgs_per_subject=-1)
        except ServerError:
            return False
        return True

    wait_until(created)


# --- ways to read -------------------------------------------------------------------------------


@contextmanager
def iterating(js: JetStream, **options: Any) -> Iterator[Take]:
    with js.ordered_consumer("S", **options).messages(**FAST) as messages:
        yield lambda: str(messages.next(LIMIT_S).data, "utf-8")


@contextmanager
def fetching(js: JetStream, **options: Any) -> Iterator[Take]:
    with js.ordered_consumer("S", **options) as consumer:

        def take() -> str:
            (msg,) = consumer.fetch(1, timeout=LIMIT_S)
            return msg.data.decode()

        yield take


@contextmanager
def consuming(js: JetStream, **options: Any) -> Iterator[Take]:
    taken: SimpleQueue[str] = SimpleQueue()
    consumer = js.ordered_consumer("S", **options)
    with consumer.consume(lambda msg: taken.put(msg.data.decode()), **FAST) as handle:

        def take() -> str:
            wait_until(lambda: not taken.empty() or handle.closed, LIMIT_S)
            if taken.empty():
                assert handle.error is not None
                raise handle.error
            return taken.get()

        yield take


@contextmanager
def pushed(js: JetStream, **options: Any) -> Iterator[Take]:
    sub = js.subscribe("S.>", ordered_consumer=True, idle_heartbeat=0.2, **options)
    yield lambda: str(sub.next_msg(LIMIT_S).data, "utf-8")
    if sub.is_valid:
        sub.unsubscribe()


WAYS = pytest.mark.parametrize("way", [iterating, fetching, consuming, pushed])


# --- ways to get another stream -----------------------------------------------------------------


def deleted_and_created(server: NatsServer, count: int) -> None:
    """Another connection deletes and creates the stream."""
    with jetstream_sync.connect(server.url) as other:
        js = other.jetstream(timeout=LIMIT_S)
        js.delete_stream("S")
        create(js, "file")
        fill(js, "new", count)


def lost_with_its_server(server: NatsServer, count: int) -> None:
    """The server loses its store, and another program creates the stream first."""
    server.kill()
    shutil.rmtree(server.store_dir)
    server.start()
    with jetstream_sync.connect(server.url) as other:
        js = other.jetstream(timeout=LIMIT_S)
        create(js, "file")
        fill(js, "new", count)


def restored_copy(server: NatsServer, count: int) -> None:
    """The server starts with the copy of its store that `old_copy` has made."""
    server.stop()
    shutil.rmtree(server.store_dir)
    shutil.copytree(f"{server.store_dir}-copy", server.store_dir)
    server.start()
    with jetstream_sync.connect(server.url) as other:
        fill(other.jetstream(timeout=LIMIT_S), "new", count)


def old_copy(server: NatsServer) -> None:
    server.stop()
    shutil.copytree(server.store_dir, f"{server.store_dir}-copy")
    server.start()


@pytest.fixture
def server(fresh_server: NatsServer) -> Iterator[NatsServer]:
    """A server with a stream of three messages, of which a copy exists, and two later messages."""
    with jetstream_sync.connect(fresh_server.url) as nc:
        js = nc.jetstream(timeout=LIMIT_S)
        create(js, "file")
        fill(js, "old", 3)
    old_copy(fresh_server)
    with jetstream_sync.connect(fresh_server.url) as nc:
        fill(nc.jetstream(timeout=LIMIT_S), "later", 2)
    yield fresh_server
    shutil.rmtree(f"{fresh_server.store_dir}-copy")


@pytest.fixture
def nc(server: NatsServer, errors: Errors) -> Iterator[Connection]:
    with jetstream_sync.connect(
        server.url, reconnect_time_wait=0.05, error_cb=errors.append
    ) as connection:
        yield connection


CASES = [
    pytest.param(deleted_and_created, 3, id="created again, shorter"),
    pytest.param(deleted_and_created, 8, id="created again, longer"),
    pytest.param(lost_with_its_server, 8, id="lost, longer", marks=pytest.mark.full),
    pytest.param(restored_copy, 1, id="restored, shorter", marks=pytest.mark.full),
    pytest.param(restored_copy, 8, id="restored, longer"),
]
OLD = ["old0", "old1", "old2", "later0", "later1"]


@WAYS
@pytest.mark.parametrize(("change", "count"), CASES)
def test_another_stream_ends_a_reader(nc, server, way, change, count):
    """The reader raises an error instead of skipping messages, now and later."""
    with way(nc.jetstream(timeout=LIMIT_S)) as take:
        assert [take() for _ in OLD] == OLD
        change(server, count)
        with pytest.raises(StreamRecreatedError, match="'S' is not the one that was read"):
            take()
        with pytest.raises((StreamRecreatedError, BadSubscriptionError, IteratorClosedError)):
            take()


@WAYS
@pytest.mark.parametrize(("change", "count"), CASES)
def test_a_reader_that_starts_again(nc, server, errors, way, change, count):
    """With the option, all messages of the stream that there is now are returned, and it is reported."""
    expected = [f"new{number}" for number in range(count)]
    if change is restored_copy:
        expected = OLD[:3] + expected
    with way(nc.jetstream(timeout=LIMIT_S), restart_if_recreated=True) as take:
        assert [take() for _ in OLD] == OLD
        change(server, count)
        assert [take() for _ in expected] == expected
        reported = [error for error in errors if isinstance(error, StreamRecreatedError)]
        assert len(reported) == 1


@pytest.mark.parametrize("way", [iterating, fetching, pushed])
def test_new_messages_of_another_stream(nc, server, way):
    """A reader of new messages returns all of another stream when it starts again, or ends."""
    js = nc.jetstream(timeout=LIMIT_S)
    with (
        way(js, deliver_policy="new", restart_if_recreated=True) as again,
        way(js, deliver_policy="new") as ended,
    ):
        deleted_and_created(server, 8)
        assert [again() for _ in range(8)] == [f"new{number}" for number in range(8)]
        with pytest.raises(StreamRecreatedError):
            ended()


@pytest.mark.parametrize("keep", [0, 2])
def test_a_removed_message_does_not_end_a_reader(nc, server, keep):
    """The message at the position may be gone: it is still the same stream."""
    js = nc.jetstream(timeout=LIMIT_S)
    with fetching(js) as take:
        assert [take() for _ in OLD[:-1]] == OLD[:-1]
        stream = js.get_stream("S")
        if keep:
            fill(js, "more", 1)
        stream.purge(keep=keep)
        server.restart()
        with jetstream_sync.connect(server.url) as other:
            fill(other.jetstream(timeout=LIMIT_S), "again", 1)
        expected = ["later1", "more0"] if keep else []
        assert [take() for _ in [*expected, "again0"]] == [*expected, "again0"]


def test_a_restored_stream_without_the_last_read_message(nc, server):
    """A stream that is longer than the position, and has no message there, is another one as well."""
    with fetching(nc.jetstream(timeout=LIMIT_S)) as take:
        assert [take() for _ in OLD] == OLD
        restored_copy(server, 8)
        with jetstream_sync.connect(server.url) as other:
            other.jetstream(timeout=LIMIT_S).get_stream("S").delete_msg(5)
        with pytest.raises(StreamRecreatedError):
            take()


@pytest.mark.parametrize("way", [iterating, fetching])
def test_the_next_sequence_as_start(nc, way):
    """The sequence after the last one can be a start."""
    js = nc.jetstream(timeout=LIMIT_S)
    with way(js, opt_start_seq=6) as take:
        fill(js, "more", 1)
        assert take() == "more0"


def test_a_reader_that_never_waits_reports_a_deleted_stream(nc):
    """Calls that take what is there, without a wait, end with the error after a moment."""
    js = nc.jetstream()
    js.create_stream(name="GONE", subjects=["gone"], storage="memory")
    js.publish("gone", b"a0")
    with js.ordered_consumer("GONE").messages(**FAST) as messages:
        assert messages.next(LIMIT_S).data == b"a0"
        js.delete_stream("GONE")

        def is_reported() -> bool:
            with pytest.raises((TimeoutError, StreamNotFoundError)) as raised:
                messages.next(0)
            return raised.type is StreamNotFoundError

        wait_until(is_reported)
