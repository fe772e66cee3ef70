"""
The worker runtime: functions that handle the messages of consumers, in threads or processes.

Example::

    from jetstream_sync.workers import Backoff, Reject, Worker

    worker = Worker("nats://127.0.0.1:4222", name="shop", dead_letters="DEAD")


    @worker.handler(stream="ORDERS", consumer="BILLING", concurrency=4, decode="json")
    def bill(order):
        if order["total"] <= 0:
            raise Reject("nothing to bill")
        charge(order)


    if __name__ == "__main__":
        raise SystemExit(worker.run())

The runtime is written against the public API of `jetstream_sync`.
"""

from __future__ import annotations

from .context import CallProgress, Context, LogContextFilter
from .dead_letters import DeadLetter, DeadLetters
from .deliveries import Reply
from .errors import (
    BatchError,
    HandlerTimeoutError,
    LeaseLostError,
    MembersFailedError,
    Reject,
    Retry,
    SoftTimeoutError,
    StepsChangedError,
    TaskArgumentsError,
    TaskError,
    WorkerCrashedError,
)
from .flows import Call, Flow, chain, group
from .logs import JsonLogFormatter
from .metrics import WorkerCollector
from .observer import WorkerEvent
from .options import QueueOptions, TaskOptions, WorkerOptions
from .resources import SetupStep
from .retries import Backoff
from .schedules import ScheduleState
from .source import Handler
from .tasks import Task, TaskResult
from .worker import CheckResult, Worker

__all__ = [
    "Backoff",
    "BatchError",
    "Call",
    "CallProgress",
    "CheckResult",
    "Context",
    "DeadLetter",
    "DeadLetters",
    "Flow",
    "Handler",
    "HandlerTimeoutError",
    "JsonLogFormatter",
    "LeaseLostError",
    "LogContextFilter",
    "MembersFailedError",
    "QueueOptions",
    "Reject",
    "Reply",
    "Retry",
    "ScheduleState",
    "SetupStep",
    "SoftTimeoutError",
    "StepsChangedError",
    "Task",
    "TaskArgumentsError",
    "TaskError",
    "TaskOptions",
    "TaskResult",
    "Worker",
    "WorkerCollector",
    "WorkerCrashedError",
    "WorkerEvent",
    "WorkerOptions",
    "chain",
    "group",
]
