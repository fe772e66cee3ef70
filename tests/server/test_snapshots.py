"""Snapshots of streams, and restoring them, on real servers and over links that break."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from typing import Any

import pytest
from fixtures.fake_jetstream import FakeJetStream
from fixtures.faults import BOTH, FaultProxy
from fixtures.rawnats import RawClient
from fixtures.threads import wait_until

import jetstream_sync
from jetstream_sync import JetStream, SnapshotInfo, Stream, errors
from jetstream_sync.codec import decode, encode
from jetstream_sync.server import NatsServer

SIZE = 2000


@pytest.fixture
def orders(js: JetStream, stream_name: str) -> Stream:
    """A file stream of 500 different messages, two of which are deleted, with a consumer."""
    return filled(js, stream_name)


def filled(js: JetStream, name: str, count: int = 500) -> Stream:
    stream = js.create_stream(name=name, subjects=[f"{name}.>"], description="orders")
    for number in range(1, count + 1):
        js.publish_async(f"{name}.{number % 3}", body(number), headers={"number": str(number)})
    js.publish_async_completed(10)
    stream.create_consumer(durable_name="reader", filter_subject=f"{name}.1")
    for seq in (7, 400):
        stream.delete_msg(seq)
    return stream


def body(number: int) -> bytes:
    # Random, since snapshots are compressed.
    return b"%d:" % number + random.Random(number).randbytes(SIZE)


def taken(stream: Stream, **options: Any) -> tuple[SnapshotInfo, bytes]:
    """A complete snapshot."""
    with stream.snapshot(**options) as snapshot:
        file = io.BytesIO()
        assert snapshot.write_to(file) == snapshot.size
        assert snapshot.finished
    return snapshot.info, file.getvalue()


def delete(js: JetStream, name: str) -> None:
    """Delete a stream, and wait until the server has removed it; see `_LEFTOVERS`."""
    js.delete_stream(name)
    for _ in range(50):
        js.account_info()


def held(raw: RawClient, name: str) -> dict[str, Any]:
    """Return the config and state of a stream, without fields that change in a restore."""
    said = raw.api(f"STREAM.INFO.{name}")
    config = said["config"]
    config["metadata"] = {}
    consumers = raw.api(f"CONSUMER.NAMES.{name}")["consumers"]
    return {"config": config, "state": said["state"], "consumers": consumers}


def test_a_restored_stream_is_equal(js, orders, nats_server):
    """Messages keep sequences, headers and times, gaps stay, and consumers keep their positions."""
    consumer = orders.get_consumer("reader")
    for msg in consumer.fetch(5):
        msg.ack_sync()
    with RawClient(nats_server.port) as raw:
        before = held(raw, orders.name)
        messages = [raw.api(f"STREAM.MSG.GET.{orders.name}", seq=seq) for seq in (1, 7, 8, 500)]
        info, data = taken(orders)
        delete(js, orders.name)
        restored = js.restore_stream(info, io.BytesIO(data))
        assert restored.name == orders.name
        assert restored.cached_info.state.messages == 498
        assert held(raw, orders.name) == before
        again = [raw.api(f"STREAM.MSG.GET.{orders.name}", seq=seq) for seq in (1, 7, 8, 500)]
        assert again == messages
        floor = raw.api(f"CONSUMER.INFO.{orders.name}.reader")["ack_floor"]
        assert (floor["consumer_seq"], floor["stream_seq"]) == (5, 16)
    ack = js.publish(f"{orders.name}.x", b"next")
    assert ack.seq == 501


def test_the_info_has_the_form_of_the_nats_command(orders):
    """The encoded info has the config and state; it is equal when decoded."""
    info, _ = taken(orders)
    document = encode(info)
    assert set(document) == {"config", "state"}
    assert document["config"]["name"] == orders.name
    assert document["state"]["messages"] == 498
    assert decode(SnapshotInfo, document) == info


def test_consumers_can_be_left_out(js, orders):
    """Without consumers, the restored stream has none."""
    info, data = taken(orders, consumers=False)
    delete(js, orders.name)
    assert js.restore_stream(info, io.BytesIO(data)).consumer_names() == []


@pytest.mark.server(">=2.15")  # earlier servers have a fixed window
def test_pieces_have_the_size_that_was_asked_for(js, orders):
    """Each piece but the last has the requested size, and together they are the data."""
    with orders.snapshot(chunk_size=4096, window_size=8192, check=True) as snapshot:
        pieces = list(snapshot)
    assert {len(piece) for piece in pieces[:-1]} == {4096}
    assert 0 < len(pieces[-1]) <= 4096
    assert (snapshot.pieces, snapshot.size) == (len(pieces), sum(map(len, pieces)))
    delete(js, orders.name)
    data = io.BytesIO(b"".join(pieces))
    assert js.restore_stream(snapshot.info, data).cached_info.state.messages == 498


def test_a_restore_may_change_the_config(js, orders):
    """Another config is accepted, except for another name."""
    info, data = taken(orders)
    delete(js, orders.name)
    document = encode(info)
    document["config"]["description"] = "restored"
    restored = js.restore_stream(decode(SnapshotInfo, document), io.BytesIO(data))
    assert restored.cached_info.config.description == "restored"
    document["config"]["name"] = "a.b"
    with pytest.raises(errors.InvalidNameError):
        js.restore_stream(decode(SnapshotInfo, document), [data])


def test_a_restore_without_some_fields_is_refused(js, orders):
    """If a server does not know a field of the config, nothing is restored, and the error names it."""
    info, data = taken(orders)
    delete(js, orders.name)
    document = encode(info)
    document["config"]["unknown"] = True
    with pytest.raises(errors.ServerTooOldError, match="was removed|nothing was changed") as caught:
        js.restore_stream(decode(SnapshotInfo, document), io.BytesIO(data))
    assert caught.value.fields == ("unknown",)
    assert js.stream_names() == []


@pytest.mark.server(">=2.15")  # earlier servers have a fixed window
def test_unread_pieces_are_bounded_by_the_window(nc, orders):
    """The server waits for chunks to be read: unread ones do not accumulate in memory."""
    before = nc.stats["in_msgs"]
    with orders.snapshot(chunk_size=1024, window_size=8192) as snapshot:
        pieces = iter(snapshot)
        for _ in range(20):
            next(pieces)
        wait_until(lambda: nc.stats["in_msgs"] >= before + 1 + 28)
        nc.rtt()
        nc.rtt()
        assert nc.stats["in_msgs"] == before + 1 + 28
        rest = list(pieces)
    assert len(rest) > 100


@pytest.mark.server(">=2.15")  # earlier servers have a fixed window
def test_leaving_a_snapshot_early_stops_the_server(nc, orders):
    """The server stops sending, and no further piece arrives."""
    advisory = "$JS.EVENT.ADVISORY.STREAM.SNAPSHOT_COMPLETE.>"
    with nc.subscribe(advisory) as told:
        nc.flush()
        with orders.snapshot(chunk_size=1024, window_size=4096) as snapshot:
            next(iter(snapshot))
        assert not snapshot.finished
        assert b"no interest" in told.next_msg(timeout=5).data
    with pytest.raises(errors.IteratorClosedError):
        list(snapshot)
    snapshot.close()
    assert "closed" in repr(snapshot)


@pytest.mark.parametrize("option", ["chunk_size", "window_size"])
def test_sizes_have_limits(orders, option):
    """Sizes that a server would adjust are refused."""
    with pytest.raises(errors.InvalidOptionError, match=option):
        orders.snapshot(**{option: 1000})


def test_a_missing_stream_has_no_snapshot(js, orders):
    """The refusal of the server has its own class."""
    delete(js, orders.name)
    with pytest.raises(errors.StreamNotFoundError):
        orders.snapshot()


def test_an_existing_stream_is_not_changed(js, orders, nats_server):
    """A restore into an existing stream is refused."""
    info, data = taken(orders)
    with RawClient(nats_server.port) as raw:
        before = held(raw, orders.name)
        with pytest.raises(errors.RestoreNameInUseError) as caught:
            js.restore_stream(info, [data])
        assert held(raw, orders.name) == before
    assert isinstance(caught.value, errors.StreamNameInUseError)


def test_subjects_in_use_are_refused(js, orders):
    """Another stream with the same subjects is an error, and is kept."""
    info, data = taken(orders)
    delete(js, orders.name)
    other = js.create_stream(name="other", subjects=[f"{orders.name}.>"])
    with pytest.raises(errors.APIError) as caught:
        js.restore_stream(info, [data])
    assert isinstance(caught.value, (errors.StreamSubjectOverlapError, errors.RestoreFailedError))
    assert js.stream_names() == [other.name]


def pieces_until(data: bytes, error: BaseException) -> Iterator[bytes]:
    yield data
    raise error


@pytest.mark.parametrize(
    "broken",
    [
        lambda _data: [],
        lambda _data: [b"this is no snapshot at all" * 1000],
        lambda data: [data[:10]],
        lambda data: [data[: len(data) // 2]],
        lambda data: [data[:-30]],
        lambda data: [data[:50_000], b"\0" * 1000, data[51_000:]],
    ],
)
def test_data_that_is_damaged_leaves_no_stream(js, orders, nats_server, broken):
    """Damaged data never leaves a stream."""
    info, data = taken(orders)
    delete(js, orders.name)
    with pytest.raises(errors.RestoreFailedError):
        js.restore_stream(info, broken(data))
    with RawClient(nats_server.port) as raw:
        assert raw.api("STREAM.NAMES")["total"] == 0


@pytest.mark.parametrize("error", [OSError("the disk is gone"), KeyboardInterrupt()])
def test_a_source_that_fails_leaves_no_stream(js, orders, error):
    """An error of the caller's iterable is raised, and the name is free at once."""
    info, data = taken(orders)
    delete(js, orders.name)
    for part in (data[: len(data) // 2], data):
        with pytest.raises(type(error)):
            js.restore_stream(info, pieces_until(part, error))
        assert js.stream_names() == []
    assert js.restore_stream(info, io.BytesIO(data)).cached_info.state.messages == 498


def test_data_is_bytes(js, orders):
    """Text is refused, and nothing is left behind."""
    info, data = taken(orders)
    delete(js, orders.name)
    with pytest.raises(errors.InvalidArgumentError):
        js.restore_stream(info, ["text"])
    assert js.stream_names() == []
    # Views are bytes, too, and empty ones do not end it.
    views = [b"", memoryview(data)[:1000], b"", bytearray(data[1000:])]
    assert js.restore_stream(info, views).cached_info.state.messages == 498


def test_a_stream_of_another_client_is_not_removed(js, orders):
    """A stream that another client created during a failing restore is kept."""
    info, data = taken(orders)
    delete(js, orders.name)

    def meanwhile() -> Iterator[bytes]:
        js.create_stream(name=orders.name, subjects=[f"{orders.name}.>"])
        js.publish(f"{orders.name}.x", b"mine")
        yield data

    with pytest.raises(errors.APIError):
        js.restore_stream(info, meanwhile())
    assert js.get_stream(orders.name).cached_info.state.messages == 1


@pytest.mark.parametrize("part", [2, 1])
@pytest.mark.parametrize("error", [OSError("the disk is gone"), KeyboardInterrupt()])
def test_the_same_restore_of_another_client_is_not_removed(js, orders, part, error):
    """A restore that fails keeps the stream that another client has restored meanwhile."""
    info, data = taken(orders)
    delete(js, orders.name)

    def meanwhile() -> Iterator[bytes]:
        js.restore_stream(info, io.BytesIO(data))
        yield from pieces_until(data[: len(data) // part], error)

    with pytest.raises(type(error)):
        js.restore_stream(info, meanwhile())
    state = js.get_stream(orders.name).cached_info.state
    assert (state.messages, state.consumer_count) == (498, 1)


# --- links that break ---------------------------------------------------------------------------


@pytest.mark.server(">=2.15")  # the same
def test_a_link_that_is_cut_ends_a_snapshot(fresh_server):
    """A broken link has the same effect as a lost server."""
    with (
        FaultProxy(fresh_server.port) as proxy,
        jetstream_sync.connect(proxy.url, reconnect_time_wait=0.05) as nc,
    ):
        stream = filled(nc.jetstream(), "ORDERS")
        with stream.snapshot(chunk_size=1024, window_size=4096) as snapshot:
            pieces = iter(snapshot)
            next(pieces)
            proxy.cut()
            with pytest.raises(errors.ConnectionLostError):
                list(pieces)
        with stream.snapshot(timeout=0.3, chunk_size=1024, window_size=4096) as snapshot:
            pieces = iter(snapshot)
            next(pieces)
            proxy.hold(*BOTH)
            with pytest.raises(errors.TimeoutError):
                list(pieces)
            proxy.heal()


def test_a_restart_in_the_middle_leaves_no_stream(alone, fresh_server):
    """The restore fails at once, and the partial data is removed when the server is back."""
    js = alone.jetstream()
    info, data = taken(filled(js, "ORDERS"))
    delete(js, "ORDERS")

    def restarting() -> Iterator[bytes]:
        yield data[: len(data) // 2]
        fresh_server.kill()
        fresh_server.start()
        yield data[len(data) // 2 :]

    with pytest.raises((errors.ConnectionLostError, errors.RestoreBrokenError)):
        js.restore_stream(info, restarting())
    with RawClient(fresh_server.port) as raw:
        assert raw.api("STREAM.NAMES")["total"] == 0
    again = js.restore_stream(info, io.BytesIO(data))
    assert again.cached_info.state.messages == 498


def test_a_server_that_does_not_return_ends_a_restore(alone, fresh_server):
    """Without a server nothing can be removed; the error says that the connection is lost."""
    js = alone.jetstream()
    info, data = taken(filled(js, "ORDERS"))
    delete(js, "ORDERS")

    def dying() -> Iterator[bytes]:
        yield data[: len(data) // 2]
        fresh_server.kill()
        wait_until(lambda: not alone.is_connected)
        alone.close()
        yield data[len(data) // 2 :]

    with pytest.raises(errors.ConnectionClosedError):
        js.restore_stream(info, dying(), timeout=1)


def test_a_cluster_takes_and_gives_snapshots(cluster):
    """A replicated stream is restored; a failed restore leaves neither a stream nor its name."""
    with jetstream_sync.connect(cluster.urls) as nc:
        js = nc.jetstream(timeout=10)
        stream = js.create_stream(name="ORDERS", subjects=["ORDERS.>"], num_replicas=3)
        for number in range(200):
            js.publish_async("ORDERS.x", body(number))
        js.publish_async_completed(10)
        info, data = taken(stream)
        js.delete_stream("ORDERS")
        with pytest.raises(errors.RestoreFailedError):
            js.restore_stream(info, io.BytesIO(data[: len(data) // 2]))
        assert js.stream_names() == []
        restored = js.restore_stream(info, io.BytesIO(data))
        assert restored.info().state.messages == 200
        assert restored.cached_info.config.num_replicas == 3


@pytest.mark.server(">=2.15")  # earlier servers have a fixed window
def test_replies_need_a_permission():
    """A user who may not acknowledge the pieces gets the error at once."""
    config = (
        "authorization { users = [{user: a, password: b, permissions: {publish: "
        '{deny: ["$JS.SNAPSHOT.>"]}}}] }'
    )
    with NatsServer(config=config) as server:
        url = f"nats://a:b@127.0.0.1:{server.port}"
        with jetstream_sync.connect(url, error_cb=print) as nc:
            stream = filled(nc.jetstream(), "ORDERS")
            with (
                stream.snapshot(chunk_size=1024, window_size=1024) as snapshot,
                pytest.raises(errors.PermissionsError),
            ):
                list(snapshot)


# --- a fake server --------------------------------------------------------------------------------

CONFIG = {"name": "S", "subjects": ["s"], "retention": "limits", "storage": "file"}
STATE = {"messages": 1, "bytes": 1, "first_seq": 1, "last_seq": 1, "consumer_count": 0}


def fake_response(subject: str, asked: Any) -> dict[str, Any] | None:
    """Answer like a server with one stream."""
    if subject == "STREAM.INFO.S":
        return {"config": CONFIG, "state": STATE, "created": "2024-01-01T00:00:00Z"}
    if subject == "STREAM.SNAPSHOT.S":
        inboxes.append(asked["deliver_subject"])
        return {"config": CONFIG, "state": STATE}
    return {"error": {"code": 500, "err_code": 10064, "description": "snapshot failed: no"}}


inboxes: list[str] = []


def test_a_missing_piece_is_detected():
    """Pieces are numbered; a missing one ends the snapshot with an error."""
    with FakeJetStream(fake_response) as server, jetstream_sync.connect(server.url) as nc:
        snapshot = nc.jetstream().get_stream("S").snapshot()
        server.deliver(inboxes[-1], b"one", "$JS.SNAPSHOT.ACK.S.id.3.1")
        server.deliver(inboxes[-1], b"three", "$JS.SNAPSHOT.ACK.S.id.5.3")
        pieces = iter(snapshot)
        assert next(pieces) == b"one"
        with pytest.raises(errors.SnapshotBrokenError, match="chunk 2 did not arrive"):
            next(pieces)
        assert server.wait_for(lambda said: said.subject == "$JS.SNAPSHOT.ACK.S.id.3.1")


@pytest.mark.parametrize("end", [b"", b"NATS/1.0 204\r\n\r\n"])
def test_an_empty_message_ends_the_snapshot(end):
    """No status, or 204, is a complete snapshot."""
    with FakeJetStream(fake_response) as server, jetstream_sync.connect(server.url) as nc:
        snapshot = nc.jetstream().get_stream("S").snapshot()
        server.deliver(inboxes[-1], b"last")
        server.deliver(inboxes[-1], header=end)
        assert list(snapshot) == [b"last"]
        assert snapshot.finished
        assert list(snapshot) == []


def test_a_status_is_an_error():
    """The status of the server is in the error."""
    with FakeJetStream(fake_response) as server, jetstream_sync.connect(server.url) as nc:
        snapshot = nc.jetstream().get_stream("S").snapshot()
        server.deliver(inboxes[-1], header=b"NATS/1.0 500 disk on fire\r\n\r\n")
        with pytest.raises(errors.SnapshotBrokenError, match="500 disk on fire"):
            list(snapshot)


def test_a_refused_snapshot_has_its_class():
    """A snapshot that the server cannot make is an error, and leaves no subscription."""

    def refusing(subject: str, asked: Any) -> dict[str, Any] | None:
        return fake_response("" if "SNAPSHOT" in subject else subject, asked)

    with FakeJetStream(refusing) as server, jetstream_sync.connect(server.url) as nc:
        stream = nc.jetstream().get_stream("S")
        with pytest.raises(errors.SnapshotFailedError):
            stream.snapshot()
        assert server.wait_for(lambda said: said.verb == "UNSUB")
