"""Pull requests and the ledger of pending messages (ADR-37), against a model of the server."""

from __future__ import annotations

import json
from collections import deque
from datetime import timedelta

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jetstream_sync.api.consumer import ConsumerConfig
from jetstream_sync.api.pull import (
    ContinuousPull,
    PriorityOptions,
    PullLedger,
    PullRequest,
    default_heartbeat_ns,
    fetch_request,
)
from jetstream_sync.errors import InvalidOptionError

S = 1_000_000_000


def grouped(**options):
    """Return the arguments of a request with options that are sent as they are."""
    return {"no_wait": True, "options": options}


# --- one request ------------------------------------------------------------------------------------

REFUSED = [
    *(("batch", {"batch": bad, "no_wait": True}) for bad in (0, -1, True, 1.0, "1", None)),
    *(("max_bytes", {"max_bytes": bad, "no_wait": True}) for bad in (-1, True, 1.0, "1", None)),
    ("timeout", {}),
    ("timeout", {"expires_ns": 0}),
    ("timeout", {"expires_ns": -1}),
    ("timeout", {"expires_ns": -1, "no_wait": True}),
    ("heartbeat", {"expires_ns": S, "heartbeat_ns": -1}),
    ("heartbeat", {"expires_ns": S, "heartbeat_ns": S // 2 + 1}),
    ("heartbeat", {"no_wait": True, "heartbeat_ns": 1}),
    *(("group", grouped(group=bad)) for bad in (1, ["a", "b"], b"g")),
    *(("priority", grouped(group="g", priority=bad)) for bad in (-1, 10, True, 1.0, "1")),
    *(("min_pending", grouped(group="g", min_pending=bad)) for bad in (-1, True, 1.0, "1")),
    *(("min_ack_pending", grouped(group="g", min_ack_pending=bad)) for bad in (-1, True, 1.0, "1")),
    ("min_pending", grouped(min_pending=1)),
    ("min_ack_pending", grouped(min_ack_pending=1)),
    ("priority", grouped(priority=1)),
    ("priority", grouped(priority=0)),
    ("priority", grouped(priority=1, group="")),
]


@pytest.mark.parametrize(("blamed", "arguments"), REFUSED)
def test_invalid_requests_are_refused(blamed, arguments):
    """The error names the option, and no request is sent."""
    with pytest.raises(InvalidOptionError) as caught:
        PullRequest(**arguments)
    assert caught.value.option == blamed


@pytest.mark.parametrize("option", PriorityOptions.__annotations__)
def test_each_option_of_a_priority_group_is_part_of_a_continuous_request(option):
    """`PullConsumer.messages` and `PullConsumer.consume` forward all of them."""
    value = "g" if option == "group" else 3
    request = ContinuousPull.of({"group": "g", option: value}, ConsumerConfig()).request
    assert request.options == {"group": "g", option: value}


@pytest.mark.parametrize(
    ("arguments", "body"),
    [
        ({"no_wait": True}, {"batch": 1, "no_wait": True}),
        ({"batch": 5, "expires_ns": 2 * S}, {"batch": 5, "expires": 2000000000}),
        (
            {"expires_ns": 1, "no_wait": True, "max_bytes": 7},
            {"batch": 1, "expires": 1, "no_wait": True, "max_bytes": 7},
        ),
        (
            {"expires_ns": S, "heartbeat_ns": S // 2},
            {"batch": 1, "expires": 1000000000, "idle_heartbeat": 500000000},
        ),
        (
            grouped(group="g", min_pending=3, min_ack_pending=4),
            {"batch": 1, "no_wait": True, "group": "g", "min_pending": 3, "min_ack_pending": 4},
        ),
        (
            grouped(group="g", priority=0),
            {"batch": 1, "no_wait": True, "group": "g", "priority": 0},
        ),
        (
            grouped(group="g", priority=9),
            {"batch": 1, "no_wait": True, "group": "g", "priority": 9},
        ),
        (
            {**grouped(group="g"), "pin_id": "P"},
            {"batch": 1, "no_wait": True, "group": "g", "id": "P"},
        ),
    ],
)
def test_the_body_has_only_the_given_options(arguments, body):
    """The body has only the given options, with the names of nats-server's ``JSApiConsumerGetNextRequest``."""
    assert json.loads(PullRequest(**arguments).encode()) == body


@pytest.mark.parametrize(
    ("blamed", "options"),
    [
        ("heartbeats", {"heartbeats": 1}),
        ("max_messages", {"max_messages": 1}),
        ("heartbeat", {"heartbeat": 3}),
        ("no_wait", {"no_wait": True}),
        ("max_bytes", {"max_bytes": 0}),
        ("min_pending", {"min_pending": 0}),
    ],
)
def test_invalid_options_of_a_fetch_are_refused(blamed, options):
    """Unknown options, and those that the request cannot have, raise before anything is sent."""
    with pytest.raises(InvalidOptionError) as caught:
        fetch_request(1, 5, **options)
    assert caught.value.option == blamed


def test_a_request_without_a_wait_has_no_heartbeats():
    """The server replies at once."""
    with pytest.raises(InvalidOptionError, match="heartbeat"):
        fetch_request(1, 5, True, heartbeat=1)


def test_options_that_are_none_are_not_sent():
    """``None`` stands for the default."""
    options = {"heartbeat": None, "max_bytes": None, "group": None, "priority": None}
    assert fetch_request(1, 5, **options) == fetch_request(1, 5)


@pytest.mark.parametrize(
    ("expires", "heartbeat"), [(0, 0), (10 * S - 1, 0), (10 * S, 5 * S), (3600 * S, 5 * S)]
)
def test_a_long_fetch_has_heartbeats(expires, heartbeat):
    """A fetch of 10 s or more requests a heartbeat every 5 s by default."""
    assert default_heartbeat_ns(expires) == heartbeat
    PullRequest(expires_ns=max(1, expires), heartbeat_ns=heartbeat)


# --- the limits of a continuous pull ------------------------------------------------------------------


def limits(**said):
    pull = ContinuousPull.of(said)
    request = pull.request
    return (
        request.batch,
        request.max_bytes,
        pull.threshold_messages,
        pull.threshold_bytes,
        request.expires_ns // S,
        request.heartbeat_ns / S,
        pull.stop_after,
    )


@pytest.mark.parametrize(
    ("said", "worked_out"),
    [
        ({}, (500, 0, 250, 0, 30, 15.0, 0)),
        ({"max_messages": 100}, (100, 0, 50, 0, 30, 15.0, 0)),
        ({"max_messages": 3}, (3, 0, 2, 0, 30, 15.0, 0)),
        ({"max_messages": 1}, (1, 0, 1, 0, 30, 15.0, 0)),
        ({"max_messages": 10, "threshold_messages": 1}, (10, 0, 1, 0, 30, 15.0, 0)),
        ({"max_messages": 10, "threshold_messages": 10}, (10, 0, 10, 0, 30, 15.0, 0)),
        ({"max_messages": 10, "max_bytes": 1001}, (10, 1001, 5, 0, 30, 15.0, 0)),
        ({"max_bytes": 1001}, (1_000_000, 1001, 500_000, 501, 30, 15.0, 0)),
        ({"max_bytes": 10, "threshold_bytes": 3}, (1_000_000, 10, 500_000, 3, 30, 15.0, 0)),
        ({"expires": 1}, (500, 0, 250, 0, 1, 0.5, 0)),
        ({"expires": 300.0}, (500, 0, 250, 0, 300, 30.0, 0)),
        ({"expires": timedelta(minutes=1)}, (500, 0, 250, 0, 60, 30.0, 0)),
        ({"heartbeat": 0.5}, (500, 0, 250, 0, 30, 0.5, 0)),
        ({"expires": 60, "heartbeat": 30}, (500, 0, 250, 0, 60, 30.0, 0)),
        ({"stop_after": 7}, (500, 0, 250, 0, 30, 15.0, 7)),
    ],
)
def test_defaults_depend_on_the_limits_and_the_expiry(said, worked_out):
    """Defaults are those of ADR-37: half of the limits, half of the expiry up to 30 s."""
    assert limits(**said) == worked_out


@pytest.mark.parametrize(
    ("blamed", "said"),
    [
        *((name, {name: 0}) for name in ("max_messages", "max_bytes", "stop_after")),
        *((name, {name: True}) for name in ("max_messages", "max_bytes", "stop_after")),
        *((name, {name: 1.5}) for name in ("max_messages", "max_bytes", "stop_after")),
        ("threshold_messages", {"threshold_messages": 501}),
        ("threshold_messages", {"max_messages": 10, "threshold_messages": 11}),
        ("threshold_messages", {"threshold_messages": 0}),
        ("threshold_messages", {"threshold_messages": True}),
        ("threshold_bytes", {"max_bytes": 10, "threshold_bytes": 11}),
        ("threshold_bytes", {"max_messages": 1, "max_bytes": 10, "threshold_bytes": 5}),
        ("threshold_bytes", {"max_bytes": 10, "threshold_bytes": 0}),
        ("threshold_bytes", {"threshold_bytes": 1}),
        ("threshold_bytes", {"max_messages": 5, "threshold_bytes": 1}),
        ("expires", {"expires": 1 - 1e-9}),
        ("expires", {"expires": 0}),
        ("heartbeat", {"heartbeat": 0.5 - 1e-9}),
        ("heartbeat", {"expires": 120, "heartbeat": 30 + 1e-9}),
        ("heartbeat", {"expires": 1, "heartbeat": 0.5 + 1e-9}),
    ],
)
def test_invalid_limits_are_refused(blamed, said):
    """Messages and bytes exclude each other, a threshold is at most its limit (ADR-37)."""
    with pytest.raises(InvalidOptionError) as caught:
        ContinuousPull.of(said)
    assert caught.value.option == blamed


def test_priority_groups_are_in_every_request():
    """The priority options are copied into each pull request."""
    pull = ContinuousPull.of({"max_messages": 4, "group": "g", "min_pending": 3, "priority": 2})
    assert pull.request == PullRequest(
        batch=4,
        expires_ns=30 * S,
        heartbeat_ns=15 * S,
        options={"group": "g", "min_pending": 3, "priority": 2},
    )
    assert PullLedger(pull).next_request().options == pull.request.options


# --- the account, by example --------------------------------------------------------------------------


def test_on_demand_only_the_allowed_messages_are_asked_for():
    """A pull on demand requests what is allowed, also again after a reset, and no more."""
    ledger = PullLedger(ContinuousPull.of({}, on_demand=True))
    assert ledger.next_request() is None
    ledger.allow(3)
    assert ledger.next_request().batch == 3
    ledger.message(0)
    assert ledger.next_request() is None
    ledger.allow(2)
    assert ledger.next_request().batch == 2
    ledger.reset()
    assert ledger.next_request().batch == 4
    for _ in range(4):
        ledger.message(0)
    assert ledger.next_request() is None
    assert not ledger.complete()


def test_on_demand_the_consumer_s_largest_batch_is_respected():
    """More messages than the largest batch are requested in several requests."""
    ledger = PullLedger(ContinuousPull.of({}, ConsumerConfig(max_batch=10), on_demand=True))
    ledger.allow(25)
    batches = []
    while request := ledger.next_request():
        batches.append(request.batch)
        for _ in range(request.batch):
            ledger.message(0)
    assert batches == [10, 10, 5]


@settings(max_examples=300)
@given(
    limit=st.integers(1, 40),
    stop_after=st.integers(0, 60),
    counts=st.lists(st.integers(0, 40), max_size=8),
)
def test_messages_before_a_request_cause_none(limit, stop_after, counts):
    """
    Counting messages together causes the same requests as counting each of them.

    `messages_before_request` is as far as that goes: with the next message, a request may be due.
    """
    pull = ContinuousPull.of({"max_messages": limit, "stop_after": stop_after or None})
    together, single = PullLedger(pull), PullLedger(pull)
    together.next_request()
    single.next_request()
    for wanted in counts:
        count = min(wanted, max(0, together.messages_before_request()))
        if count:
            together.messages(count)
            assert together.next_request() is None
            assert not together.complete()
        for _ in range(count):
            single.message(0)
            assert single.next_request() is None
        if not single.complete():
            together.message(0)
            single.message(0)
            assert together.next_request() == single.next_request()
            assert together.complete() == single.complete()
    assert (together.pending_messages, together.delivered) == (
        single.pending_messages,
        single.delivered,
    )


def test_a_dropped_message_makes_room_and_does_not_count():
    """A dropped message is no longer pending and does not count for ``stop_after``."""
    ledger = PullLedger(ContinuousPull.of({"max_messages": 10, "stop_after": 10}))
    assert ledger.next_request() is not None
    due = [ledger.dropped(0) for _ in range(6)]
    assert due == [False] * 5 + [True]
    assert (ledger.delivered, ledger.pending_messages) == (0, 4)
    request = ledger.next_request()
    assert request.batch == 6

    ledger = PullLedger(ContinuousPull.of({"max_bytes": 100}))
    ledger.next_request()
    assert (ledger.dropped(40), ledger.dropped(40), ledger.pending_bytes) == (False, True, 20)


def test_a_request_that_found_no_room_for_a_message():
    """If an unused request for the whole buffer ends, the next message is larger than the buffer."""
    ledger = PullLedger(ContinuousPull.of({"max_bytes": 100}))
    ledger.next_request()
    assert ledger.request_ended((1_000_000, 100))
    ledger.next_request()
    ledger.message(60)
    assert not ledger.request_ended((999_999, 40))
    assert not ledger.request_ended(None), "a status without counts"
    assert not PullLedger(ContinuousPull.of({"max_messages": 10})).request_ended((10, 0))


# --- the account, against a server --------------------------------------------------------------------


class Server:
    """
    The behaviour of nats-server for the requests of one consumer (``server/consumer.go``).

    A request that has delivered all of its messages, and has bytes left, reports them; one that
    has used exactly its bytes reports nothing; a message that does not fit ends a request with
    a status.
    """

    def __init__(self):
        self.waiting = deque()  # [messages, bytes or None] that each request may still give

    def ask(self, request):
        self.waiting.append([request.batch, request.max_bytes or None])

    def serve(self, size):
        """Yield what the server sends for a message of this size."""
        while self.waiting:
            batch, room = self.waiting.popleft()
            if room is not None and size > room:
                yield "full", (batch, room)
                continue
            yield "message", size
            batch -= 1
            if room is not None:
                room -= size
            if room == 0:
                return
            if batch:
                self.waiting.append([batch, room])
            elif room is not None:
                yield "full", (0, room)
            return

    def expire(self):
        """Yield what the server sends when the oldest request expires."""
        batch, room = self.waiting.popleft()
        yield "expired", (batch, room or 0)


class Pulling(RuleBasedStateMachine):
    """A continuous pull with a slow reader and a server that sends any valid sequence."""

    @initialize(
        by_bytes=st.booleans(),
        limit=st.integers(1, 12),
        part=st.floats(0, 1),
        stop_after=st.none() | st.integers(1, 25),
        largest_batch=st.sampled_from([1_000_000, 5, 2, 1]),
    )
    def start(self, by_bytes, limit, part, stop_after, largest_batch):
        self.by_bytes = by_bytes
        self.limit = limit
        threshold = max(1, round(part * limit)) if part < 1 else None
        config = None
        if by_bytes:
            said = {"max_bytes": limit, "threshold_bytes": threshold}
            config = ConsumerConfig(max_batch=largest_batch)
        else:
            said = {"max_messages": limit, "threshold_messages": threshold}
        self.pull = ContinuousPull.of({**said, "stop_after": stop_after}, config)
        self.stop_after = stop_after
        self.ledger = PullLedger(self.pull)
        self.server = Server()
        self.arrived = deque()
        self.read = 0
        self.ask()

    def ask(self):
        request = self.ledger.next_request()
        if request is not None:
            self.server.ask(request)
        assert self.ledger.next_request() is None, "one request fills the buffer"

    # --- what may happen ---

    @rule(size=st.integers(1, 12))
    def a_message_is_there(self, size):
        # The size is never 0: a message has a subject, and a reply subject.
        assume(not self.by_bytes or size <= self.limit)
        self.arrived += self.server.serve(size)

    @precondition(lambda self: self.server.waiting)
    @rule()
    def time_is_up(self):
        self.arrived += self.server.expire()

    @precondition(lambda self: self.arrived)
    @rule(count=st.integers(1, 6))
    def the_user_reads(self, count):
        for _ in range(min(count, len(self.arrived))):
            what, how_much = self.arrived.popleft()
            if what == "message":
                self.read += 1
                due = self.ledger.message(how_much if self.by_bytes else 0)
                if due:
                    self.ask()
                else:
                    assert self.ledger.next_request() is None, "it was due"
                continue
            whole = self.ledger.request_ended(how_much)
            if what == "expired":
                self.ask()
            else:
                assert not whole, "every message fits into an empty buffer"
                # Where something is still to come, or to be read, there is room after that.
                if self.ledger.empty():
                    self.ask()

    @rule()
    def the_link_breaks(self):
        self.server = Server()
        self.arrived.clear()
        self.ledger.reset()
        self.ask()

    # --- what always holds ---

    def owed(self):
        """The messages and bytes in flight or unread, and those that statuses will return."""
        messages = sum(batch for batch, _ in self.server.waiting)
        size = sum(room or 0 for _, room in self.server.waiting)
        for what, how_much in self.arrived:
            messages += 1 if what == "message" else how_much[0]
            size += how_much if what == "message" else how_much[1]
        return messages, size

    @invariant()
    def the_account_is_never_negative(self):
        assert self.ledger.pending_messages >= 0
        assert self.ledger.pending_bytes >= 0

    @invariant()
    def the_limit_is_kept(self):
        """Neither the ledger nor the outstanding requests exceed the limit."""
        messages, size = self.owed()
        if self.by_bytes:
            assert self.ledger.pending_bytes <= self.limit
            assert size <= self.limit
        else:
            assert self.ledger.pending_messages <= self.limit
            assert messages <= self.limit

    @invariant()
    def the_account_is_true(self):
        """The limited quantity is exact; with a limit in bytes, the message count is never too low."""
        messages, size = self.owed()
        if self.by_bytes:
            assert self.ledger.pending_bytes == size
            assert self.ledger.pending_messages >= messages
        else:
            assert self.ledger.pending_messages == messages
            assert self.ledger.pending_bytes == 0

    @invariant()
    def no_more_than_stop_after_comes(self):
        assert self.ledger.delivered == self.read
        if self.stop_after is not None:
            coming = sum(batch for batch, _ in self.server.waiting)
            coming += sum(what == "message" for what, _ in self.arrived)
            assert self.read + coming <= self.stop_after
        assert self.ledger.complete() == (self.read == self.stop_after)

    @invariant()
    def it_goes_on(self):
        """When everything is read, the server has a request that any message fits into, or the pull is complete."""
        if not self.arrived and not self.ledger.complete():
            assert self.server.waiting


TestPulling = Pulling.TestCase
TestPulling.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
