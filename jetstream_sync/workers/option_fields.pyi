# Types of the options that `Worker`, `Worker.handler()`, `Worker.task()` and `Worker.queue()` accept by
# keyword. Made by tests/make_option_fields.py from the classes that document the options. Type checkers reject an
# unknown or misspelled option. There is no such module at run time.

from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypedDict

from .. import JetStreamMsg, KeyValueConfig, StreamConfig
from .calls import SentCall
from .dead_letters import DeadLetterTarget
from .retries import Backoff
from .source import Middleware

class WorkerFields(TypedDict, total=False):
    name: str
    dead_letters: DeadLetterTarget | None
    program: str | None
    concurrency: int
    drain_timeout: float
    middleware: Sequence[Middleware]
    ensure: str | Sequence[StreamConfig | KeyValueConfig]
    num_replicas: int | None
    trace: str | None
    http: str | None
    report: str | None
    connection: Mapping[str, Any] | None

class HandlerFields(TypedDict, total=False):
    retry: Backoff | None
    timeout: float
    soft_timeout: float | None
    reject_on: Sequence[type[BaseException]]
    retry_on: Sequence[type[BaseException]] | None
    once: str | None
    prefetch: int | None
    ack_wait: float | None
    confirm: bool
    dead_letters: DeadLetterTarget | None
    key: Callable[[JetStreamMsg], Hashable] | None
    ack: str
    park_after: float | None
    max_bytes: int | None
    exclusive: bool
    limit: str | None
    rate: str | None
    pool: str
    ensure: Sequence[StreamConfig | KeyValueConfig]
    filter_subject: str | None
    filter_subjects: Sequence[str]
    concurrency: int
    deliver: str | int | datetime
    group: str | None
    member: str | None
    decode: str | Callable[[bytes], Any]

class TaskFields(TypedDict, total=False):
    retry: Backoff | None
    timeout: float
    soft_timeout: float | None
    reject_on: Sequence[type[BaseException]]
    retry_on: Sequence[type[BaseException]] | None
    once: str | None
    name: str | None
    queue: str
    limit: str | None
    limit_key: Callable[[SentCall], str | int | None] | None
    unique: str | None
    unique_by: Sequence[str]
    results: str | None
    steps: bool
    cron: str | None
    every: float | timedelta | None
    time_zone: str | None
    missed: str
    overlap: bool

class QueueFields(TypedDict, total=False):
    prefetch: int | None
    ack_wait: float | None
    confirm: bool
    dead_letters: DeadLetterTarget | None
    key: Callable[[JetStreamMsg], Hashable] | None
    ack: str
    park_after: float | None
    max_bytes: int | None
    exclusive: bool
    limit: str | None
    rate: str | None
    pool: str
    ensure: Sequence[StreamConfig | KeyValueConfig]
    concurrency: int | None
    stream: str
    subject: str
    urgent: bool
    unknown_task_grace: float
