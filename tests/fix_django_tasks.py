"""Tasks of Django: imported by workers, after Django is configured."""

from __future__ import annotations

from typing import Any

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task

__all__ = ["add", "fail", "runs", "times", "write"]

#: The arguments of all runs.
runs: list[tuple[Any, ...]] = []


@task()
def add(*numbers: int) -> int:
    runs.append(numbers)
    return sum(numbers)


@task(queue_name="mail")
def fail(text: str) -> None:
    runs.append((text,))
    raise ValueError(text)


@task(takes_context=True)
def times(context: Any, text: str) -> list[Any]:
    runs.append((text, context.attempt))
    return [text, context.attempt]


@task()
def write(text: str) -> str:
    from fix_django import execute

    execute("default", "INSERT INTO effects VALUES (%s)", text)
    if text == "bad":
        raise ValueError(text)
    return text
