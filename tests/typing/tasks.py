"""A user's typed tasks: what passes, and what mypy refuses; an ignore that is not needed is an error."""

from __future__ import annotations

from typing_extensions import assert_type

from jetstream_sync.workers import Backoff, Context, TaskResult, Worker

worker = Worker()


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
