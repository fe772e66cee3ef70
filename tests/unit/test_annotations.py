"""Functions whose annotations name types that exist for type checkers only."""

import sys
from typing import Any

import pytest

from jetstream_sync.client.events import _listener
from jetstream_sync.options import signature_of
from jetstream_sync.services.typed import typed_handler
from jetstream_sync.workers import Worker

# Not with `from __future__ import annotations`: Python 3.14 evaluates such annotations when they are read, and an
# older version when the function is defined.
_QUOTED = """
def run(order: "Order", number: "int" = 1) -> "Order":
    return order, number
def answer(request: "ServiceRequest") -> "Order": ...
def report(event: "Event") -> None: ...
"""
_SOURCES = [_QUOTED, *([_QUOTED.replace('"', "")] if sys.version_info >= (3, 14) else [])]


@pytest.fixture(params=_SOURCES)
def functions(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Functions by name."""
    made: dict[str, Any] = {}
    exec(request.param, made)
    return made


def test_the_missing_names_are_text(functions):
    """The signature has all parameters."""
    parameters = signature_of(functions["run"]).parameters
    assert [parameters["order"].annotation, parameters["number"].default] == ["Order", 1]


def test_a_task_converts_what_it_can(functions):
    """A value of an unknown type is passed on; one that does not fit a known type is refused."""
    worker = Worker("nats://127.0.0.1:1", name="annotations")
    task = worker.task(name="run", results="R")(functions["run"])
    with worker.eager():
        assert task.delay({"a": 1}, 2).get() == [{"a": 1}, 2]
        with pytest.raises(TypeError):
            task.delay(1, "two")


def test_callbacks_and_handlers_are_accepted(functions):
    """Only what they take matters."""
    _listener("error_cb", functions["report"])
    assert typed_handler(functions["answer"]) is None
    worker = Worker("nats://127.0.0.1:1", name="annotations")
    worker.handler(stream="S", consumer="C")(functions["run"])
