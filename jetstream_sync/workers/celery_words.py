"""The words of Celery, and what they are called here: for error messages, and for the page "From Celery"."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Final

from .. import errors

#: Where a word of Celery is used, the word, and what to use here.
CELERY_WORDS: Final[tuple[tuple[str, str, str], ...]] = (
    ("task", "acks_late", "the default: ack='before' of worker.queue() acknowledges first"),
    ("task", "autoretry_for", "retry_on="),
    ("task", "base", "middleware of the Worker"),
    ("task", "bind", "a parameter annotated with Context"),
    ("task", "default_retry_delay", "retry=Backoff(first=...)"),
    ("task", "dont_autoretry_for", "reject_on="),
    ("task", "ignore_result", "leave out results="),
    ("task", "max_retries", "retry=Backoff(attempts=...), the first attempt included"),
    ("task", "priority", "a queue of its own: worker.queue(name, concurrency=...)"),
    ("task", "rate_limit", "worker.queue(name, rate='10/s')"),
    ("task", "reject_on_worker_lost", "the default: the call is delivered again"),
    ("task", "retry_backoff", "retry=Backoff(first=..., factor=2.0)"),
    ("task", "retry_backoff_max", "retry=Backoff(maximum=...)"),
    ("task", "retry_jitter", "retry=Backoff(jitter=...)"),
    ("task", "retry_kwargs", "retry=Backoff(...)"),
    ("task", "serializer", "arguments and return values are JSON"),
    ("task", "shared", "worker.task"),
    ("task", "soft_time_limit", "soft_timeout="),
    ("task", "store_errors_even_if_ignored", "results="),
    ("task", "throws", "reject_on="),
    ("task", "time_limit", "timeout="),
    ("task", "track_started", "results=, which always has the status RUNNING"),
    ("task", "typing", "arguments are always checked"),
    ("call", "connection", "the options of the Worker"),
    ("call", "exchange", "@worker.task(queue=...)"),
    ("call", "headers", "an argument of the task"),
    ("call", "ignore_result", "leave out results= of the task"),
    ("call", "link", "a call of the next task at the end of the task"),
    ("call", "link_error", "worker.on('dead_letter')"),
    ("call", "priority", "a queue of its own: worker.queue(name, concurrency=...)"),
    ("call", "producer", "the options of the Worker"),
    ("call", "queue", "@worker.task(queue=...)"),
    ("call", "retry", "calls are sent once: repeat apply_async(task_id=...)"),
    ("call", "retry_policy", "calls are sent once: repeat apply_async(task_id=...)"),
    ("call", "routing_key", "@worker.task(queue=...)"),
    ("call", "serializer", "arguments are JSON"),
    ("call", "shadow", "@worker.task(name=...)"),
    ("call", "soft_time_limit", "@worker.task(soft_timeout=...)"),
    ("call", "time_limit", "@worker.task(timeout=...)"),
    ("task object", "retry", "raise Retry(delay=...)"),
    ("task object", "AsyncResult", "result_of(task_id)"),
    ("task object", "s", "a call of the next task at the end of the task"),
    ("task object", "si", "a call of the next task at the end of the task"),
    ("task object", "signature", "a call of the next task at the end of the task"),
    ("task object", "chunks", "a call of the task for each chunk"),
    ("task object", "map", "a call of the task for each item"),
    ("task object", "starmap", "a call of the task for each item"),
    ("task object", "send", "delay()"),
    ("task object", "send_at", "apply_async(eta=...)"),
    ("task object", "apply", "call the task itself, or use worker.eager()"),
    ("task object", "request", "a parameter annotated with Context"),
    ("result", "state", "status"),
    ("result", "result", "get()"),
    ("result", "revoke", "cancel()"),
    ("result", "ready", "status"),
    ("result", "successful", "status == 'SUCCESSFUL'"),
    ("result", "failed", "status == 'FAILED'"),
    ("result", "forget", "the ttl of the bucket"),
    ("result", "traceback", "the traceback of the TaskError of get()"),
)

#: Places that share the words of another one.
_PLACES: Final = {"queue": "task"}


def hint_of(place: str, word: str) -> str | None:
    """Return what a word of Celery is called here; ``None``: it is no such word."""
    return next(
        (hint for where, name, hint in CELERY_WORDS if (where, name) == (place, word)), None
    )


def refuse_unknown(place: str, given: Mapping[str, object], known: Collection[str]) -> None:
    """Raise `InvalidOptionError` for an unknown option, with the right one."""
    for option, value in given.items():
        if option in known:
            continue
        hint, close = (
            hint_of(_PLACES.get(place, place), option),
            get_close_matches(option, known, 1),
        )
        rule = f"not one of {', '.join(sorted(known))}"
        if hint is not None:
            rule = f"this option of Celery is here: {hint}"
        elif close:
            rule = f"did you mean {close[0]}?"
        raise errors.InvalidOptionError(option, value, f"unknown option; {rule}")
