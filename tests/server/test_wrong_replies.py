"""Invalid replies of the API: a typed error, and no endless call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fixtures.fake_jetstream import FakeJetStream, consumer_info

import jetstream_sync
from jetstream_sync import JetStream
from jetstream_sync.errors import IncompleteListingError, InvalidResponseError

NAMES: dict[str, Callable[[JetStream], object]] = {
    "stream_names": lambda js: js.stream_names(),
    "consumer_names": lambda js: js.consumer_names("S"),
}
INFOS: dict[str, Callable[[JetStream], object]] = {
    "list_streams": lambda js: js.list_streams(),
    "list_consumers": lambda js: js.list_consumers("S"),
}
LOOKUPS: dict[str, Callable[[JetStream], object]] = {
    "find_stream_name_by_subject": lambda js: js.find_stream_name_by_subject("a"),
    "subscribe": lambda js: js.subscribe("a"),
    "pull_subscribe": lambda js: js.pull_subscribe("a"),
}
DONE: dict[str, Callable[[JetStream], object]] = {
    "delete_stream": lambda js: js.delete_stream("S"),
    "delete_consumer": lambda js: js.delete_consumer("S", "C"),
}
RECORDS: dict[str, Callable[[JetStream], object]] = {
    "account_info": lambda js: js.account_info(),
    "get_stream": lambda js: js.get_stream("S"),
    "create_stream": lambda js: js.create_stream(name="S"),
    "get_consumer": lambda js: js.get_consumer("S", "C"),
    "create_consumer": lambda js: js.create_consumer("S", name="C"),
    "publish": lambda js: js.publish("$JS.API.X"),
}
PAGE = {"offset": 0, "limit": 1024}


def answered(call: Callable[[JetStream], object], response: dict[str, Any]) -> None:
    """Call a function with one reply to every request: it must raise InvalidResponseError."""
    with (
        FakeJetStream(lambda *_: response) as server,
        jetstream_sync.connect(server.url) as nc,
    ):
        with pytest.raises(InvalidResponseError):
            pytest.fail(f"returned {call(nc.jetstream(timeout=5))!r}")
        nc.close()


@pytest.mark.parametrize(
    ("name", "response"),
    [
        (name, response)
        for name in (*NAMES, *INFOS, *LOOKUPS, *DONE, *RECORDS)
        for response in ({}, {"error": "x"}, {"error": 5}, {"error": []})
        if response or name != "account_info"  # all fields of an account info are optional
    ],
)
def test_a_reply_without_what_was_asked_for_is_invalid(name, response):
    """An error that is not an object, and an empty reply, are not successes."""
    answered({**NAMES, **INFOS, **LOOKUPS, **DONE, **RECORDS}[name], response)


@pytest.mark.parametrize("name", [*NAMES, *INFOS, *LOOKUPS])
@pytest.mark.parametrize("items", [5, "x", {"a": 1}, [5], [None], [{}], [[]], True], ids=repr)
def test_a_list_of_something_else_is_invalid(name, items):
    """A reply with a wrong type or an invalid name is not read as a list of names."""
    response = {"total": 1, **PAGE, "streams": items, "consumers": items}
    answered({**NAMES, **INFOS, **LOOKUPS}[name], response)


@pytest.mark.parametrize("name", [*NAMES, *INFOS])
@pytest.mark.parametrize("total", ["1", None, 1.5, True], ids=repr)
def test_a_total_that_is_no_number_is_invalid(name, total):
    """A total that is not a number is an error: paging needs it."""
    answered({**NAMES, **INFOS}[name], {"total": total, **PAGE, "streams": [], "consumers": []})


@pytest.mark.parametrize("success", [None, False, "true", 1], ids=repr)
@pytest.mark.parametrize("name", DONE)
def test_a_deletion_needs_success(name, success):
    """A deletion needs the server's confirmation."""
    answered(DONE[name], {"success": success})


@pytest.mark.parametrize("name", NAMES)
def test_a_page_without_new_items_ends_the_paging(name):
    """A total that is never reached is an incomplete list; nothing is listed twice."""
    pages: list[int] = []

    def respond(_: str, body: dict[str, int]) -> dict[str, Any]:
        pages.append(body["offset"])
        # The second page overlaps the first, as after a deletion meanwhile.
        found = ["A", "B"] if body["offset"] == 0 else ["B", "C"]
        return {"total": 10**9, **PAGE, "streams": found, "consumers": found}

    with FakeJetStream(respond) as server, jetstream_sync.connect(server.url) as nc:
        with pytest.raises(IncompleteListingError) as caught:
            NAMES[name](nc.jetstream(timeout=5))
        nc.close()
    assert caught.value.unnamed == 10**9 - 3
    assert pages == [0, 2, 4]


def test_subjects_end_with_a_page_without_new_ones():
    """The same for the subjects of a stream."""
    info = {
        "config": {"name": "S"},
        "created": "2024-01-01T00:00:00Z",
        "state": {
            "messages": 1,
            "bytes": 1,
            "first_seq": 1,
            "last_seq": 1,
            "consumer_count": 0,
            "subjects": {"a": 1},
        },
        "total": 10**9,
    }
    with (
        FakeJetStream(lambda *_: info) as server,
        jetstream_sync.connect(server.url) as nc,
    ):
        stream = nc.jetstream(timeout=5).get_stream("S")
        assert stream.info(subjects_filter=">").state.subjects == {"a": 1}
        nc.close()


@pytest.mark.parametrize("name", ["get_stream", "create_stream", "get_consumer", "create_consumer"])
def test_a_reply_about_something_else_is_invalid(name):
    """The name in the reply is compared with the name that was requested."""
    stream = {
        "config": {"name": "OTHER", "subjects": ["a"]},
        "state": {"messages": 0, "bytes": 0, "first_seq": 0, "last_seq": 0, "consumer_count": 0},
        "created": "2024-01-01T00:00:00Z",
    }
    consumer = consumer_info("OTHER", {})
    answered(RECORDS[name], stream if "stream" in name else consumer)
