"""A user's typed tasks: what passes, and what mypy refuses; an ignore that is not needed is an error."""

from __future__ import annotations

from typing_extensions import assert_type

from jetstream_sync import django
from jetstream_sync.workers import Backoff, Context, TaskResult, Worker

worker = Worker(name="tests")


@worker.task
def add(x: int, y: int = 2) -> int:
    return x + y


@worker.task(results="R", retry=Backoff(), timeout=3.0)
def bound(ctx: Context, name: str) -> list[str]:
    return [name, ctx.id]


assert_type(add.delay(1, y=2), TaskResult[int])
assert_type(add(1, 2), int)
assert_type(bound.delay("x"), TaskResult[list[str]])
assert_type(bound.delay(name="x").get(timeout=1), list[str])
add.delay("x", nope=3)  # type: ignore[call-arg, arg-type]
add(1, 2, 3)  # type: ignore[call-arg]
bound.delay(1)  # type: ignore[arg-type]


@worker.task(max_retries=3)  # type: ignore[call-overload, untyped-decorator]
def wrong() -> None: ...


worker.queue("mail", rate="10/s", threads=2)  # type: ignore[call-arg]
worker.handler(stream="S", consumer="C", consumr="C")  # type: ignore[call-arg]
Worker(drain_timeout="soon", nme="x")  # type: ignore[call-arg, arg-type]

project = django.Worker("nats://127.0.0.1", concurrency=2)
django.Worker(threads=2)  # type: ignore[call-arg]
project.handler(stream="S", consumer="C", atomic=True, timeout=3.0)
project.handler(stream="S", consumr="C")  # type: ignore[call-arg]


@project.task(outbox=True, retry=Backoff())
def pay(order_id: int) -> str:
    return f"paid {order_id}"


assert_type(pay.delay_on_commit(1), TaskResult[str])
pay.delay_on_commit("x")  # type: ignore[arg-type]


@project.task(outbx=True)  # type: ignore[call-overload, untyped-decorator]
def wrong_in_django() -> None: ...
