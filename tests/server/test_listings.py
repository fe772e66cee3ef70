"""Listings of streams, consumers and buckets: complete, or the call names what is missing."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pytest
from fixtures.fake_jetstream import FakeJetStream, consumer_info
from fixtures.server import running_cluster
from fixtures.threads import SCALE, wait_until

import jetstream_sync
from jetstream_sync import JetStream, Listing
from jetstream_sync.errors import IncompleteListingError

REASON = 'unsupported - config error: unknown field "allow_batched"'


def info(name: str, messages: int = 5) -> dict[str, Any]:
    """Return the info of a stream as nats-server lists it."""
    state = {"messages": messages, "bytes": 0, "first_seq": 0, "last_seq": 0, "consumer_count": 0}
    config = {"name": name, "subjects": [f"$KV.{name[3:]}.>"]}
    return {"config": config, "created": "2026-01-01T00:00:00Z", "state": state}


@contextmanager
def listing(response: Callable[[str, Any], dict[str, Any] | None]):
    """Yield JetStream on a server with scripted replies."""
    with FakeJetStream(response) as server, jetstream_sync.connect(server.url) as nc:
        yield nc.jetstream(timeout=5)
        nc.close()


def half(*_: object) -> dict[str, Any]:
    """A server that cannot run one stream, does not reach two, and lists one of these with zeros."""
    return {
        "total": 4,
        "offset": 0,
        "streams": [info("KV_a"), info("KV_b", 0)],
        "missing": ["KV_b", "KV_c", "KV_d"],
        "offline": {"KV_d": REASON},
    }


def test_the_known_part_of_a_listing_is_iterated_before_the_error():
    """The error names what is missing, with the reasons, after the last known item."""
    with listing(half) as js:
        seen: list[object] = []
        with pytest.raises(IncompleteListingError) as caught:
            seen.extend((stream.config.name, stream.state.messages) for stream in js.list_streams())
    assert seen == [("KV_a", 5)]
    assert caught.value.missing == {
        "KV_b": "its servers are offline",
        "KV_c": "its servers did not reply",
        "KV_d": REASON,
    }
    assert str(caught.value) == (
        "the list of streams is incomplete: no information on 'KV_b': 'its servers are offline', "
        f"'KV_c': 'its servers did not reply', 'KV_d': {REASON!r}"
    )
    assert pickle.loads(pickle.dumps(caught.value)).missing == caught.value.missing


@pytest.mark.parametrize(
    "use",
    [
        list,
        sorted,
        len,
        set,
        tuple,
        lambda found: found[:],
        lambda found: found[1],
        lambda found: found == ["a"],
        lambda found: "b" in found,
        lambda found: list(reversed(found)),
        lambda found: found.check(),
        lambda found: [*found],
    ],
)
def test_no_use_of_an_incomplete_listing_takes_it_for_complete(use):
    """Neither a copy, a count, a comparison nor "not in it" leaves the missing items out."""
    with listing(half) as js:
        found = js.key_value_names()
        with pytest.raises(IncompleteListingError):
            use(found)
        assert "a" in found
        assert found[0] == "a"
        assert found


def test_an_empty_but_incomplete_listing_is_not_empty():
    """``if not js.list_streams()`` raises when no stream is known but some are missing."""
    response = {"total": 1, "offset": 0, "streams": [], "missing": ["A"]}
    with listing(lambda *_: response) as js:
        with pytest.raises(IncompleteListingError):
            bool(js.list_streams())
        assert not js.list_streams(allow_incomplete=True)


def test_buckets_are_missing_under_their_own_names():
    """Listings of buckets name missing buckets without the prefix of their streams."""
    with listing(half) as js:
        statuses = js.list_key_values(allow_incomplete=True)
        assert [(status.bucket, status.values) for status in statuses] == [("a", 5)]
        for found in (statuses, js.key_value_names(allow_incomplete=True)):
            assert not found.is_complete
            assert list(found.missing) == ["b", "c", "d"]
            assert found.offline == {"d": REASON}
        with pytest.raises(IncompleteListingError, match="key-value buckets"):
            list(js.list_key_values())


def test_object_stores_are_missing_under_their_own_names():
    """The same for object stores."""
    response = {"total": 1, "offset": 0, "streams": [info("OBJ_a", 0)], "missing": ["OBJ_a"]}
    with listing(lambda *_: response) as js:
        found = js.list_object_stores(allow_incomplete=True)
        assert list(found) == []
        assert list(found.missing) == ["a"]
        with pytest.raises(IncompleteListingError, match="object stores"):
            list(js.list_object_stores())


def test_unreachable_consumers_are_named_by_their_configs():
    """A server lists unreachable consumers with an empty name; each of them is missing."""
    items = [consumer_info("C0", {})]
    items += [consumer_info("", {"name": f"C{number}"}) for number in (1, 2, 3)]
    missing = ["C1", "C2", "C3"]
    response = {"total": 4, "offset": 0, "consumers": items, "missing": missing}
    with listing(lambda *_: response) as js:
        found = js.list_consumers("S", allow_incomplete=True)
        assert [item.name for item in found] == ["C0"]
        assert list(found.missing) == missing
        with pytest.raises(IncompleteListingError, match="list of consumers"):
            list(js.list_consumers("S"))


def test_items_that_are_counted_but_not_listed_are_taken_from_the_names():
    """If the infos are fewer than their total, the missing ones are found in the list of names."""

    def respond(route: str, _: object) -> dict[str, Any]:
        names = ["A", "B", "C"]
        streams = names if route == "STREAM.NAMES" else [info("B")]
        return {"total": 3, "offset": 0, "streams": streams}

    with listing(respond) as js:
        found = js.list_streams(allow_incomplete=True)
        assert [item.config.name for item in found] == ["B"]
        assert list(found.missing) == ["A", "C"]
        with pytest.raises(IncompleteListingError):
            list(js.list_streams())


@pytest.mark.parametrize(
    "call",
    [JetStream.stream_names, JetStream.object_store_names, lambda js: len(js.list_streams())],
)
def test_a_total_without_items_is_not_an_empty_list(call):
    """A list of 10 streams of which none is listed or named is an error with the number."""
    response = {"total": 10, "offset": 0, "streams": []}
    with (
        listing(lambda *_: response) as js,
        pytest.raises(IncompleteListingError, match="10 more"),
    ):
        call(js)


def test_a_deletion_between_two_pages_hides_no_stream():
    """When the total shrinks, the part that may have moved is requested again."""
    names = ["A", "B", "C", "D", "E"]

    def respond(_: str, body: dict[str, int]) -> dict[str, Any]:
        offset = body["offset"]
        page = {"total": len(names), "offset": offset, "streams": names[offset : offset + 2]}
        if not offset and "A" in names:
            names.remove("A")
        return page

    with listing(respond) as js:
        assert js.stream_names() == ["A", "B", "C", "D", "E"]


@pytest.mark.full
def test_a_stopped_server_hides_no_stream_consumer_or_bucket():
    """With one of three servers stopped, infos and missing names are all names that exist."""
    with (
        running_cluster() as cluster,
        jetstream_sync.connect(cluster.urls, max_reconnect_attempts=-1) as nc,
    ):
        js = nc.jetstream(timeout=20 * SCALE)
        short = nc.jetstream(timeout=2 * SCALE)

        def created(create: Callable[..., object], **config: Any) -> bool:
            # A request is lost if the meta leader changes.
            with suppress(TimeoutError):
                return bool(create(**config))
            return False

        for number in range(6):
            subjects = [f"s.{number}"]
            wait_until(partial(created, short.create_stream, name=f"S{number}", subjects=subjects))
            js.publish(f"s.{number}", b"x")
            wait_until(partial(created, short.create_key_value, bucket=f"b{number}"))
        wait_until(partial(created, short.create_stream, name="R3", num_replicas=3))
        stream = js.get_stream("R3")
        for number in range(6):
            stream.create_consumer(durable_name=f"C{number}", num_replicas=1)
        # The placement may put everything on one server: stop the one with some consumers.
        homes = {
            consumer.cluster and consumer.cluster.leader for consumer in stream.list_consumers()
        }
        victim = next(
            server
            for number, server in enumerate(cluster.servers, 1)
            if f"cluster-{number}" in homes and server is not cluster.leader()
        )
        victim.stop()

        def complete(found: Listing[Any], names: list[str], name: Callable[[Any], str]) -> int:
            known = [name(item) for item in found]
            assert sorted([*known, *found.missing]) == names
            return len(found.missing)

        def missing() -> bool:
            consumers = stream.list_consumers(allow_incomplete=True)
            return complete(consumers, stream.consumer_names(), lambda item: item.name) > 0

        wait_until(missing, 30)
        streams = js.list_streams(allow_incomplete=True)
        complete(streams, js.stream_names(), lambda item: item.config.name)
        assert all(
            stream.state.messages for stream in streams if stream.config.name.startswith("S")
        )
        buckets = js.key_value_names(allow_incomplete=True)
        assert sorted([*buckets, *buckets.missing]) == [f"b{number}" for number in range(6)]
        with pytest.raises(IncompleteListingError):
            list(stream.list_consumers())
