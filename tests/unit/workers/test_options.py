"""The options of handlers and of the back-off, and which functions can be handlers."""

from __future__ import annotations

import functools
import random
from datetime import timedelta
from typing import Any

import pytest

from jetstream_sync import ConsumerConfig, InvalidOptionError
from jetstream_sync.lease_times import LeaseTimes
from jetstream_sync.subjects import subject_matches
from jetstream_sync.workers import Backoff, Context, Retry, Worker
from jetstream_sync.workers.dead_letters import one_line
from jetstream_sync.workers.deliveries import Lease
from jetstream_sync.workers.limits import rate_interval
from jetstream_sync.workers.runtime.pulling import Window
from jetstream_sync.workers.source import acceptor


def test_delays_grow_up_to_the_maximum():
    """Without jitter the delays are the formula; they are never below 0.1 seconds."""
    backoff = Backoff(first=1, factor=3, maximum=20, jitter=0)
    assert [backoff.delay(attempt) for attempt in range(1, 6)] == [1, 3, 9, 20, 20]
    assert backoff.delay(100_000) == 20  # the power is not a number any more
    assert Backoff(first=0.1, jitter=0.9, factor=1).delay(1) >= 0.1


def test_jitter_spreads_the_delays():
    """Delays are spread over the whole range, in whole milliseconds."""
    random.seed(1)
    delays = [Backoff(first=10, jitter=0.5).delay(1) for _ in range(500)]
    assert 5 <= min(delays) < 6
    assert 14 < max(delays) <= 15
    assert all(round(delay, 3) == delay for delay in delays)


@pytest.mark.parametrize(
    "wrong",
    [
        {"first": 0.05},
        {"first": float("nan")},
        *({option: "1"} for option in ("first", "factor", "maximum", "jitter")),
        {"factor": 0.5},
        {"maximum": 0.5},
        {"maximum": 1e300},
        {"jitter": 1},
        {"jitter": -0.1},
        {"attempts": 0},
        {"attempts": 2.5},
        {"attempts": True},
        {"in_place": True},  # the delays add up to more than a minute
        {"in_place": True, "first": 20, "attempts": 3},
    ],
)
def test_a_backoff_is_checked(wrong):
    """The error names the option."""
    with pytest.raises(InvalidOptionError, match=next(iter(wrong))):
        Backoff(**wrong)


def test_the_delay_of_a_retry():
    """A delay is a number or a timedelta, and not below 0.1 seconds."""
    assert Retry("busy").delay is None
    assert Retry("busy", delay=0).delay == 0.1
    assert Retry("busy", delay=timedelta(minutes=1)).delay == 60
    for long in (1e300, float("inf"), 10**400, timedelta.max):
        assert Retry("busy", delay=long).delay == 100 * 365.25 * 86400
    for wrong in (-1, float("nan"), "1", True):
        with pytest.raises(InvalidOptionError, match="delay"):
            Retry(delay=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("concurrency", [0, 1.5]),
        ("prefetch", [-1]),
        ("timeout", [0, "10", None]),
        ("soft_timeout", [0, 600]),
        ("ack_wait", [2.9, "30", timedelta(seconds=30)]),
        ("park_after", ["60", timedelta(seconds=60)]),
        ("retry", [3]),
        ("reject_on", [ValueError, [ValueError()]]),
        ("retry_on", [ValueError, "ValueError"]),
        ("decode", ["pickle", ["json"]]),
        ("ack", [["after"]]),
        ("deliver", ["last", 0, True, 1.5, None]),
        ("stream", [None]),
        ("consumer", [""]),
        ("filter_subject", [1]),
        ("filter_subjects", ["a.b", [1]]),
    ],
)
def test_the_options_of_a_handler_are_checked(option, values):
    """The error names the option, also for a value of another type; the worker has no handler."""
    worker = Worker(name="tests")
    for value in values:
        with pytest.raises(InvalidOptionError) as caught:
            worker.handler(**{"stream": "S", "consumer": "C", option: value})(print)
        assert caught.value.option == option
    with pytest.raises(InvalidOptionError, match="filter_subjects"):
        worker.handler(stream="S", consumer="C", filter_subject="a", filter_subjects=["b"])(print)
    assert worker.handlers == []


def test_short_messages_are_received_ahead_and_long_ones_are_not():
    """Many short messages widen the window up to its bound; a long one narrows it at once."""
    window = Window(slots=4, ahead=4, batch=1, adapts=True)
    for _ in range(300):
        window.handled(0.000_01)
    assert (window.ahead, window.low) == (500, 250)
    window.handled(0.03)
    assert window.ahead == 10
    window.handled(20.0)
    assert (window.ahead, window.low) == (4, 2)
    for _ in range(20_000):
        window.handled(0.0)  # by a coarse clock
    assert window.ahead == 500
    many = Window(slots=600, ahead=600, batch=1, adapts=True)
    many.handled(0.0)
    assert many.ahead == 600


def test_only_functions_that_block_are_handlers():
    """Coroutines, generators, lambdas and functions with other arguments are refused."""

    async def coroutine(data: bytes) -> None: ...

    def generator(data: bytes) -> Any:
        yield data

    def three(first: bytes, second: bytes, third: bytes) -> None: ...

    def keyword(data: bytes, *, needed: int) -> None: ...

    worker = Worker(name="tests")
    for wrong in (coroutine, generator, lambda data: data, three, keyword, "function"):
        with pytest.raises(InvalidOptionError, match="handler"):
            worker.handler(stream="S", consumer="C")(wrong)  # type: ignore[arg-type]
    assert worker.handlers == []


def test_a_decorated_function_can_be_called():
    """The handler passes arguments and the result through; it has the name of the function."""
    worker = Worker(name="tests")

    @worker.handler(stream="S", consumer="C", decode="json")
    def double(number: int, factor: int = 2) -> int:
        return number * factor

    assert (double(4), double(4, factor=3), double.name) == (8, 12, "double")
    partial = functools.partial(double.function, factor=5)
    assert worker.handler(stream="S", consumer="D", decode="json")(partial)(2) == 10


def test_the_name_of_a_handler_is_the_same_in_each_process():
    """It is a label of metrics and logs, so it has no address and no state of an object."""

    class Step:
        def __call__(self, data: bytes) -> None: ...

        def __repr__(self) -> str:
            raise AssertionError("repr() of an object may change, and may be large")

    def step(data: bytes, factor: int = 2) -> None: ...

    worker = Worker(name="tests")
    functions = [functools.partial(functools.partial(step), factor=3), Step(), Step().__call__]
    for number, function in enumerate(functions):
        worker.handler(stream="S", consumer=f"C{number}")(function)
    assert [handler.name for handler in worker.handlers] == ["step", "Step", "__call__"]
    assert worker.handlers[0].identity == ("S", "C0", "step")


def test_a_function_that_no_process_can_import_is_refused():
    """What is called in the end decides: inside a partial, or the class of an object."""

    def step(data: bytes, factor: int = 2) -> None: ...

    class Step:
        def __call__(self, data: bytes) -> None: ...

    worker = Worker(name="tests")
    for number, function in enumerate(
        (
            step,
            functools.partial(step),
            functools.partial(functools.partial(step), factor=3),
            Step(),
        )
    ):
        define = worker.handler(stream="S", consumer=f"C{number}", pool="processes")
        with pytest.raises(InvalidOptionError, match="at the top level of a module"):
            define(function)
    worker.queue("own", pool="processes")
    with pytest.raises(InvalidOptionError, match="at the top level of a module"):
        worker.task(queue="own", name="step")(functools.partial(step))
    worker.handler(stream="S", consumer="C", pool="processes")(functools.partial(print, end=""))


def test_a_function_can_handle_two_consumers():
    """A handler that is decorated again is that function, with its arguments."""
    worker, seen = Worker(name="tests"), []

    @worker.handler(stream="S", consumer="C")
    @worker.handler(stream="T", consumer="C", decode="json")
    def step(data: object, ctx: Context) -> None:
        seen.append((data, ctx.handler))

    task = worker.task(name="by-call")(step)
    client = worker.test_client()
    for handler in worker.handlers[:2]:
        assert client.deliver(handler, b"1").kind == "ack"
    assert client.deliver(task, {"args": ["1"]}).kind == "ack"
    assert seen == [(1, "step"), (b"1", "step"), ("1", "by-call")]


def test_a_wrapper_gets_the_payload():
    """A wrapper that passes its arguments on, and does not tell which, gets one."""
    worker, seen = Worker(name="tests"), []

    def logged(function: Any) -> Any:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    @worker.handler(stream="S", consumer="C")
    @logged
    def step(data: bytes) -> None:
        seen.append(data)

    assert worker.test_client().deliver(step, b"1").kind == "ack"
    assert seen == [b"1"]


def test_two_handlers_of_one_consumer_are_refused():
    """The same consumer name on another stream is another consumer."""

    def first(ctx: Context) -> None: ...

    worker = Worker(name="tests")
    worker.handler(stream="S", consumer="C")(first)
    worker.handler(stream="T", consumer="C")(first)
    with pytest.raises(InvalidOptionError, match="is used by handler first"):
        worker.handler(stream="S", consumer="C")(first)
    assert [handler.stream for handler in worker.handlers] == ["S", "T"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"ensure": "all"},
        {"drain_timeout": -1},
        {"drain_timeout": "25"},
        {"report": "all"},
        {"trace": "child"},
    ],
)
def test_the_options_of_a_worker_are_checked(wrong):
    """Unknown values are refused before anything is opened."""
    with pytest.raises(InvalidOptionError, match=next(iter(wrong))):
        Worker(**wrong)


def test_hooks_and_schedules_are_checked():
    """The error names all events, or the option of the schedule."""
    worker = Worker(name="tests")
    with pytest.raises(InvalidOptionError, match="lease_lost"):
        worker.on("finished")  # type: ignore[arg-type]
    for cron in ("0 5 * *", "@every 5s", 5):
        with pytest.raises(InvalidOptionError, match="cron"):
            worker.schedule("x", subject="jobs.x", cron=cron)(bytes)


def test_the_length_of_a_lease():
    """It is the step of the back-off for the n-th delivery, or ack_wait; 30 seconds by default."""
    steps = LeaseTimes(ConsumerConfig(ack_wait=60, backoff=[3, timedelta(minutes=1)]))
    ends = [Lease(steps, number, 0.0).lost_at for number in (1, 2, 3, 50)]
    assert ends == pytest.approx([0.9 * 3, 0.9 * 60, 0.9 * 60, 0.9 * 60])
    assert steps.shortest == 3
    assert LeaseTimes(ConsumerConfig(ack_wait=7)).shortest == 7
    assert Lease(LeaseTimes(ConsumerConfig()), 9, 0.0).lost_at == pytest.approx(0.9 * 30)


def test_a_reason_is_one_line():
    """Line breaks and control characters become spaces; a long text is cut; no text: the class."""
    assert one_line(ValueError("two\r\n  lines\x00here")) == "two lines here"
    assert one_line("x" * 600) == "x" * 500
    assert one_line(KeyError()) == "KeyError"


def test_a_key_implies_retries_in_place():
    """The back-off of the handler is used in place, and the default one is short enough for it."""
    worker = Worker(name="tests")
    options: dict[str, Any] = {"stream": "S", "key": lambda _msg: 1}
    default = worker.handler(consumer="A", **options)(print)
    assert default.retry == Backoff(first=0.5, maximum=10.0, attempts=8, in_place=True)
    given = worker.handler(consumer="B", retry=Backoff(first=2, attempts=3), **options)(print)
    assert given.retry == Backoff(first=2, attempts=3, in_place=True)
    with pytest.raises(InvalidOptionError, match=r"lower 'attempts'"):
        worker.handler(consumer="C", retry=Backoff(first=60, attempts=2), **options)(print)
    with pytest.raises(InvalidOptionError, match="key"):
        worker.handler(consumer="D", stream="S", key="Customer")(print)  # type: ignore[arg-type]


def test_a_key_wants_one_process():
    """A handler with a key refuses to run in several processes, and others do not."""
    worker = Worker(name="tests")
    worker.handler(stream="S", consumer="A")(print).check_processes(4)
    keyed = worker.handler(stream="S", consumer="B", key=lambda _msg: 1)(print)
    keyed.check_processes(1)
    with pytest.raises(InvalidOptionError, match="processes"):
        keyed.check_processes(2)


def test_limits_are_checked():
    """A limit is defined before its handlers and once; a rate has a number and a unit."""
    worker = Worker(name="tests")
    worker.limit("smtp", 2)
    assert worker.handler(stream="S", consumer="A", limit="smtp")(print).limit == "smtp"
    with pytest.raises(InvalidOptionError, match="'ftp'.*smtp"):
        worker.handler(stream="S", consumer="B", limit="ftp")
    for name, count in (("smtp", 1), ("other", 0), ("other", True), ("other", 1.5)):
        with pytest.raises(InvalidOptionError):
            worker.limit(name, count)  # type: ignore[arg-type]
    for wrong in ("10", "0/s", "10/d", "-1/s", "10/s ", 10):
        with pytest.raises(InvalidOptionError, match="rate"):
            worker.handler(stream="S", consumer="B", rate=wrong)(print)  # type: ignore[arg-type]
    assert [rate_interval(rate) for rate in ("10/s", "30/m", "0.5/h")] == [0.1, 2, 7200]


def test_program_and_connection_of_a_worker_may_be_none():
    assert Worker(program=None).program == Worker(name="tests").program
    assert Worker(connection=None).connection == {}


def test_a_worker_keeps_its_own_connection_options():
    options = {"user": "a"}
    worker = Worker(connection=options)
    options["user"] = "b"
    assert worker.connection == {"user": "a"}


@pytest.mark.parametrize(
    "filters",
    [["tasks.shop.mail.*.*"], ["ORDERS.>"], ["A.*.b", "A+.c"], ["a", "b.>", "b.*.c"], [">"]],
)
def test_a_subject_is_accepted_as_the_server_matches_it(filters):
    """A handler takes exactly the messages of its filters, whatever other clients have published."""
    accepts = acceptor(filters)
    subjects = ["tasks.shop.mail.send.1", "tasks.shop.mail.1", "ORDERS", "ORDERS.a.\n", "A.x.b"]
    subjects += ["A+.c", "AA.c", "a", "b", "b.x.c", "b.\udcff", "A..b"]
    for subject in subjects:
        expected = any(subject_matches(item, subject) for item in filters)
        assert bool(accepts(subject)) is expected, subject
