"""Counters (ADR-49): exact totals of any size, sources, and resets."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from fixtures.fake_jetstream import scripted
from fixtures.threads import wait_until

import jetstream_sync
from jetstream_sync import Connection, Counters, JetStream, Msg, errors
from jetstream_sync.api.stream import StreamSource, SubjectTransform


@pytest.fixture
def counters(js: JetStream, stream_name: str) -> Counters:
    """The counters of an empty stream."""
    js.create_stream(
        name=stream_name, subjects=[f"{stream_name}.>"], allow_msg_counter=True, allow_direct=True
    )
    return js.counters(stream_name)


@pytest.mark.server(">=2.12")
def test_totals_are_exact(js, counters):
    """Integers of any size and sign are added; the entry has the last increment."""
    subject = f"{counters.stream}.big"
    assert counters.add(subject) == 1
    assert counters.add(subject, 10**40) == 10**40 + 1
    assert counters.add(subject, -5) == 10**40 - 4
    assert counters.add(subject, 0) == 10**40 - 4
    entry = counters.get(subject)
    assert (entry.value, entry.increment, entry.sources) == (10**40 - 4, 0, {})
    assert (entry.subject, entry.seq) == (subject, 4)
    assert counters[subject] == entry.value
    for wrong in (True, 1.0, "1", 10**5000):
        with pytest.raises(errors.InvalidOptionError):
            counters.add(subject, wrong)
    js.publish(f"{counters.stream}.huge", headers={"Nats-Incr": "1" * 5000})
    with pytest.raises(errors.InvalidResponseError, match="digits"):
        counters.get(f"{counters.stream}.huge")
    with pytest.raises(KeyError):
        counters[f"{counters.stream}.absent"]
    with pytest.raises(errors.KeyNotFoundError):
        counters.reset(f"{counters.stream}.absent")


@pytest.mark.server(">=2.12")
def test_a_counter_of_another_stream(js, counters):
    """The error names the stream."""
    name = f"{counters.stream}_2"
    js.create_stream(name=name, subjects=[f"{name}.>"], allow_msg_counter=True)
    with pytest.raises(errors.WrongStreamError, match=name):
        counters.add(f"{name}.a")


@pytest.mark.server(">=2.12")
def test_a_repeated_id_adds_once(counters):
    """The second call with an id adds nothing, and returns the total."""
    subject = f"{counters.stream}.paid"
    assert counters.add(subject, 5, msg_id="one") == 5
    assert counters.add(subject, 5, msg_id="one") == 5
    assert counters[subject] == 5


@pytest.mark.server(">=2.12")
def test_a_reset_keeps_the_counter_and_drops_its_history(js, counters):
    """After it the total is 0, in one message; other counters are not touched."""
    for name in ("a", "b"):
        for _ in range(3):
            counters.add(f"{counters.stream}.{name}", 2)
    assert counters.reset(f"{counters.stream}.a") == 6
    found = {counter.subject: counter.value for counter in counters.items()}
    assert found == {f"{counters.stream}.a": 0, f"{counters.stream}.b": 6}
    subjects = js.get_stream(counters.stream).info(subjects_filter=">").state.subjects
    assert subjects == {f"{counters.stream}.a": 1, f"{counters.stream}.b": 3}


@pytest.mark.server(">=2.12")
def test_items_of_more_counters_than_a_server_returns_at_once(js, counters):
    """1,100 counters are all listed; a pattern selects."""
    name = counters.stream
    for number in range(1100):
        js.publish_async(f"{name}.n.{number}", headers={"Nats-Incr": str(number)})
    js.publish_async_completed(30.0)
    counters.add(f"{name}.other", 7)
    assert {counter.subject: counter.value for counter in counters.items(f"{name}.n.*")} == {
        f"{name}.n.{number}": number for number in range(1100)
    }
    assert [counter.value for counter in counters.items(f"{name}.other")] == [7]


@pytest.mark.server(">=2.12")
@pytest.mark.parametrize("sources", ["[1]", '{"a": 1}', '{"a": {"b": 1}}', "{"])
def test_the_sources_of_another_client(js, counters, sources):
    """A server stores a header for sources that a client sends, whatever it has."""
    subject = f"{counters.stream}.bad"
    js.publish(subject, headers={"Nats-Incr": "+1", "Nats-Counter-Sources": sources})
    for call in (
        lambda: counters[subject],
        lambda: list(counters.items()),
        lambda: counters.reset(subject),
    ):
        with pytest.raises(errors.InvalidResponseError):
            call()


@pytest.mark.server(">=2.12")
def test_a_stream_adds_up_the_counters_of_its_sources(js, stream_name):
    """The entry names the totals of the sources."""
    for place, value in (("EU", 3), ("US", 4)):
        js.create_stream(
            name=f"{stream_name}_{place}",
            subjects=[f"{stream_name}.{place}.>"],
            allow_msg_counter=True,
            allow_direct=True,
        )
        js.counters(f"{stream_name}_{place}").add(f"{stream_name}.{place}.hits", value)
    js.create_stream(
        name=stream_name,
        allow_msg_counter=True,
        allow_direct=True,
        sources=[
            StreamSource(
                name=f"{stream_name}_{place}",
                subject_transforms=[
                    SubjectTransform(src=f"{stream_name}.{place}.>", dest=f"{stream_name}.all.>")
                ],
            )
            for place in ("EU", "US")
        ],
    )
    total = js.counters(stream_name)
    hits = f"{stream_name}.all.hits"
    wait_until(lambda: [item.value for item in total.items(hits)] == [7])
    sources = total.get(hits).sources
    assert {name: sum(parts.values()) for name, parts in sources.items()} == {
        f"{stream_name}_EU": 3,
        f"{stream_name}_US": 4,
    }


@pytest.mark.server(">=2.12")
def test_a_stream_without_counters_is_refused(js, counters, stream_name):
    """So are messages without an increment."""
    js.create_stream(name=f"{stream_name}_plain", subjects=[f"{stream_name}_plain"])
    with pytest.raises(errors.InvalidOptionError, match="allow_msg_counter"):
        js.counters(f"{stream_name}_plain")
    js.create_stream(name=f"{stream_name}_2", subjects=[f"{stream_name}_2"], allow_msg_counter=True)
    with pytest.raises(errors.InvalidOptionError, match="allow_direct"):
        js.counters(f"{stream_name}_2")
    with pytest.raises(errors.CounterError):
        js.publish(f"{counters.stream}.a", b"")
    with pytest.raises(errors.CounterError):
        js.publish(f"{stream_name}_plain", headers={"Nats-Incr": "1"})


@pytest.mark.server(">=2.12")
def test_a_replica_that_is_behind_does_not_answer_for_a_reset(nats_server, counters):
    """A total that is subtracted or confirmed is that of the leader: a replica may lack the last additions."""
    subject = f"{counters.stream}.hits"
    counters.add(subject, 5)
    first = counters.get(subject)
    counters.add(subject, 7, msg_id="second")

    def respond_behind(nc: Connection, msg: Msg, _number: int) -> None:
        headers = {
            "Nats-Stream": counters.stream,
            "Nats-Subject": subject,
            "Nats-Sequence": str(first.seq),
            "Nats-Time-Stamp": first.time.isoformat().replace("+00:00", "Z"),
        }
        nc.publish(msg.reply, b'{"val":"5"}', headers=headers)

    with scripted(nats_server, respond_behind) as user:
        js = user.jetstream(prefix="FAKE")
        behind = js.counters(counters.stream)
        assert behind[subject] == 5
        assert behind.add(subject, 7, msg_id="second") == 12
        assert behind.reset(subject) == 12
    assert counters[subject] == 0


@pytest.mark.server(">=2.12")
@pytest.mark.parametrize("history", [-1, 1], ids=["with history", "without history"])
def test_programs_that_reset_at_a_time_subtract_a_total_once(nats_server, js, stream_name, history):
    """Four programs reset and add; what they subtracted and what is left is what was added."""
    js.create_stream(
        name=stream_name,
        subjects=[f"{stream_name}.>"],
        allow_msg_counter=True,
        allow_direct=True,
        max_msgs_per_subject=history,
    )
    subject = f"{stream_name}.a"
    counters = js.counters(stream_name)

    def reset(number: int) -> int:
        with jetstream_sync.connect(nats_server.url) as nc:
            own = nc.jetstream().counters(stream_name)
            barrier.wait(10)
            if number >= 4:
                own.add(subject, 7)
                return 0
            return own.reset(subject)

    added = subtracted = 0
    with ThreadPoolExecutor(6) as pool:
        for _ in range(15):
            counters.add(subject, 100)
            added += 100 + 2 * 7
            barrier = Barrier(6)
            taken = list(pool.map(reset, range(6)))
            subtracted += sum(taken)
            assert 0 <= counters[subject] <= 14, taken
            assert counters[subject] == added - subtracted
