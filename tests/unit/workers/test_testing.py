"""Handlers in tests without a server: the client that `Worker.test_client` returns."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from jetstream_sync import InvalidOptionError, MsgAlreadyAckdError, TimeoutError
from jetstream_sync.workers import (
    Backoff,
    BatchError,
    Context,
    LeaseLostError,
    Reject,
    Retry,
    Worker,
)
from jetstream_sync.workers.eager import MemoryCalls
from jetstream_sync.workers.testing import TestClient

RETRY = Backoff(first=2.0, factor=3.0, jitter=0.0, attempts=3)


@pytest.fixture
def worker() -> Worker:
    """A worker with some handlers; there is no server."""
    worker = Worker("nats://127.0.0.1:1", name="shop", dead_letters="DEAD")

    @worker.handler(
        stream="ORDERS", consumer="BILLING", filter_subject="ORDERS.*", retry=RETRY, decode="json"
    )
    def bill(order: dict[str, Any], ctx: Context) -> object:
        if order["total"] < 0:
            raise Reject("a negative total")
        if order["total"] == 0:
            raise ValueError("nothing to bill")
        if order["total"] == 1:
            raise Retry("the bank does not answer", delay=30.0)
        ctx.publish("ORDERS.billed", b"%d" % order["total"], headers={"By": "test"})
        return ctx.attempt

    @worker.handler(stream="OTHER", consumer="OTHER")
    def other(ctx: Context) -> None:
        COMMANDS[ctx.message.data](ctx)

    return worker


def lost(ctx: Context) -> None:
    assert ctx.lease_lost
    ctx.check()


def ack(ctx: Context) -> None:
    ctx.message.ack()
    with pytest.raises(MsgAlreadyAckdError):
        ctx.message.ack()


def interrupt(_: Context) -> None:
    raise KeyboardInterrupt


def stop(ctx: Context) -> None:
    if ctx.stopping:
        raise Retry("the worker is stopping")


COMMANDS: dict[bytes, Callable[[Context], None]] = {
    b"lost": lost,
    b"ack": ack,
    b"ack_sync": lambda ctx: ctx.message.ack_sync(),
    b"nak": lambda ctx: ctx.message.nak(delay=7.5),
    b"term": lambda ctx: ctx.message.term("no"),
    b"progress": lambda ctx: ctx.message.in_progress(),
    b"interrupt": interrupt,
    b"stop": stop,
}


def test_a_success_is_an_ack_with_what_was_published(worker):
    """The outcome has the return value and the published messages, whose ids the attempts share."""
    client = worker.test_client()
    outcome = client.deliver("bill", {"total": 12}, attempt=2)
    assert (outcome.kind, outcome.delay, outcome.dead_letter) == ("ack", None, None)
    assert (outcome.error, outcome.result) == (None, 2)
    (message,) = outcome.published
    assert (message.subject, message.data, dict(message.headers)) == (
        "ORDERS.billed",
        b"12",
        {"By": "test"},
    )
    assert message.msg_id.startswith("ORDERS/BILLING/1/")
    assert message.msg_id.endswith("/1")
    # The next message is another one.
    other = client.deliver("bill", {"total": 12}).published[0]
    assert other.msg_id != message.msg_id


def test_a_failure_is_a_retry_with_its_delay(worker):
    """The delay is that of the back-off for the attempt, or of `Retry`."""
    client = worker.test_client()
    delays = [client.deliver("bill", {"total": 0}, attempt=item).delay for item in (1, 2)]
    assert delays == [2.0, 6.0]
    outcome = client.deliver("bill", {"total": 1})
    assert (outcome.kind, outcome.delay) == ("retry", 30.0)
    assert isinstance(outcome.error, Retry)
    # A message of a handler with keys is retried in place, after the same delay.
    in_place = replace(RETRY, in_place=True)
    options: dict[str, Any] = {"stream": "ORDERS", "key": lambda msg: msg.subject}

    @worker.handler(consumer="KEYS", retry=in_place, **options)
    def keyed() -> None:
        raise ValueError("not now")

    outcome = client.deliver("keyed", attempt=2)
    assert (outcome.kind, outcome.delay) == ("retry", 6.0)


@pytest.mark.parametrize(
    ("payload", "attempt", "error", "reason"),
    [
        ({"total": 0}, 3, "ValueError", "nothing to bill"),
        ({"total": -1}, 1, "Reject", "a negative total"),
        (b"{", 1, "DecodeError", "the payload cannot be decoded"),
        ({"total": 12}, 14, "", "delivered 14 times, not started here"),
    ],
    ids=["last attempt", "rejected", "not decodable", "over its attempts"],
)
def test_a_message_that_is_given_up_has_a_dead_letter(worker, payload, attempt, error, reason):
    """The dead letter is the one that would be stored."""
    outcome = worker.test_client().deliver(
        "bill", payload, attempt=attempt, subject="ORDERS.new", headers={"Trace": "t"}
    )
    assert (outcome.kind, outcome.published) == ("dead", [])
    letter = outcome.dead_letter
    assert letter.subject == "dead.ORDERS.BILLING.ORDERS.new"
    found = {name: letter.headers[name] for name in ("Trace", "Dead-Error", "Dead-Attempts")}
    assert found == {"Trace": "t", "Dead-Error": error, "Dead-Attempts": str(attempt)}
    assert letter.headers["Dead-Reason"].startswith(reason)


class Unreadable(MemoryCalls):
    """States of calls whose bucket does not answer."""

    def read(self, call: str) -> dict[str, Any]:
        raise TimeoutError(call)


@pytest.mark.parametrize(("calls", "kind"), [(MemoryCalls(), "dead"), (Unreadable(), "retry")])
def test_a_call_with_an_unknown_state_is_not_given_up(calls, kind):
    """A call that is delivered too often may have succeeded: no dead letter is stored without its state."""
    worker = Worker("nats://127.0.0.1:1", name="shop", dead_letters="DEAD")

    @worker.task(results="R", name="run")
    def run() -> None: ...

    outcome = TestClient(worker, calls).deliver("run", {"args": [], "kwargs": {}}, attempt=40)
    assert outcome.kind == kind
    assert (outcome.dead_letter is None) is (kind == "retry")


def test_middleware_runs_and_may_fail():
    """Middleware runs around the handler, outermost first, and its error counts as the handler's."""
    calls: list[object] = []

    def outer(call: Callable[[], object], ctx: Context) -> object:
        calls.append(f"outer {ctx.attempt}")
        try:
            return call()
        finally:
            calls.append("outer ends")

    def inner(call: Callable[[], object], ctx: Context) -> object:
        if ctx.attempt == 1:
            raise OSError("no database")
        return call()

    worker = Worker(middleware=[outer, inner])
    worker.handler(stream="S", consumer="C", retry=RETRY)(calls.append)
    client = worker.test_client()
    outcome = client.deliver(worker.handlers[0], "handled")
    assert (outcome.kind, str(outcome.error)) == ("retry", "no database")
    assert client.deliver(worker.handlers[0], "handled", attempt=2).kind == "ack"
    assert calls == ["outer 1", "outer ends", "outer 2", b"handled", "outer ends"]


@pytest.mark.parametrize(
    ("command", "kind", "delay"),
    [
        (b"ack", "ack", None),
        (b"ack_sync", "ack", None),
        (b"nak", "retry", 7.5),
        (b"term", "dead", None),
        (b"progress", "ack", None),
    ],
)
def test_a_handler_may_settle_its_message(worker, command, kind, delay):
    """What the handler sends itself is the outcome."""
    outcome = worker.test_client().deliver("other", command)
    assert (outcome.kind, outcome.delay, outcome.dead_letter) == (kind, delay, None)


def test_a_lost_lease_and_a_stopping_worker(worker):
    """A handler sees that its lease is lost, or that the worker is stopping."""
    client = worker.test_client()
    outcome = client.deliver(worker.handlers[1], b"lost", lease_lost=True)
    assert outcome.kind == "lost"
    assert isinstance(outcome.error, LeaseLostError)
    assert client.deliver("other", b"stop").kind == "ack"
    assert client.deliver("other", b"stop", stopping=True).kind == "retry"


def test_a_handler_with_a_bucket_runs_without_it(worker):
    """The bucket that records handled messages is on a server, so each delivery is a run."""
    runs = []

    @worker.handler(stream="ORDERS", consumer="ONCE", once="DONE")
    def once() -> None:
        runs.append(1)

    assert worker.test_client().deliver("once").kind == "ack"
    assert runs == [1]


def test_a_batch_has_an_outcome_for_each_message(worker):
    """Messages of one batch succeed, fail, and are dead letters by themselves."""

    @worker.batch(stream="ORDERS", consumer="BATCHES", max_messages=10, retry=RETRY, decode="json")
    def total(numbers: list[int], contexts: list[Context]) -> None:
        contexts[0].publish("ORDERS.total", b"%d" % sum(numbers))
        raise BatchError({1: ValueError("too large"), 2: Reject("negative")})

    client = worker.test_client()
    outcomes = client.deliver_batch("total", [1, 2, -3, b"no JSON"])
    assert [outcome.kind for outcome in outcomes] == ["ack", "retry", "dead", "dead"]
    assert [outcome.delay for outcome in outcomes] == [None, 2.0, None, None]
    assert [[sent.data for sent in outcome.published] for outcome in outcomes] == [
        [b"0"],
        [],
        [],
        [],
    ]
    letters = [outcome.dead_letter.data for outcome in outcomes if outcome.dead_letter is not None]
    assert letters == [b"-3", b"no JSON"]
    with pytest.raises(InvalidOptionError, match="deliver_batch"):
        client.deliver("total")
    with pytest.raises(InvalidOptionError, match="single messages"):
        client.deliver_batch("bill", [])


def test_an_interrupt_is_not_an_outcome(worker):
    """Ctrl-C in a test ends the test."""
    with pytest.raises(KeyboardInterrupt):
        worker.test_client().deliver("other", b"interrupt")


def test_wrong_arguments(worker):
    """An unknown handler, and an attempt below 1, are refused."""
    client = worker.test_client()
    with pytest.raises(InvalidOptionError, match="bill, other"):
        client.deliver("bil")
    with pytest.raises(InvalidOptionError, match="at least 1"):
        client.deliver("bill", attempt=0)
    assert isinstance(client, TestClient)


def in_a_process() -> None:
    """Fail with the id of the process."""
    raise ValueError(os.getpid())


def test_handlers_of_processes_run_in_the_test():
    """The client runs a handler in the process of the test, whatever its pool."""
    worker = Worker(name="tests")
    worker.handler(stream="S", consumer="C", pool="processes")(in_a_process)
    outcome = worker.test_client().deliver("in_a_process", b"x")
    assert (outcome.kind, str(outcome.error)) == ("retry", str(os.getpid()))
