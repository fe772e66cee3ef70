"""
Write ``jetstream_sync/workers/option_fields.pyi``, the types of the options of workers, from their classes.

    python tests/make_option_fields.py

``unit/workers/test_option_fields.py`` checks that the file is up to date.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from pathlib import Path
from typing import Any

from jetstream_sync.workers.options import QueueOptions, TaskOptions, WorkerOptions, own_names
from jetstream_sync.workers.source import HANDLER_OPTIONS, Handler

__all__ = ["FILE", "contents"]

FILE = Path(__file__).parents[1] / "jetstream_sync" / "workers" / "option_fields.pyi"
#: What an option accepts that has another type afterwards.
ACCEPTED = {
    "retry": "Backoff | None",
    "program": "str | None",
    "connection": "Mapping[str, Any] | None",
}
CLASSES: dict[str, list[tuple[type[Any], Collection[str]]]] = {
    "WorkerFields": [(WorkerOptions, own_names(WorkerOptions))],
    "HandlerFields": [(Handler, HANDLER_OPTIONS)],
    "TaskFields": [(TaskOptions, own_names(TaskOptions))],
    "QueueFields": [(QueueOptions, own_names(QueueOptions))],
}
HEAD = """\
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
"""


def contents() -> str:
    """Return the text of the file."""
    return HEAD + "".join(f"\n{_typed_dict(name, parts)}" for name, parts in CLASSES.items())


def _typed_dict(name: str, parts: list[tuple[type[Any], Collection[str]]]) -> str:
    lines = [f"class {name}(TypedDict, total=False):"]
    lines += [
        f"    {item.name}: {ACCEPTED.get(item.name, item.type)}"
        for kind, names in parts
        for item in fields(kind)
        if item.name in names
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    FILE.write_text(contents(), encoding="utf-8")
