"""Unit tests of `jetstream_sync.workers.limits`: what each process gets of a limit."""

from __future__ import annotations

import random
from string import ascii_letters, digits

import pytest

from jetstream_sync.errors import InvalidOptionError, InvalidResponseError
from jetstream_sync.workers import Worker
from jetstream_sync.workers.limits import (
    PART_TTL_S,
    SLICE_S,
    LimitState,
    Need,
    Part,
    SharedLimitRule,
    divide,
    key_of,
    step_of,
)

NOW = 1_000_000.0
LATER = NOW + 5
TWO = SharedLimitRule(name="L", concurrency=2)
TEN = SharedLimitRule(name="L", concurrency=10)
RATE = SharedLimitRule(name="L", rate="40/s")


@pytest.mark.parametrize(
    ("rule", "parts", "need", "slots", "part"),
    [
        pytest.param(TWO, {}, Need(0, 1, 1), 1, (1, 0), id="free"),
        pytest.param(TWO, {}, Need(0, 5, 5), 2, (2, 3), id="no more than there are"),
        pytest.param(TWO, {"b": (1, 0)}, Need(0, 5, 5), 1, (1, 4), id="the rest of another"),
        pytest.param(TWO, {"b": (2, 0)}, Need(0, 1, 1), 0, (0, 1), id="none is left"),
        pytest.param(TWO, {"a": (2, 0)}, Need(0, 0, 0), 0, None, id="given back"),
        pytest.param(TWO, {"a": (1, 0)}, Need(1, 1, 0), 1, (1, 0), id="renewed"),
        pytest.param(TEN, {"a": (10, 0), "b": (0, 3)}, Need(10, 10, 0), 5, (10, 0), id="fair"),
        pytest.param(TEN, {"a": (4, 0), "b": (6, 3)}, Need(4, 9, 5), 4, (4, 5), id="both want"),
        pytest.param(
            SharedLimitRule(name="L", concurrency=1),
            {"a": (1, 0), "b": (0, 1)},
            Need(0, 1, 1),
            0,
            (0, 1),
            id="the only one is passed on",
        ),
        pytest.param(
            SharedLimitRule(name="L", concurrency=1),
            {"a": (0, 1), "b": (0, 1)},
            Need(0, 1, 1),
            1,
            (1, 0),
            id="and taken by the other",
        ),
        pytest.param(TWO, {"b": (2, 0)}, Need(1, 1, 0), 0, (1, 0), id="runs after its part lapsed"),
        pytest.param(RATE, {"b": (3, 0)}, Need(0, 9, 1), 9, (9, 0), id="a rate alone has no slots"),
    ],
)
def test_a_process_gets_its_part(rule, parts, need, slots, part):
    """The slots that a process gets, and what the others see of it."""
    state = LimitState({name: Part(*item, LATER) for name, item in parts.items()}, 10, NOW)
    found, share = divide(state, rule, "a", need, NOW)
    assert share.slots == slots
    assert found.parts.get("a", (None,))[:2] == (part or (None,))[:2]
    assert {name: item for name, item in found.parts.items() if name != "a"} == {
        name: item for name, item in state.parts.items() if name != "a"
    }


def test_a_part_lapses_after_its_time_to_live():
    """The slots of a process that has died are free after the time to live, and not before."""
    state, _ = divide(None, TWO, "dead", Need(0, 2, 2), NOW)
    assert divide(state, TWO, "a", Need(0, 2, 2), NOW + PART_TTL_S - 0.01)[1].slots == 0
    assert divide(state, TWO, "a", Need(0, 2, 2), NOW + PART_TTL_S)[1].slots == 2


def test_times_far_ahead_are_stored_as_times_of_now():
    """After the server's clock was set back, parts lapse and starts come as soon as new ones would."""
    rule = SharedLimitRule(name="L", concurrency=2, rate="40/s")
    state = LimitState({"dead": Part(2, 0, NOW + 86400)}, 0, NOW + 86400)
    state, share = divide(state, rule, "a", Need(0, 1, 1), NOW)
    assert (share.slots, share.starts) == (0, 0)
    state, share = divide(state, rule, "a", Need(0, 1, 1), NOW + PART_TTL_S + 0.1)
    assert (share.slots, share.starts) == (1, 1)
    assert list(state.parts) == ["a"]


def test_starts_are_those_of_the_rate():
    """In any time, all processes together get the starts of the rate, and half a slice more."""
    choose = random.Random(5)
    state, now, given = None, NOW, []
    for _ in range(2000):
        now += choose.choice([0, 0.001, 0.02, 0.3])
        # The clocks of the processes differ by up to 50 milliseconds.
        seen = now + choose.uniform(-0.05, 0)
        wanted = choose.randrange(8)
        need = Need(0, wanted, wanted)
        state, share = divide(state, RATE, choose.choice("abc"), need, seen)
        given += [now] * share.starts
    for index, first in enumerate(given):
        for last, later in enumerate(given[index : index + 200], 1):
            assert last <= (later - first + 0.05) * 40 + 40 * SLICE_S / 2 + 1
    assert len(given) > (now - NOW) * 40 * 0.5


def test_a_start_waits_for_a_slot():
    """A process that may run no other call uses no start of the rate."""
    rule = SharedLimitRule(name="L", concurrency=1, rate="1/s")
    state = LimitState({"b": Part(1, 0, LATER)}, 1, NOW)
    found, share = divide(state, rule, "a", Need(0, 1, 1), NOW)
    assert (share.slots, share.starts, found.tokens) == (0, 0, 1)


def test_the_sum_of_the_parts_never_exceeds_the_limit():
    """Processes ask, run, give back and die at random: no more calls run than the limit, and each gets its turn."""
    choose = random.Random(7)
    for count in (1, 2, 5):
        rule = SharedLimitRule(name="L", concurrency=count)
        state, now = None, NOW
        running = dict.fromkeys("abcd", 0)
        slots = dict.fromkeys("abcd", 0)
        begun = dict.fromkeys("abcd", 0)
        for _ in range(4000):
            now += 0.1
            name = choose.choice("abcd")
            if running[name] and choose.random() < 0.6:
                running[name] -= 1
                continue
            need = Need(running[name], running[name] + 1, 1)
            state, share = divide(state, rule, name, need, now)
            slots[name] = share.slots
            if share.slots > running[name]:
                running[name] += 1
                begun[name] += 1
            # Those that do not ask for long renew their parts.
            for other, number in running.items():
                if number and state.parts[other].until < now + 3:
                    state, _ = divide(state, rule, other, Need(number, number, 0), now)
            assert sum(running.values()) <= count
        assert min(begun.values()) * 4 >= max(begun.values()), begun


def test_state_is_read_back_and_other_data_is_refused():
    """A stored value is the same again; data of another program is an error, and not a free limit."""
    state = LimitState({"a": Part(1, 2, NOW)}, 2.5, NOW)
    assert LimitState.from_json(state.to_json()) == state
    for data in (b"", b"null", b"{}", b"[1]", b"[[], 1, 2]", b'[{"a": 1}, 1, 2]', b'[{}, "x", 1]'):
        with pytest.raises(InvalidResponseError):
            LimitState.from_json(data)


def test_steps_and_keys():
    """Waiting calls return about as often as calls start; each value has a key of its own."""
    assert step_of(RATE, 60, 2) == pytest.approx(0.05)
    assert step_of(TWO, 1, 3) == pytest.approx(1.5)
    keys = {key_of("L", value) for value in (None, "", "a", "A", "ä", "a.b", "a=2Eb", 1, "\ud800")}
    assert len(keys) == 9
    assert key_of("L", None) == "L"
    assert all(set(key) <= {*ascii_letters, *digits, *"-_=."} for key in keys)
    with pytest.raises(TypeError, match="limit_key returned a list"):
        key_of("L", ["a"])
    with pytest.raises(ValueError, match="too long"):
        key_of("L", "a" * 1000)


def test_options_are_checked():
    """Limits that cannot hold are refused where they are defined."""
    worker = Worker(name="w")
    worker.limit("local", 2)
    worker.limit("smtp", concurrency=2, rate="10/s", scope="cluster")
    for wrong in (
        {"name": "x"},
        {"name": "x", "scope": "cluster"},
        {"name": "x", "concurrency": 0, "scope": "cluster"},
        {"name": "x", "rate": "10", "scope": "cluster"},
        {"name": "x", "rate": "0.001/h", "scope": "cluster"},
        {"name": "a.b", "rate": "10/s", "scope": "cluster"},
        {"name": "x", "concurrency": 2, "scope": "world"},
        {"name": "x", "concurrency": 2, "rate": "10/s"},
        {"name": "smtp", "concurrency": 2},
        {"name": "local", "concurrency": 2, "scope": "cluster"},
    ):
        with pytest.raises(InvalidOptionError):
            worker.limit(**wrong)

    def send(to: str) -> None:
        del to

    with pytest.raises(InvalidOptionError, match="for tasks"):
        worker.handler(stream="S", consumer="C", limit="smtp")
    with pytest.raises(InvalidOptionError, match="for tasks"):
        worker.queue("q", limit="smtp")
    with pytest.raises(InvalidOptionError, match="scope='cluster'"):
        worker.task(limit="local")(send)
    with pytest.raises(InvalidOptionError, match="limit_key"):
        worker.task(limit_key=lambda call: call.kwargs["to"])(send)
    worker.queue("once", ack="before")
    with pytest.raises(InvalidOptionError, match="go back to the server"):
        worker.task(limit="smtp", queue="once")(send)
    worker.task(limit="smtp", limit_key=lambda call: call.kwargs["to"])(send)
