"""Chains, groups and steps against a server: what is sent, recorded and deleted, also with kills."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import date, timedelta

import pytest
from fixtures.threads import SCALE, wait_until
from fixtures.worker import FAST, WorkerProgram, running

from jetstream_sync import (
    InvalidOptionError,
    JetStream,
    KeyValueConfig,
    StreamNotFoundError,
    TimeoutError,
    shared_connection,
)
from jetstream_sync.server import NatsServer
from jetstream_sync.workers import (
    Backoff,
    Context,
    MembersFailedError,
    StepsChangedError,
    TaskArgumentsError,
    TaskError,
    Worker,
    chain,
    group,
)
from jetstream_sync.workers.dead_letters import DeadLetters
from jetstream_sync.workers.steps import StepBucket

pytestmark = pytest.mark.timeout(170)


@pytest.fixture
def worker(nats_server: NatsServer, js: JetStream) -> Iterator[Worker]:
    """A worker whose connection for sending, streams and buckets end with the test."""
    name = f"w{uuid.uuid4().hex}"
    found = Worker(nats_server.url, name=name, program="tests", dead_letters="DEAD", concurrency=4)
    yield found
    shared_connection(nats_server.url, name=found.name).close()
    for stream in ("DEAD", "TASKS", "KV_R", "KV_R-flows"):
        with suppress(StreamNotFoundError):
            js.delete_stream(stream)


def messages(js: JetStream, stream: str = "TASKS") -> int:
    """Return the number of messages of a stream; 0: there is none."""
    return js.get_stream(stream).info().state.messages if stream in js.stream_names() else 0


def assert_clean(js: JetStream) -> None:
    """Wait until no message of a call and no step is left."""
    wait_until(lambda: (messages(js), messages(js, "KV_R-flows")) == (0, 0), 20)


def define(worker: Worker) -> None:
    """Define the tasks ``add`` and ``total``."""

    @worker.task(name="add", results="R", retry=FAST)
    def add(first: int, second: int = 1) -> int:
        if first < 0 or second < 0:
            raise TypeError("below 0")
        return first + second

    @worker.task(name="total", results="R", retry=FAST)
    def total(values: list[int], more: int = 0) -> int:
        return sum(values) + more


def test_each_call_of_a_chain_gets_the_value_of_the_one_before(worker, js):
    define(worker)
    add = worker.queues.tasks["add"]
    with running(worker):
        result = chain(add.call(1), add.call(10), add.call()).delay()
        assert result.get(20 * SCALE) == 13
        assert_clean(js)
    # One message for each call, and no call twice.
    assert js.get_stream("TASKS").info().state.last_seq == 3


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (("1",), "argument 'second': must be int, not str"),
        ((1, date(2026, 1, 1)), "argument 'more': date needs an annotation to arrive as it is"),
        ((1, 2, 3), "too many positional arguments"),
        ((float("nan"),), "the arguments are not JSON"),
    ],
)
def test_the_arguments_of_a_call_that_follows_are_checked(worker, args, error):
    """Those beside the value of the call before, when the call is planned: nothing is sent."""

    @worker.task(name="first", results="R")
    def first() -> int:
        return 1

    @worker.task(name="next", results="R")
    def following(value: int, second: int = 0, more: object = None) -> int:
        del more
        return value + second

    chain(first.call(), following.call(1, more=2)).plan("f")
    with pytest.raises(TaskArgumentsError, match=error):
        chain(first.call(), following.call(*args)).plan("f")


def test_the_calls_after_one_that_fails_have_failed(worker, js):
    """With its id and its error; only the one that ran has a dead letter."""
    define(worker)
    add = worker.queues.tasks["add"]
    with running(worker):
        result = chain(add.call(1), add.call(-1), add.call(), add.call()).delay(task_id="f")
        with pytest.raises(TaskError, match="call f-c2 of task add is failed: builtins.TypeError"):
            result.get(20 * SCALE)
        wait_until(lambda: messages(js, "DEAD") == 1)
        assert_clean(js)
    assert [add.result_of(f"f-c{part}").status for part in (1, 2, 3)] == [
        *("SUCCESSFUL", "FAILED", "FAILED")
    ]


def leading_elsewhere(worker: Worker, grace: float) -> tuple[Worker, Worker]:
    """Return a worker with the task ``first``, and one of the same name with the task ``last`` in another bucket."""
    found = []
    for names in (("first",), ("first", "last")):
        item = Worker(worker.servers, name=worker.name, program="tests", dead_letters="DEAD")
        item.queue("default", unknown_task_grace=grace)
        for name in names:

            @item.task(name=name, results="R" if name == "first" else "OTHER", retry=FAST)
            def run(number: int) -> int:
                if number < 0:
                    raise ValueError(number)
                return number + 1

        found.append(item)
    return found[0], found[1]


@pytest.mark.server(">=2.12")
@pytest.mark.parametrize(("number", "status"), [(1, "SUCCESSFUL"), (-1, "FAILED")])
def test_a_chain_that_no_worker_here_can_continue_ends(worker, js, number, status):
    """After the grace, its message is a dead letter that names the bucket; nothing is retried without end."""
    few, all_tasks = leading_elsewhere(worker, 3)
    tasks = all_tasks.queues.tasks
    chain(tasks["first"].call(number), tasks["last"].call()).delay(task_id="f")
    with running(few):
        wait_until(lambda: messages(js) == 0, 30)
    first = tasks["first"].result_of("f-c1")
    assert first.status == status
    assert len(js.key_value("R").keys()) == 1
    (letter,) = DeadLetters(js).find("TASKS")
    assert ("'OTHER': is no bucket of a task of this worker" in letter.reason) is (number > 0)
    with suppress(StreamNotFoundError):
        js.delete_stream("KV_OTHER")


@pytest.mark.server(">=2.12")
@pytest.mark.parametrize("number", [1, -1])
def test_a_chain_is_continued_by_a_process_that_can(worker, js, number):
    """Another process has not run the call, and does what follows from its end within the grace."""
    few, all_tasks = leading_elsewhere(worker, 60)
    tasks = all_tasks.queues.tasks
    result = chain(tasks["first"].call(number), tasks["last"].call()).delay(task_id="f")
    with running(few):
        first = tasks["first"].result_of("f-c1")
        with suppress(TaskError):
            first.get(20 * SCALE)
        with running(all_tasks):
            if number > 0:
                assert result.get(60 * SCALE) == 3
            else:
                with pytest.raises(TaskError, match="call f-c1 of task first is failed"):
                    result.get(60 * SCALE)
            wait_until(lambda: messages(js) == 0, 60)
    assert len(DeadLetters(js).find("TASKS")) == (number < 0)
    js.delete_stream("KV_OTHER")


def test_the_callback_of_a_group_gets_the_values_in_order(worker, js):
    """Also of chains, and of more members than one block."""
    define(worker)
    add, total = worker.queues.tasks["add"], worker.queues.tasks["total"]
    with running(worker):
        calls = [chain(add.call(1), add.call(2)), *(add.call(index) for index in range(120))]
        result = group(calls, then=total.call(1000)).delay()
        assert result.get(60 * SCALE) == 4 + sum(range(1, 121)) + 1000
        assert_clean(js)


@pytest.mark.parametrize("on_error", ["stop", "call"])
def test_a_callback_follows_members_that_failed_or_were_cancelled(worker, js, on_error):
    define(worker)
    calls: list[object] = []

    @worker.task(name="last", results="R", retry=FAST)
    def last(outcomes: list[dict[str, object]]) -> int:
        calls.append(outcomes)
        return len(outcomes)

    add = worker.queues.tasks["add"]
    members = [add.call(1), add.call(-1), add.call(3)]
    result = group(members, then=last.call(), on_error=on_error).delay(task_id="g")
    with running(worker):
        if on_error == "stop":
            with pytest.raises(TaskError, match="1 of 3 calls did not succeed: g-m1 is failed"):
                result.get(30 * SCALE)
            wait_until(lambda: messages(js, "DEAD") == 2)
            assert not calls
        else:
            assert result.get(30 * SCALE) == 3
            assert [item["status"] for item in calls[0]] == ["SUCCESSFUL", "FAILED", "SUCCESSFUL"]
            assert "TypeError" in calls[0][1]["error"]
            assert len(calls) == 1
        assert_clean(js)


@pytest.mark.parametrize("pool", ["threads", "processes"])
def test_a_function_of_several_steps_runs_each_once(nats_server, js, worker, tmp_path, pool):
    code = f"""
worker = Worker(os.environ.get("NATS_URL"), name={worker.name!r}, program="tests", dead_letters="DEAD", concurrency=2)
worker.queue("default", pool={pool!r})

@worker.task(name="pack", results="R")
def pack(number: int) -> int:
    record(f"pack {{number}}")
    return number * 10

def charge(number: int, more: int) -> dict[str, int]:
    record("charge")
    return {{"items": number + more}}

@worker.task(name="order", results="R", steps=True)
def order(number: int, ctx: Context) -> list[object]:
    paid = ctx.step(charge, number, more=1)
    record(f"run {{ctx.id}}")
    parts = ctx.gather([pack.call(item) for item in range(paid["items"])])
    ctx.sleep(2)
    answer = ctx.wait("approved")
    return [parts, answer, ctx.step(charge, 0, 0), ctx.step_id]
"""
    sender = Worker(nats_server.url, name=worker.name, program="tests")

    @sender.task(name="order", results="R", steps=True)
    def order(number: int) -> list[object]:
        return [number]

    with WorkerProgram(code, nats_server.url, tmp_path) as program:
        result = order.delay(2)
        # It waits for the signal: without a message, and not as an attempt.
        wait_until(lambda: len([line for line in program.runs if "run" in line]) == 3, 30)
        wait_until(lambda: messages(js) == 0)
        assert result.status == "READY"
        result.signal("approved", {"by": "me"})  # false if the call has already ended with it
        assert result.signal("approved", "again") is False
        expected = [[0, 10, 20], {"by": "me"}, {"items": 0}, None]
        assert result.get(30 * SCALE) == expected
        assert result.signal("approved", "late") is False
        assert_clean(js)
    counts = Counter(program.runs)
    assert {name: counts[name] for name in ("charge", "pack 0", "pack 1", "pack 2")} == {
        "charge": 2,
        "pack 0": 1,
        "pack 1": 1,
        "pack 2": 1,
    }
    # One id for all messages of the call.
    assert len({line for line in program.runs if "run" in line}) == 1


def test_a_wait_ends_at_its_timeout(worker, js):
    """The signal is refused from then on, and one that came before the wait is taken."""

    @worker.task(name="waits", results="R", steps=True)
    def waits(ctx: Context) -> object:
        early = ctx.wait("early")
        try:
            return [early, ctx.wait("late", timeout=1.5)]
        except TimeoutError:
            ctx.step(lambda: late.append(result.signal("late", 1)), name="signal")
            return [early, "timeout"]

    late: list[bool] = []
    result = waits.apply_async(task_id="w")
    assert result.signal("early", 7) is True
    with running(worker):
        assert result.get(30 * SCALE) == [7, "timeout"]
        assert late == [False]
        assert_clean(js)


@pytest.mark.parametrize("pool", ["threads", "processes"])
def test_a_function_that_catches_the_end_of_its_run_waits(nats_server, js, worker, tmp_path, pool):
    """What it returns does not count before the wait is over."""
    code = f"""
worker = Worker(name={worker.name!r}, program="tests")
worker.queue("default", pool={pool!r})

@worker.task(name="careless", results="R", steps=True)
def careless(ctx: Context) -> object:
    record("run")
    try:
        return ctx.wait("paid")
    except BaseException:
        return "caught"
"""

    @worker.task(name="careless", results="R", steps=True)
    def careless() -> object: ...

    with WorkerProgram(code, nats_server.url, tmp_path) as program:
        result = careless.delay()
        program.wait_runs(1)
        wait_until(lambda: messages(js) == 0)
        assert result.status == "READY"
        result.signal("paid", 17)
        assert result.get(20 * SCALE) == 17
    assert program.runs == ["run", "run"]
    assert_clean(js)


def test_a_signal_leaves_no_message_for_the_timeout(worker, js):
    """It would begin the call again when its record has expired: the effects of its steps would be repeated."""
    js.create_key_value(KeyValueConfig(bucket="R", ttl=timedelta(seconds=3)))
    effects: list[int] = []

    @worker.task(name="waits", results="R", steps=True, retry=FAST)
    def waits(ctx: Context) -> object:
        ctx.step(lambda: effects.append(1), name="charge")
        return ctx.wait("paid", 7)

    @worker.task(name="plain", results="R", retry=FAST)
    def plain() -> None: ...

    with running(worker):
        result = waits.delay()
        wait_until(lambda: messages(js, "KV_R-flows") == 3)  # the wait, the step and the payload
        wait_until(lambda: messages(js) == 1)  # the schedule
        assert result.signal("paid", 17)
        assert result.get(20 * SCALE) == 17
        assert_clean(js)
        assert worker.verify() == []
        time.sleep(8)
        plain.delay().get(20 * SCALE)  # after what would have been sent
        assert_clean(js)
    assert effects == [1]


def test_a_member_that_fails_raises_where_it_is_gathered(worker, js):
    define(worker)
    add = worker.queues.tasks["add"]

    @worker.task(name="gathers", results="R", steps=True)
    def gathers(ctx: Context) -> object:
        try:
            ctx.gather([add.call(-1), add.call(1)])
        except MembersFailedError as error:
            return [item["status"] for item in error.outcomes]
        return None

    with running(worker):
        assert gathers.delay().get(30 * SCALE) == ["FAILED", "SUCCESSFUL"]
        assert_clean(js)


def test_a_step_that_was_renamed_is_an_error_that_names_it(worker, js):
    """After the grace in which an older process may take the call."""
    worker.queue("default", unknown_task_grace=1)
    names = ["charge"]

    @worker.task(name="renamed", results="R", steps=True, retry=FAST)
    def renamed(ctx: Context) -> object:
        value = ctx.step(dict, name=names[-1])
        names.append("bill")
        if len(names) == 2:
            raise ValueError("killed by a deploy")
        return value

    with running(worker):
        result = renamed.delay()
        with pytest.raises(
            TaskError, match=r"step 'bill' is not recorded, and step 'charge' is"
        ) as raised:
            result.get(30 * SCALE)
        assert StepsChangedError.__name__ in str(raised.value)
        assert_clean(js)


def test_steps_need_the_option(worker):
    @worker.task(name="plain", results="R", retry=Backoff(attempts=1))
    def plain(ctx: Context) -> object:
        return ctx.step(dict)

    with worker.eager(), pytest.raises(InvalidOptionError, match="steps=True"):
        plain.delay()
    with pytest.raises(InvalidOptionError, match="needs 'results'"):
        worker.task(steps=True)(define)
    no_results = worker.task(name="bare")(test_steps_need_the_option)
    with pytest.raises(InvalidOptionError, match="results"):
        no_results.call()


@pytest.mark.parametrize("priority", [None, "urgent"])
def test_a_message_waits_while_an_earlier_one_runs(worker, js, priority):
    """A call has one run at a time, also an urgent one, and a signal that comes while it runs is not lost."""
    if priority is not None:
        worker.queue("default", urgent=True, concurrency=4)
    running_now, most, runs = [0], [0], []
    entered, leave = threading.Event(), threading.Event()

    @worker.task(name="slow", results="R", steps=True)
    def slow(ctx: Context) -> object:
        running_now[0] += 1
        most[0] = max(most[0], running_now[0])
        runs.append(ctx.attempt)
        try:
            ctx.step(lambda: entered.set() or leave.wait(20), name="long")
            return ctx.wait("go")
        finally:
            running_now[0] -= 1

    with running(worker):
        result = slow.apply_async(
            task_id="s", **({} if priority is None else {"priority": priority})
        )
        assert entered.wait(20)
        # A second message for the call, as of a member whose worker was killed after it had sent one.
        record = slow.states.read("s")
        slow.states.flows.wake(record, "test")
        time.sleep(1)
        leave.set()
        result.signal("go", 1)  # false if the call has already ended with it
        assert result.get(60 * SCALE) == 1
        assert_clean(js)
    assert most == [1]


def test_cancelling_reaches_what_has_not_started(worker, js):
    """A chain, the members of a group, and those that a function waits for."""
    define(worker)
    add, total = worker.queues.tasks["add"], worker.queues.tasks["total"]
    entered, leave, runs = threading.Event(), threading.Event(), []

    @worker.task(name="slow", results="R")
    def slow() -> int:
        entered.set()
        leave.wait(20 * SCALE)
        return 1

    @worker.task(name="notes", results="R")
    def notes(*values: object) -> int:
        runs.append(values)
        return 0

    @worker.task(name="gathers", results="R", steps=True)
    def gathers(ctx: Context) -> object:
        return ctx.gather([waits.call(), waits.call()])

    @worker.task(name="waits", results="R", steps=True)
    def waits(ctx: Context) -> object:
        return ctx.wait("never")

    # Nothing runs yet: neither the first call, nor those that follow.
    unsent = chain(notes.call(), notes.call()).delay(task_id="c")
    assert unsent.cancel() is True
    grouped = group([notes.call(), notes.call()], then=total.call()).delay(task_id="g")
    assert grouped.cancel() is True
    with running(worker):
        started = chain(slow.call(), notes.call(), notes.call()).delay(task_id="r")
        assert entered.wait(20 * SCALE)
        # Its first call runs, and succeeds; no other one starts.
        assert started.cancel() is True
        leave.set()
        with pytest.raises(
            TaskError, match="task notes r is failed: .*r-c2 of task notes is cancelled"
        ):
            started.get(20 * SCALE)
        wait_until(lambda: slow.result_of("r-c1").status == "SUCCESSFUL")
        parent = gathers.apply_async(task_id="p")
        members = [waits.result_of(f"p-g1-{index}") for index in range(2)]
        wait_until(lambda: messages(js, "KV_R-flows") == 6 and messages(js) == 0, 20)
        assert parent.cancel() is True
        assert [item.status for item in (parent, *members)] == ["CANCELLED"] * 3
        assert_clean(js)
    assert [unsent.status, grouped.status, runs] == ["FAILED", "CANCELLED", []]
    assert add.result_of("r").cancel() is False


def test_a_member_that_is_cancelled_has_ended(worker, js):
    """The callback follows."""
    define(worker)

    @worker.task(name="waits", results="R", steps=True)
    def waits(ctx: Context) -> object:
        return ctx.wait("never")

    @worker.task(name="statuses", results="R")
    def statuses(outcomes: list[dict[str, object]]) -> object:
        return [item["status"] for item in outcomes]

    with running(worker):
        add = worker.queues.tasks["add"]
        result = group([waits.call(), add.call(1)], then=statuses.call(), on_error="call").delay(
            task_id="m"
        )
        wait_until(lambda: messages(js, "KV_R-flows") == 5 and messages(js) == 0, 20)
        assert waits.result_of("m-m0").cancel() is True
        assert result.get(20 * SCALE) == ["CANCELLED", "SUCCESSFUL"]
        assert_clean(js)


def test_the_tree_of_a_flow_has_its_calls_with_their_states(worker, js):
    """What has run, what waits, and what has not begun; nothing disagrees while a call waits."""
    define(worker)
    add = worker.queues.tasks["add"]

    @worker.task(name="waits", results="R", steps=True)
    def waits(value: int, ctx: Context) -> object:
        (more,) = ctx.gather([add.call(value)])
        return ctx.wait("go") + more

    with running(worker):
        result = chain(add.call(1), waits.call(), add.call(5)).delay(task_id="t")
        wait_until(lambda: messages(js, "KV_R-flows") == 5 and messages(js) == 0, 20)
        assert worker.verify() == []
        tree = add.states.flows.tree(add.states, "t")
        first, second = tree.before
        assert (tree.id, tree.task, tree.status, tree.record) == ("t", "add", "", None)
        assert [(part.id, part.task, part.status) for part in (first, second, *second.parts)] == [
            ("t-c1", "add", "SUCCESSFUL"),
            ("t-c2", "waits", "READY"),
            ("t-c2-g1-0", "add", "SUCCESSFUL"),
        ]
        assert second.record.flow.waiting == "wait=go"
        waits.result_of("t-c2").signal("go", 10)
        assert result.get(20 * SCALE) == 18
        assert_clean(js)
    assert [part.status for part in add.states.flows.tree(add.states, "t").before] == [
        *("SUCCESSFUL", "SUCCESSFUL")
    ]


def test_check_warns_of_steps_in_memory(worker, js):
    """A restart of the server would forget what a call has done."""
    worker.task(name="waits", results="R", steps=True)(define)
    js.create_key_value(bucket="R", storage="memory")
    js.create_key_value(bucket="R-flows")
    found = [text for text in worker.check().warnings if "in memory" in text]
    assert found == ["bucket 'R' is in memory: a restart of the server forgets steps"]


@pytest.mark.timeout(60)
def test_steps_that_are_recorded_while_the_call_ends(js, nc):
    """A step can be recorded at every moment in which another process deletes the steps of the call."""
    bucket = f"steps-{uuid.uuid4().hex}"
    js.create_key_value(KeyValueConfig(bucket=bucket))
    stores = [StepBucket(lambda: nc, bucket, lambda *_: None) for _ in range(2)]
    over = threading.Event()
    given = {b"end"}

    def remove() -> None:
        while not over.is_set():
            stores[1].remove("call")

    remover = threading.Thread(target=remove)
    remover.start()
    try:
        for number in range(500):
            value = b"%d" % number
            given |= {value}
            assert stores[0].record("call", "wait=x", value) in given
            assert stores[0].record("call", "wait=x", b"end", value) in given
    finally:
        over.set()
        remover.join()
        js.delete_key_value(bucket)


def test_steps_are_deleted_beside_a_consumer_of_another_program(worker, js):
    """Its pending message forbids a purge; the call ends all the same, and the consumer keeps its message."""

    @worker.task(name="stepped", results="R", steps=True, retry=FAST)
    def stepped(ctx: Context) -> int:
        found: int = ctx.step(lambda: next(numbers), name="one")
        return found

    numbers = iter(range(9))
    bucket = js.create_key_value(KeyValueConfig(bucket="R-flows"))
    consumer = js.get_stream("KV_R-flows").create_consumer(durable_name="OTHER", ack_wait=60)
    bucket.put("other", b"1")
    assert [msg.data for msg in consumer.fetch(1, timeout=20)] == [b"1"]
    with running(worker):
        assert stepped.apply_async(task_id="s").get(20 * SCALE) == 0
        wait_until(lambda: messages(js) == 0)
        assert bucket.keys() == ["other"]
        assert consumer.info().num_ack_pending == 1
        # The steps are those of that call alone, also if its id is used again.
        js.delete_key_value("R")
        assert stepped.apply_async(task_id="s").get(20 * SCALE) == 1
        wait_until(lambda: messages(js) == 0)
