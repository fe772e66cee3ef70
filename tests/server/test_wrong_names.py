"""Invalid subjects, queue groups and names are refused at once, and nothing is sent."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, NamedTuple

import pytest

from jetstream_sync import Connection, JetStream, Stream, errors

LATER = datetime(2100, 1, 1, tzinfo=timezone.utc)
INJECTION = "x 0\r\n\r\nPUB evil 2\r\nhi\r\nPUB y"
OVERLONG = "x" * 5000
#: Invalid as a subject, queue group or name, for every method.
BAD: list[Any] = [INJECTION.encode(), INJECTION, b"x", None, 5, ["x"], OVERLONG, "a\x00b", "a b"]


class On(NamedTuple):
    """A call, its object, and the invalid argument."""

    nc: Connection
    js: JetStream
    stream: Stream
    bad: Any


Call = Callable[[On], object]

SUBJECTS: dict[str, Call] = {
    "publish": lambda on: on.nc.publish(on.bad, b""),
    "request": lambda on: on.nc.request(on.bad, b""),
    "subscribe": lambda on: on.nc.subscribe(on.bad),
    "js.publish": lambda on: on.js.publish(on.bad, b""),
    "js.publish_async": lambda on: on.js.publish_async(on.bad, b""),
    "js.subscribe": lambda on: on.js.subscribe(on.bad),
    "js.pull_subscribe": lambda on: on.js.pull_subscribe(on.bad),
    "find_stream_name_by_subject": lambda on: on.js.find_stream_name_by_subject(on.bad),
    "create_stream": lambda on: on.js.create_stream(name="N", subjects=[on.bad]),
}
#: Subjects that may be left out: None is allowed.
OPTIONAL_SUBJECTS: dict[str, Call] = {
    "publish reply": lambda on: on.nc.publish("a", b"", on.bad),
    "stream_names": lambda on: on.js.stream_names(on.bad),
    "list_streams": lambda on: on.js.list_streams(on.bad),
    "stream.info": lambda on: on.stream.info(subjects_filter=on.bad),
    "stream.purge": lambda on: on.stream.purge(subject=on.bad),
    "stream.get_msg": lambda on: on.stream.get_msg(seq=1, next_by_subject=on.bad),
    "stream.get_msgs": lambda on: on.stream.get_msgs(1, next_by_subject=on.bad),
    "stream.get_last_msgs": lambda on: on.stream.get_last_msgs([on.bad]),
    "filter_subject": lambda on: on.stream.create_consumer(filter_subject=on.bad),
    "deliver_subject": lambda on: on.stream.create_push_consumer(deliver_subject=on.bad),
}
QUEUES: dict[str, Call] = {
    "subscribe": lambda on: on.nc.subscribe("a", queue=on.bad),
}
OPTIONAL_QUEUES: dict[str, Call] = {
    "js.subscribe": lambda on: on.js.subscribe("a", queue=on.bad),
    "js.subscribe_bind": lambda on: on.js.subscribe_bind("S", "c", queue=on.bad),
}
STREAMS: dict[str, Call] = {
    "create_stream": lambda on: on.js.create_stream(name=on.bad),
    "update_stream": lambda on: on.js.update_stream(name=on.bad),
    "create_or_update_stream": lambda on: on.js.create_or_update_stream(name=on.bad),
    "get_stream": lambda on: on.js.get_stream(on.bad),
    "delete_stream": lambda on: on.js.delete_stream(on.bad),
    "create_consumer": lambda on: on.js.create_consumer(on.bad, name="c"),
    "update_consumer": lambda on: on.js.update_consumer(on.bad, name="c"),
    "create_or_update": lambda on: on.js.create_or_update_consumer(on.bad, name="c"),
    "create_push": lambda on: on.js.create_push_consumer(on.bad, deliver_subject="d"),
    "update_push": lambda on: on.js.update_push_consumer(on.bad, name="c", deliver_subject="d"),
    "get_consumer": lambda on: on.js.get_consumer(on.bad, "c"),
    "consumer_info": lambda on: on.js.consumer_info(on.bad, "c"),
    "delete_consumer": lambda on: on.js.delete_consumer(on.bad, "c"),
    "consumer_names": lambda on: on.js.consumer_names(on.bad),
    "list_consumers": lambda on: on.js.list_consumers(on.bad),
    "pause_consumer": lambda on: on.js.pause_consumer(on.bad, "c", LATER),
    "resume_consumer": lambda on: on.js.resume_consumer(on.bad, "c"),
    "reset_consumer": lambda on: on.js.reset_consumer(on.bad, "c"),
    "unpin_consumer": lambda on: on.js.unpin_consumer(on.bad, "c", "g"),
    "ordered_consumer": lambda on: on.js.ordered_consumer(on.bad),
    "subscribe_bind": lambda on: on.js.subscribe_bind(on.bad, "c"),
    "pull_subscribe_bind": lambda on: on.js.pull_subscribe_bind("c", on.bad),
}
OPTIONAL_STREAMS: dict[str, Call] = {
    "publish": lambda on: on.js.publish("a", b"", stream=on.bad),
    "publish_async": lambda on: on.js.publish_async("a", b"", stream=on.bad),
    "subscribe": lambda on: on.js.subscribe("a", stream=on.bad),
    "pull_subscribe": lambda on: on.js.pull_subscribe("a", stream=on.bad),
}
CONSUMERS: dict[str, Call] = {
    "js.get_consumer": lambda on: on.js.get_consumer("S", on.bad),
    "js.consumer_info": lambda on: on.js.consumer_info("S", on.bad),
    "js.delete_consumer": lambda on: on.js.delete_consumer("S", on.bad),
    "js.pause_consumer": lambda on: on.js.pause_consumer("S", on.bad, LATER),
    "js.resume_consumer": lambda on: on.js.resume_consumer("S", on.bad),
    "js.reset_consumer": lambda on: on.js.reset_consumer("S", on.bad),
    "js.unpin_consumer": lambda on: on.js.unpin_consumer("S", on.bad, "g"),
    "get_consumer": lambda on: on.stream.get_consumer(on.bad),
    "consumer_info": lambda on: on.stream.consumer_info(on.bad),
    "delete_consumer": lambda on: on.stream.delete_consumer(on.bad),
    "pause_consumer": lambda on: on.stream.pause_consumer(on.bad, LATER),
    "resume_consumer": lambda on: on.stream.resume_consumer(on.bad),
    "reset_consumer": lambda on: on.stream.reset_consumer(on.bad),
    "unpin_consumer": lambda on: on.stream.unpin_consumer(on.bad, "g"),
    "subscribe_bind": lambda on: on.js.subscribe_bind("S", on.bad),
    "pull_subscribe_bind": lambda on: on.js.pull_subscribe_bind(on.bad, "S"),
}
OPTIONAL_CONSUMERS: dict[str, Call] = {
    "js.create_consumer": lambda on: on.js.create_consumer("S", name=on.bad),
    "create_consumer": lambda on: on.stream.create_consumer(name=on.bad),
    "durable_name": lambda on: on.stream.create_consumer(durable_name=on.bad),
    "update_consumer": lambda on: on.stream.update_consumer(name=on.bad),
    "js.subscribe": lambda on: on.js.subscribe("a", durable=on.bad),
    "js.pull_subscribe": lambda on: on.js.pull_subscribe("a", durable=on.bad),
}


def assert_all_refuse(
    calls: dict[str, Call], bad: object, error: type[Exception], nc: Connection, stream: Stream
) -> None:
    """Assert that every call raises the error at once, and sends nothing."""
    on = On(nc, nc.jetstream(timeout=5), stream, bad)
    nc.flush()
    before = nc.stats["out_msgs"]
    for name, call in calls.items():
        with pytest.raises(error):
            pytest.fail(f"{name}({bad!r}) returned {call(on)!r}")
    assert nc.stats["out_msgs"] == before
    nc.flush()
    assert nc.stats["reconnects"] == 0
    assert nc.stats["errors_received"] == 0


@pytest.mark.parametrize("bad", [*BAD, ""], ids=lambda bad: repr(bad)[:20])
def test_a_bad_subject_is_refused_by_every_method(bad, nc, stream):
    """An invalid subject raises the same typed error everywhere, and nothing is sent."""
    typed = {name: call for name, call in SUBJECTS.items() if name != "create_stream"}
    if bad == "":  # the stream does not exist, either
        typed = {name: call for name, call in typed.items() if not name.endswith("subscribe")}
        typed["subscribe"] = SUBJECTS["subscribe"]
    assert_all_refuse(typed, bad, errors.BadSubjectError, nc, stream)
    assert_all_refuse(
        {"create_stream": SUBJECTS["create_stream"]}, bad, errors.InvalidArgumentError, nc, stream
    )
    if bad:
        assert_all_refuse(OPTIONAL_SUBJECTS, bad, errors.InvalidArgumentError, nc, stream)


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: repr(bad)[:20])
def test_a_bad_queue_group_is_refused_by_every_method(bad, nc, stream):
    """A queue group is part of a command line, so it is checked like a subject."""
    assert_all_refuse(QUEUES, bad, errors.BadSubjectError, nc, stream)
    if bad is not None:
        assert_all_refuse(OPTIONAL_QUEUES, bad, errors.BadSubjectError, nc, stream)


@pytest.mark.parametrize("bad", [*BAD, "", "a.b", "a/b", "x" * 256], ids=lambda bad: repr(bad)[:20])
def test_a_bad_name_is_refused_by_every_method(bad, nc, stream):
    """A missing, empty or too long name, or one that is not a string, is an InvalidNameError."""
    # In a config, a value that is not a string is an InvalidOptionError, as for other fields.
    configs = {name: call for name, call in STREAMS.items() if name.endswith("_stream")}
    streams = {name: call for name, call in STREAMS.items() if name not in configs}
    if isinstance(bad, str):
        streams, configs = STREAMS, {}
    assert_all_refuse(streams, bad, errors.InvalidNameError, nc, stream)
    assert_all_refuse(configs, bad, errors.InvalidArgumentError, nc, stream)
    assert_all_refuse(CONSUMERS, bad, errors.InvalidNameError, nc, stream)
    if bad is not None:
        assert_all_refuse(OPTIONAL_STREAMS, bad, errors.InvalidNameError, nc, stream)
        assert_all_refuse(OPTIONAL_CONSUMERS, bad, errors.InvalidArgumentError, nc, stream)


# --- the length of a command --------------------------------------------------------------------


def longest(fixed: int) -> str:
    """Return the longest subject in a command line with this number of other bytes."""
    return "x" * (4096 - fixed)


def test_the_longest_subjects_are_sent(nc):
    """A command line of the maximum length is sent, and a longer one is refused by the client."""
    both = "s" * 2000, "q" * 2000
    held = nc.subscribe(*both)
    name = longest(len("PUB  1"))
    received = nc.subscribe("*", queue="all")
    nc.publish(name, b"1")
    assert received.next_msg().subject == name
    with_reply = longest(len("PUB  answer 0"))
    nc.publish(with_reply, b"", "answer")
    assert received.next_msg().subject == with_reply
    for too_long in (
        lambda: nc.publish(name + "x", b"1"),
        lambda: nc.publish(name, b"1", "answer"),
        lambda: nc.publish(with_reply + "x", b"", "answer"),
        lambda: nc.publish("answer", b"", with_reply + "x"),
        lambda: nc.publish(name, b"1", headers={"A": "1"}),
        lambda: nc.request(name),
        lambda: nc.jetstream().publish(name),
        lambda: nc.jetstream().publish_async(name),
        lambda: nc.subscribe("s" * 2048, queue="q" * 2048),
        lambda: nc.subscribe("x" * 4096),
    ):
        with pytest.raises(errors.BadSubjectError, match="4096"):
            too_long()
    nc.flush()
    assert held.is_valid
    assert nc.stats["reconnects"] == 0
