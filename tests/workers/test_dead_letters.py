"""Dead letters of workers: subjects, sizes, and streams and workers that fail at the wrong moment."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

import pytest
from fixtures.rawnats import RawClient
from fixtures.threads import wait_until
from fixtures.worker import FAST, is_settled, running

from jetstream_sync import JetStreamMsg, RetentionPolicy
from jetstream_sync.workers import Backoff, DeadLetters, Reject, Worker


def test_a_function_chooses_the_subject_of_a_dead_letter(js, stream, nats_server):
    """The copy is published to the returned subject, and stored in the stream that has it."""
    js.create_stream(name="POISON", subjects=["poison.>"])
    reasons = []

    def choose(message: JetStreamMsg, reason: str) -> str:
        reasons.append(reason)
        return f"poison.{message.subject.rpartition('.')[2]}"

    worker = Worker(nats_server.url, dead_letters=choose)

    @worker.handler(stream=stream.name, consumer="C", retry=FAST)
    def handle() -> None:
        raise Reject("no")

    js.publish(f"{stream.name}.a", b"x")
    assert worker.check().status == 0
    with running(worker):
        wait_until(lambda: js.get_stream("POISON").cached_info.state.messages == 1)
        wait_until(lambda: is_settled(stream))
    dead = js.get_stream("POISON").get_msg(seq=1)
    assert (dead.subject, dead.data, reasons) == ("poison.a", b"x", ["no"])
    assert dead.headers["Dead-Subject"] == f"{stream.name}.a"
    assert "dead" not in "".join(js.stream_names()).lower()


@pytest.mark.parametrize("result", ["raises", "no stream", "invalid subject", "API", "inbox"])
def test_a_subject_that_stores_nothing_loses_nothing(js, stream, nats_server, result):
    """While the function fails, or no stream has its subject, the message is delivered again."""
    subject = ["raises"]

    def choose(_message: JetStreamMsg, _reason: str) -> str:
        if subject[0] == "raises":
            raise KeyError("tenant")
        return subject[0]

    worker = Worker(nats_server.url, dead_letters=choose)

    @worker.handler(stream=stream.name, consumer="C", retry=FAST)
    def handle() -> None:
        raise Reject("no")

    # The payload is empty: the API would carry out the request.
    subject[0] = {
        "no stream": "nowhere.a",
        "invalid subject": "a..b",
        "API": f"$JS.API.STREAM.DELETE.{stream.name}",
        "inbox": "_INBOX.a",
    }.get(result, result)
    js.publish(f"{stream.name}.a")
    with running(worker):
        wait_until(
            lambda: (
                "C" in stream.consumer_names()
                and stream.consumer_info("C").delivered.consumer_seq > 1
            )
        )
        js.create_stream(name="POISON", subjects=["poison.>"])
        subject[0] = "poison.a"
        wait_until(lambda: is_settled(stream))
    assert js.get_stream("POISON").cached_info.state.messages == 1


@pytest.mark.parametrize("limit", ["max_payload", "max_msg_size"])
@pytest.mark.parametrize("kept", [True, False], ids=["limits", "workqueue"])
def test_a_message_without_room_for_the_headers(js, stream_name, worker, caplog, kept, limit):
    """Without room the reason is left out, then the data if the stream keeps it; else it is retried."""
    retention = RetentionPolicy.LIMITS if kept else RetentionPolicy.WORK_QUEUE
    stream = js.create_stream(name=stream_name, subjects=[f"{stream_name}.>"], retention=retention)
    dead = js.create_stream(name="DEAD", subjects=["dead.>"])
    most = 1024 * 1024  # the default of the server
    if limit == "max_msg_size":
        most = 64 * 1024
        js.update_stream(name="DEAD", subjects=["dead.>"], max_msg_size=most)
    runs = []
    retry = Backoff(first=0.1, factor=1.0, maximum=500.0, jitter=0.0, attempts=1)

    @worker.handler(stream=stream.name, consumer="C", retry=retry)
    def handle() -> None:
        runs.append(1)
        raise ValueError("r" * 500)

    js.publish(f"{stream.name}.tight", b"x" * (most - 800))
    js.publish(f"{stream.name}.full", b"y" * most)
    with running(worker):
        wait_until(lambda: len(runs) == 2)
        if kept:
            wait_until(lambda: is_settled(stream))
        else:
            wait_until(lambda: "trying again in 500 s" in caplog.text)
            assert stream.consumer_info("C").num_ack_pending == 1
    tight = dead.get_msg(last_by_subject=f"dead.{stream.name}.C.{stream.name}.tight")
    assert (len(tight.data), "Dead-Reason" in tight.headers) == (most - 800, False)
    if not kept:
        assert dead.info().state.messages == 1
        assert stream.get_msg(seq=2).data == b"y" * most
        return
    full = dead.get_msg(last_by_subject=f"dead.{stream.name}.C.{stream.name}.full")
    assert (full.data, full.headers["Dead-Pointer"]) == (b"", "1")
    assert stream.get_msg(int(full.headers["Dead-Sequence"])).data == b"y" * most


#: The subjects, below that of the stream, and the headers of messages that this client would not publish.
FOREIGN = {
    "subject that is no UTF-8": (b"\xff", b""),
    "subject with a wildcard": (b"a.*.b", b""),
    "subject with a control character": (b"a\x01b", b""),
    "subject with a NUL": (b"a\0b", b""),
    "long subject": (b"l" * 3900, b""),
    "name that is no ASCII": (b"h1", b"X-\xff: \xfe\r\n"),
    "name with a space": (b"h2", b"a b: c d\r\n"),
    "empty name": (b"h3", b": value\r\n"),
    "line that is no header": (b"h4", b"nothing\r\n"),
    "value with a NUL": (b"h5", b"Nul: a\0b\r\nGood: \xc3\xa9\r\n"),
}


@pytest.mark.parametrize(("subject", "lines"), FOREIGN.values(), ids=FOREIGN)
def test_whatever_another_client_has_published_becomes_a_dead_letter(
    nats_server, js, stream, worker, subject, lines
):
    """The copy has the data; what cannot be published is escaped, and a subject is a header at least."""
    client = RawClient(nats_server.port)
    block = b"NATS/1.0\r\n" + lines + b"\r\n"
    sizes = b"%d %d" % (len(block), len(block) + 4)
    client.send(b"HPUB %s.%s %s\r\n%sdata\r\n" % (stream.name.encode(), subject, sizes, block))
    wait_until(lambda: stream.info().state.messages == 1)
    client.close()
    runs = []

    @worker.handler(stream=stream.name, consumer="C", retry=Backoff(first=60, attempts=1))
    def handle() -> None:
        runs.append(1)
        raise ValueError("no")

    with running(worker):
        wait_until(lambda: is_settled(stream))
    assert runs == [1]
    letter = js.get_stream("DEAD").get_msg(1)
    assert letter.subject.startswith(f"dead.{stream.name}.C.")
    assert (letter.data, letter.headers["Dead-Reason"]) == (b"data", "no")
    (found,) = DeadLetters(js).find(stream.name)
    original = found.subject.encode("utf-8", "surrogateescape")
    assert unquote_to_bytes(original) == b"%s.%s" % (stream.name.encode(), subject)
    if b"Good" in lines:
        assert (letter.headers["Good"], letter.headers["Nul"]) == ("\u00e9", "a%00b")
