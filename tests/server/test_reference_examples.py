"""The examples of methods on the reference pages, in docs/examples, run."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest
from pages import DOCUMENTED_URL, ROOT

import jetstream_sync
from jetstream_sync import workers
from jetstream_sync.server import NatsServer

EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.py"))
_MARK = re.compile(r"^# --- (.*)$", re.MULTILINE)
_CLASSES = [
    *("Connection", "Subscription", "Msg", "JetStream", "Stream", "StreamSnapshot"),
    *("PullConsumer", "MessageIterator", "ConsumeHandle", "OrderedConsumer", "OrderedMessages"),
    *("PushSubscription", "PullSubscription", "JetStreamMsg"),
    *("KeyValue", "Watch", "WatchHandle", "ObjectStore", "Worker", "Context", "DeadLetters"),
]
#: Hooks of subclasses, methods of which an example would repeat another one, and one for the runtime.
_WITHOUT_EXAMPLE = {"JetStreamMsg.respond", "OrderedMessages.request", "Worker.resources"}
#: They need a cluster.
_WITHOUT_EXAMPLE |= {"Stream.step_down", "Stream.step_down_consumer", "Stream.remove_peer"}


def methods() -> set[str]:
    """Return the public methods of the classes that have arguments."""
    found = set()
    for name in _CLASSES:
        owner = getattr(jetstream_sync, name, None) or getattr(workers, name)
        for method, function in inspect.getmembers(owner, inspect.isfunction):
            if not method.startswith("_") and len(inspect.signature(function).parameters) > 1:
                found.add(f"{name}.{method}")
    return found


def has_example(method: str) -> bool:
    owner, _, name = method.partition(".")
    cls = getattr(jetstream_sync, owner, None) or getattr(workers, owner)
    return ">>>" in (inspect.getdoc(getattr(cls, name)) or "")


@pytest.mark.server(">=2.14")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples of one file run one after the other, as on the page."""
    monkeypatch.chdir(tmp_path)
    source = path.read_text(encoding="utf-8")
    with NatsServer() as server:
        code = compile(source.replace(DOCUMENTED_URL, server.url), str(path), "exec")
        names: dict[str, object] = {"__name__": "examples"}
        exec(code, names)
        connection = names.get("nc")
        assert isinstance(connection, jetstream_sync.Connection)
        if "worker" in names:
            assert names["status"] == 0
            jetstream_sync.shared_connection(server.url, name="shop").close()  # of the task
        connection.close()


def test_each_method_with_arguments_has_an_example() -> None:
    """A method has a short example in its docstring or in docs/examples."""
    shown = {name for path in EXAMPLES for name in _MARK.findall(path.read_text(encoding="utf-8"))}
    missing = {method for method in methods() - shown if not has_example(method)}
    assert missing == _WITHOUT_EXAMPLE


def test_the_examples_are_short() -> None:
    """An example is for an existing method, and has at most seven lines of code."""
    for path in EXAMPLES:
        parts = _MARK.split(path.read_text(encoding="utf-8"))
        for name, code in zip(parts[1::2], parts[2::2], strict=True):
            owner, _, method = name.partition(".")
            assert hasattr(getattr(jetstream_sync, owner, None) or getattr(workers, owner), method)
            assert ast.parse(code).body, name
            assert 1 <= len([line for line in code.splitlines() if line.strip()]) <= 7, name
