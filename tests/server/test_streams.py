"""Streams: create, get, list, update, purge and delete."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from fixtures.internals import api_of
from fixtures.rawnats import RawClient
from fixtures.threads import within

from jetstream_sync import (
    Connection,
    DiscardPolicy,
    JetStream,
    Msg,
    StorageType,
    Stream,
    StreamConfig,
    errors,
)


def fill(js: JetStream, stream: Stream, *subjects: str) -> None:
    for subject in subjects:
        js.publish(f"{stream.name}.{subject}", b"x")


def left(stream: Stream) -> dict[str, int]:
    """Return the number of messages of each subject, without the stream's name in front."""
    subjects = stream.info(subjects_filter=">").state.subjects or {}
    return {name.removeprefix(f"{stream.name}."): count for name, count in subjects.items()}


# --- create, get, update ------------------------------------------------------------------------


def test_a_stream_is_created_with_its_config(js, stream_name, nats_server):
    """The server has the given config, and the result has the server's defaults."""
    stream = js.create_stream(
        StreamConfig(
            name=stream_name,
            description="a test",
            subjects=[f"{stream_name}.*", f"{stream_name}.x.>"],
            max_age=1.5,
            max_msgs=1000,
            discard=DiscardPolicy.NEW,
            storage=StorageType.MEMORY,
            duplicate_window=timedelta(seconds=1),
            metadata={"team": "a"},
        )
    )
    assert stream.name == stream_name
    with RawClient(nats_server.port) as raw:
        config = raw.api(f"STREAM.INFO.{stream_name}")["config"]
    assert config["description"] == "a test"
    assert config["subjects"] == [f"{stream_name}.*", f"{stream_name}.x.>"]
    assert (config["max_age"], config["duplicate_window"]) == (1_500_000_000, 1_000_000_000)
    assert (config["discard"], config["storage"], config["max_msgs"]) == ("new", "memory", 1000)
    assert config["metadata"]["team"] == "a"
    got = stream.cached_info.config
    assert got.max_age == timedelta(seconds=1.5)
    assert (got.max_bytes, got.num_replicas) == (-1, 1)


def test_an_info_is_the_same_however_it_was_had(js, stream_name):
    """Creating, getting and listing return one config, without fields of the request."""
    made = js.create_stream(name=stream_name, subjects=[stream_name], storage="memory")
    found = js.get_stream(stream_name)
    infos = [made.cached_info, found.cached_info, made.info(), *js.list_streams()]
    for info in infos:
        assert dict(info.extra) == {}
        assert info.created == infos[0].created
        assert replace(info.config, metadata=None) == replace(infos[0].config, metadata=None)


def test_creating_an_equal_consumer_twice_is_allowed(js, stream_name):
    """Creating an equal stream again returns the existing one."""
    first = js.create_stream(name=stream_name, subjects=[stream_name], storage="memory")
    js.publish(stream_name, b"x")
    second = js.create_stream(name=stream_name, subjects=[stream_name], storage="memory")
    assert second.cached_info.created == first.cached_info.created
    assert second.info().state.messages == 1


def test_an_update_changes_only_the_given_field(js, stream_name):
    """A config that was read, changed and sent back changes only the changed field."""
    stream = js.create_stream(
        name=stream_name, subjects=[stream_name], storage="memory", description="one"
    )
    config = stream.cached_info.config
    updated = js.update_stream(replace(config, max_msgs=7))
    assert updated.cached_info.config == replace(config, max_msgs=7)
    assert stream.cached_info.config.max_msgs == -1, "the cache is only changed by asking"
    assert stream.info().config.max_msgs == 7
    assert stream.cached_info.config.max_msgs == 7


@pytest.mark.server(">=2.11")
def test_a_pedantic_server_corrects_nothing(js, stream_name):
    """With `pedantic` create and update refuse what the server would silently correct."""
    # The server's default window of 2 minutes is longer than the age.
    for create in (js.create_stream, js.create_or_update_stream):
        with pytest.raises(errors.BadRequestError, match="pedantic"):
            create(name=stream_name, subjects=[stream_name], max_age=30, pedantic=True)
    stream = js.create_stream(name=stream_name, subjects=[stream_name], max_age=30)
    config = replace(stream.cached_info.config, max_age=20, duplicate_window=None)
    with pytest.raises(errors.BadRequestError, match="pedantic"):
        js.update_stream(config, pedantic=True)
    assert js.update_stream(config).cached_info.config.max_age == timedelta(seconds=20)


def test_create_or_update_does_either(js, stream_name):
    """A stream that does not exist is created, an existing one is updated."""
    fields: dict[str, Any] = {"name": stream_name, "subjects": [stream_name], "storage": "memory"}
    made = js.create_or_update_stream(**fields)
    js.publish(stream_name, b"x")
    changed = js.create_or_update_stream(StreamConfig(**fields, max_msgs=5))
    assert changed.cached_info.config.max_msgs == 5
    assert changed.cached_info.created == made.cached_info.created
    assert changed.info().state.messages == 1


def test_calls_on_a_deleted_stream_raise(js, stream_name):
    """After a stream was deleted, every call on it raises at once."""
    stream = js.create_stream(name=stream_name, subjects=[stream_name], storage="memory")
    js.delete_stream(stream_name)
    calls: list[Callable[[], object]] = [
        lambda: js.delete_stream(stream_name),
        lambda: js.get_stream(stream_name),
        lambda: js.update_stream(name=stream_name),
        stream.info,
        stream.purge,
        lambda: stream.purge(seq=1),
        lambda: stream.get_msg(1),
        lambda: stream.delete_msg(1),
        lambda: stream.create_consumer(durable_name="c"),
        lambda: stream.update_consumer(durable_name="c"),
        lambda: stream.create_or_update_consumer(durable_name="c"),
        lambda: stream.get_consumer("c"),
        lambda: stream.delete_consumer("c"),
        stream.consumer_names,
        stream.list_consumers,
    ]
    for call in calls:
        with within(1), pytest.raises(errors.StreamNotFoundError):
            call()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"max_msgs": 5}, errors.StreamNameInUseError),
        ({"storage": "file"}, errors.StreamNameInUseError),
        ({"name": "{}_2"}, errors.StreamSubjectOverlapError),
    ],
)
def test_a_refused_stream(js, stream_name, change, error):
    """The server's refusals have their own classes, and the connection stays usable."""
    fields: dict[str, Any] = {"name": stream_name, "subjects": [stream_name], "storage": "memory"}
    js.create_stream(**fields)
    change = {
        name: value.format(stream_name) if isinstance(value, str) else value
        for name, value in change.items()
    }
    with within(1), pytest.raises(error) as caught:
        js.create_stream(**{**fields, **change})
    assert caught.value.code == 400
    assert js.stream_names() == [stream_name]


def test_a_refused_update(js, stream_name):
    """A change of a fixed property is refused, and the stream is unchanged."""
    js.create_stream(name=stream_name, subjects=[stream_name], storage="memory")
    with within(1), pytest.raises(errors.ServerError):
        js.update_stream(name=stream_name, subjects=[stream_name], storage="file")
    assert js.get_stream(stream_name).cached_info.config.storage is StorageType.MEMORY
    js.create_stream(name=f"{stream_name}_2", subjects=["other"], storage="memory")
    with pytest.raises(errors.StreamSubjectOverlapError):
        js.update_stream(name=stream_name, subjects=["other"], storage="memory")


# --- what is refused before anything is sent ----------------------------------------------------


@pytest.fixture
def unanswered(nc: Connection) -> JetStream:
    """A context whose requests get no reply: a call that sends one times out."""
    _kept = nc.subscribe("unanswered.API.>")
    return nc.jetstream(prefix="unanswered.API", timeout=0.2)


@pytest.mark.parametrize(
    ("config", "fields", "option"),
    [
        (StreamConfig(name="S"), {"max_msgs": 1}, "max_msgs"),
        ({"name": "S"}, {}, "config"),
        (None, {}, "name"),
        (None, {"name": "S", "max_mesgs": 1}, "max_mesgs"),
        (None, {"name": "S", "max_msgs": "1"}, "max_msgs"),
    ],
)
def test_a_bad_config_is_refused_here(unanswered, config, fields, option):
    """A config together with fields, none of them, or an invalid field is refused."""
    for call in (
        unanswered.create_stream,
        unanswered.update_stream,
        unanswered.create_or_update_stream,
    ):
        with pytest.raises(errors.InvalidOptionError) as caught:
            call(config, **fields)
        assert caught.value.option == option


# --- listing ------------------------------------------------------------------------------------


def test_names_and_lists_follow_a_subject(js, stream_name):
    """With a subject only the streams that have it are listed."""
    for suffix in ("a", "b", "c"):
        subjects = [f"{stream_name}.{suffix}.>"]
        js.create_stream(name=f"{stream_name}_{suffix}", subjects=subjects, storage="memory")
    every = [f"{stream_name}_{suffix}" for suffix in "abc"]
    assert js.stream_names() == every
    assert [info.config.name for info in js.list_streams()] == every
    for subject, names in ((f"{stream_name}.b.x", every[1:2]), (f"{stream_name}.*.x", every)):
        assert js.stream_names(subject) == names
        assert [info.config.name for info in js.list_streams(subject)] == names
        assert js.find_stream_name_by_subject(subject) == names[0]


def test_no_stream_for_a_subject(js):
    """The list is empty, and looking up the name by subject is an error."""
    assert js.stream_names("nothing.here") == []
    assert js.list_streams("nothing.here") == []
    with pytest.raises(errors.StreamNotFoundError) as caught:
        js.find_stream_name_by_subject("nothing.here")
    assert (caught.value.code, caught.value.err_code) == (404, 10059)
    assert "nothing.here" in str(caught.value)


def test_lists_are_put_together_of_pages(alone, fresh_server):
    """Names come in pages of 1024, infos in pages of 256; each stream is listed once, sorted."""
    names = [f"S{number:04}" for number in range(1030)]
    with RawClient(fresh_server.port) as raw:
        for name in names:
            raw.api(f"STREAM.CREATE.{name}", name=name, subjects=[f"s.{name}"], storage="memory")
    js = alone.jetstream()
    assert js.stream_names() == names
    assert [info.config.name for info in js.list_streams()] == names
    assert js.stream_names("s.*") == names
    assert [info.config.name for info in js.list_streams("s.S0001")] == ["S0001"]


def test_streams_without_an_info_are_listed_once(nc):
    """Streams without an info are listed by name; the next page starts behind them, too."""
    asked = []
    pages = {
        0: {"total": 5, "streams": [item("A"), item("C")], "missing": ["B"]},
        2: {"total": 5, "streams": [item("C"), item("D"), item("E")]},
        3: {"total": 5, "streams": [], "missing": ["D"]},
        4: {"total": 5, "streams": [item("E")]},
    }

    def respond(message: Msg) -> None:
        offset = json.loads(message.data)["offset"]
        asked.append(offset)
        message.respond(json.dumps(pages[offset]).encode())

    nc.subscribe("paged.API.STREAM.LIST", cb=respond)
    infos = nc.jetstream(prefix="paged.API").list_streams(allow_incomplete=True)
    assert list(infos.missing) == ["B", "D"]
    assert [info.config.name for info in infos] == ["A", "C", "E"]
    assert asked == [0, 3, 4]


def item(name: str) -> dict[str, Any]:
    state = {"messages": 0, "bytes": 0, "first_seq": 0, "last_seq": 0, "consumer_count": 0}
    return {"config": {"name": name}, "created": "2026-01-01T00:00:00Z", "state": state}


# --- info ---------------------------------------------------------------------------------------


def test_info_counts_the_messages_of_subjects(js, stream):
    """Subjects are counted only with a filter; without a match the map is empty."""
    fill(js, stream, "a.1", "a.1", "a.2", "b.1")
    assert stream.info().state.subjects is None
    assert left(stream) == {"a.1": 2, "a.2": 1, "b.1": 1}
    counted = stream.info(subjects_filter=f"{stream.name}.a.*")
    assert counted.state.subjects == {f"{stream.name}.a.1": 2, f"{stream.name}.a.2": 1}
    assert stream.info(subjects_filter="none").state.subjects == {}
    assert dict(counted.extra) == {}
    assert stream.cached_info.state.subjects is None, "the cache does not hold them"
    assert stream.cached_info.state.messages == 4


def test_info_lists_the_deleted_sequences(js, stream):
    """The sequences of deleted messages are returned on request."""
    fill(js, stream, "a", "a", "a", "a")
    stream.delete_msg(2)
    stream.delete_msg(3)
    assert stream.info().state.deleted is None
    state = stream.info(deleted_details=True).state
    assert state.deleted == [2, 3]
    assert state.num_deleted == 2
    assert stream.cached_info.state.deleted is None
    both = stream.info(subjects_filter=">", deleted_details=True).state
    assert both.deleted == [2, 3]
    assert both.subjects == {f"{stream.name}.a": 2}


# --- newer servers --------------------------------------------------------------------------------


def test_unknown_fields_are_sent_back_on_update(nc):
    """Unknown fields survive reading, changing and writing a config, at any depth."""
    sources = [{"name": "T", "future_source": True}]
    config = {"name": "S", "max_msgs": -1, "future": {"a": [1, None]}, "sources": sources}
    sent = []

    def respond(message: Msg) -> None:
        if message.subject.startswith("new.API.STREAM.UPDATE"):
            sent.append(json.loads(message.data))
        message.respond(json.dumps({**item("S"), "config": config}).encode())

    nc.subscribe("new.API.STREAM.>", cb=respond)
    js = nc.jetstream(prefix="new.API")
    js.update_stream(replace(js.get_stream("S").cached_info.config, max_msgs=5))
    assert sent == [{**config, "max_msgs": 5}]


# --- purging ------------------------------------------------------------------------------------

SUBJECTS = ("a.1", "b.1", "a.2", "a.1", "b.1")


@pytest.mark.parametrize(
    ("arguments", "purged", "expected"),
    [
        ({}, 5, {}),
        ({"subject": "a.1"}, 2, {"b.1": 2, "a.2": 1}),
        ({"subject": "a.*"}, 3, {"b.1": 2}),
        ({"subject": "none"}, 0, {"a.1": 2, "b.1": 2, "a.2": 1}),
        ({"seq": 3}, 2, {"a.2": 1, "a.1": 1, "b.1": 1}),
        ({"subject": "b.1", "seq": 5}, 1, {"a.1": 2, "b.1": 1, "a.2": 1}),
        ({"keep": 2}, 3, {"a.1": 1, "b.1": 1}),
        ({"keep": 0}, 5, {}),
        ({"subject": "a.*", "keep": 1}, 2, {"a.1": 1, "b.1": 2}),
    ],
)
def test_purge(js, stream, arguments, purged, expected):
    """A purge deletes and counts exactly the selected messages."""
    fill(js, stream, *SUBJECTS)
    if "subject" in arguments:
        arguments = {**arguments, "subject": f"{stream.name}.{arguments['subject']}"}
    assert stream.purge(**arguments) == purged
    assert left(stream) == expected
    assert stream.info().state.last_seq == len(SUBJECTS)


def test_a_purge_up_to_a_later_sequence_moves_the_stream_there(js, stream):
    """The next message gets the sequence up to which the stream was purged."""
    fill(js, stream, *SUBJECTS)
    assert stream.purge(seq=100) == len(SUBJECTS)
    assert js.publish(f"{stream.name}.a", b"x").seq == 100


@pytest.mark.parametrize("response", [b"", b"[]", b'{"success": true}', b'{"purged": "all"}'])
def test_a_reply_to_a_purge_without_a_count_is_an_error(nc, stream, response):
    """A reply that is not JSON of the API, or does not say how much was purged, is an error."""
    nc.subscribe("odd.API.STREAM.PURGE.>", cb=lambda message: message.respond(response))
    with pytest.raises(errors.InvalidResponseError):
        Stream(api_of(nc.jetstream(prefix="odd.API")), stream.cached_info).purge()


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        ({"seq": 1, "keep": 1}, "keep"),
        ({"seq": 0}, "seq"),
        ({"keep": -1}, "keep"),
    ],
)
def test_a_bad_purge_deletes_nothing(js, stream, arguments, option):
    """An invalid bound is refused: the server would read 0 as none, and delete all."""
    fill(js, stream, *SUBJECTS)
    with pytest.raises(errors.InvalidOptionError) as caught:
        stream.purge(**arguments)
    assert caught.value.option == option
    assert stream.info().state.messages == len(SUBJECTS)


# --- deleting messages --------------------------------------------------------------------------


@pytest.mark.parametrize("secure", [False, True])
def test_a_message_is_deleted(js, nc, stream, secure):
    """It is deleted, the others stay; its bytes are erased on request only."""
    fill(js, stream, "a", "b", "c")
    spy = nc.subscribe("$JS.API.STREAM.MSG.DELETE.*")
    stream.delete_msg(2, secure=secure)
    assert left(stream) == {"a": 1, "c": 1}
    request = json.loads(spy.next_msg(timeout=2).data)
    assert request["seq"] == 2
    # The server erases by default.
    assert request.get("no_erase", False) is (not secure)


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("seq", [2, 4])
def test_deleting_a_missing_message_raises(js, stream, seq, secure):
    """A deleted message and one that never existed give the same error."""
    fill(js, stream, "a", "b", "c")
    stream.delete_msg(2)
    with within(1), pytest.raises(errors.MessageNotFoundError):
        stream.delete_msg(seq, secure=secure)


def test_a_stream_that_denies_it_keeps_its_messages(js, stream_name):
    """A forbidden deletion has another error than a missing message."""
    stream = js.create_stream(
        name=stream_name, subjects=[f"{stream_name}.>"], storage="memory", deny_delete=True
    )
    fill(js, stream, "a")
    with within(1), pytest.raises(errors.APIError) as caught:
        stream.delete_msg(1)
    assert not isinstance(caught.value, errors.MessageNotFoundError)
    assert stream.get_msg(1).seq == 1


@pytest.mark.parametrize("seq", [0, 2**64, True, None])
def test_a_sequence_is_a_number_from_1_on(stream, seq):
    """An invalid sequence is refused by the client."""
    with pytest.raises(errors.InvalidOptionError) as caught:
        stream.delete_msg(seq)
    assert caught.value.option == "seq"
