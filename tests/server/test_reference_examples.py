"""The examples on the reference pages, in docs/examples, run."""

from __future__ import annotations

import ast
import inspect
import re

import pytest
from pages import DOCUMENTED_URL, ROOT

import jetstream_sync
from jetstream_sync import server as server_module
from jetstream_sync import services, workers
from jetstream_sync.server import NatsServer
from jetstream_sync.workers import testing

EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.py"))
_MARK = re.compile(r"^# --- (.*)$", re.MULTILINE)
_CLASSES = [
    *("Connection", "Subscription", "Msg", "JetStream", "Stream", "StreamSnapshot"),
    *("PullConsumer", "MessageIterator", "ConsumeHandle", "OrderedConsumer", "OrderedMessages"),
    *("PushSubscription", "PullSubscription", "JetStreamMsg"),
    *("Batch", "FastPublisher", "Counters", "Headers"),
    *("Service", "EndpointGroup", "ServiceRequest"),
    *("KeyValue", "Watch", "WatchHandle", "Lock", "Replica", "ObjectStore"),
    *("Worker", "Context", "DeadLetters", "Task", "TaskResult", "TestClient"),
]
#: Hooks of subclasses, and methods of which an example would repeat another one.
_WITHOUT_EXAMPLE = {"JetStreamMsg.respond", "OrderedMessages.request"}
_WITHOUT_EXAMPLE |= {"Worker.has_committed"}
_WITHOUT_EXAMPLE |= {"Watch.drain"}
#: They need a cluster.
_WITHOUT_EXAMPLE |= {"Stream.step_down", "Stream.step_down_consumer", "Stream.remove_peer"}


def class_of(name: str) -> object:
    modules = (jetstream_sync, services, workers, testing, server_module)
    return next(getattr(module, name) for module in modules if hasattr(module, name))


def methods() -> set[str]:
    """Return the methods of the classes that have arguments and are in the reference."""
    found = set()
    for name in _CLASSES:
        for method, function in inspect.getmembers(class_of(name), inspect.isfunction):
            own = function.__module__.startswith("jetstream_sync.") and not method.startswith("_")
            own = own and ":meta private:" not in (function.__doc__ or "")
            if own and len(inspect.signature(function).parameters) > 1:
                found.add(f"{name}.{method}")
    return found


@pytest.mark.server(">=2.14")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_run(path, tmp_path, monkeypatch):
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


def test_each_method_with_arguments_has_an_example():
    """Each method has an example in docs/examples, except a few."""
    shown = {name for path in EXAMPLES for name in _MARK.findall(path.read_text(encoding="utf-8"))}
    assert methods() - shown == _WITHOUT_EXAMPLE


def test_docstrings_have_no_examples():
    """Examples are in docs/examples only."""
    sources = sorted((ROOT / "jetstream_sync").rglob("*.py"))
    assert [path for path in sources if "Example:\n" in path.read_text(encoding="utf-8")] == []


def test_the_examples_are_short():
    """An example is for an existing name, has at most six lines, and none that the page cuts."""
    for path in EXAMPLES:
        parts = _MARK.split(path.read_text(encoding="utf-8"))
        for name, code in zip(parts[1::2], parts[2::2], strict=True):
            owner, _, method = name.partition(".")
            assert not method or hasattr(class_of(owner), method), name
            assert ast.parse(code).body, name
            lines = [line for line in code.splitlines() if line.strip()]
            assert 1 <= len(lines) <= 6, name
            assert max(len(line) for line in lines) <= 98, name
