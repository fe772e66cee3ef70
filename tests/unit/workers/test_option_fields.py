"""The keyword types of options agree with the classes that declare them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import partial
from typing import Any

import pytest
from make_option_fields import CLASSES, FILE, contents

from jetstream_sync import InvalidArgumentError, InvalidOptionError
from jetstream_sync.workers import Worker

#: Each call that takes options, and the types of its options.
CALLS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "WorkerFields": (Worker, Worker),
    "HandlerFields": (
        Worker.handler,
        lambda **options: Worker(name="tests").handler(stream="S", consumer="C", **options),
    ),
    "TaskFields": (Worker.task, lambda **options: Worker(name="tests").task(**options)),
    "QueueFields": (Worker.queue, lambda **options: Worker(name="tests").queue("q", **options)),
}


def test_the_types_of_options_are_up_to_date():
    """Run ``python tests/make_option_fields.py`` when this fails."""
    assert FILE.read_text(encoding="utf-8") == contents()


@pytest.mark.parametrize("name", CLASSES)
def test_signatures_show_each_option_with_its_default(name):
    """As `help()` and the reference show them; the types of the keywords have the same names."""
    parameters = inspect.signature(CALLS[name][0]).parameters
    keywords = {item for item in parameters if item not in {"self", "function", "servers"}}
    declared = {
        item.name for kind, names in CLASSES[name] for item in fields(kind) if item.name in names
    }
    assert keywords - declared <= {"stream", "consumer", "name"}
    assert declared <= keywords
    assert parameters["self" if "self" in parameters else "servers"] is not None
    for kind, names in CLASSES[name]:
        for item in fields(kind):
            if item.name in names and item.default is not MISSING:
                assert parameters[item.name].default == item.default


@pytest.mark.parametrize("name", CLASSES)
def test_an_unknown_option_names_the_nearest_one(name):
    right = CLASSES[name][0][1]
    option = max(sorted(right), key=len)
    wrong = f"{option}x"
    with pytest.raises(
        InvalidOptionError, match=f"{wrong}=7: unknown option; did you mean {option}"
    ) as caught:
        CALLS[name][1](**{wrong: 7})
    assert caught.value.option == wrong


def test_a_batch_is_no_option_of_a_handler():
    """The options of `Worker.batch` are refused by `Worker.handler`."""
    with pytest.raises(InvalidOptionError, match="max_messages"):
        Worker(name="tests").handler(stream="S", consumer="C", max_messages=3)  # type: ignore[call-arg]


def clock() -> None:
    """A task without arguments."""


WRONG: list[tuple[str, dict[str, Any]]] = [
    *(("WorkerFields", {"name": value}) for value in ("", 5)),
    *(("WorkerFields", {"num_replicas": value}) for value in (0, "3", True)),
    *(("WorkerFields", {"dead_letters": value}) for value in (5, "", "A.B", [])),
    *(("WorkerFields", {"middleware": value}) for value in (clock, [5], "m")),
    *(("WorkerFields", {"http": value}) for value in (9400, "x:y", "")),
    ("WorkerFields", {"connection": 5}),
    ("WorkerFields", {"program": 5}),
    ("WorkerFields", {"drain_timeout": float("nan")}),
    *(("HandlerFields", {"once": value}) for value in ("", 5, "a b")),
    *(("HandlerFields", {option: "no"}) for option in ("confirm", "exclusive")),
    *(("HandlerFields", {"dead_letters": value}) for value in (5, "A.B")),
    *(("HandlerFields", {"ensure": value}) for value in ("x", [5])),
    *(("HandlerFields", {"filter_subject": value}) for value in ("", "a..b", 5)),
    ("HandlerFields", {"filter_subjects": ["a", "b c"]}),
    *(("TaskFields", {"every": value}) for value in (float("inf"), float("nan"), 0, "1")),
    *(("TaskFields", {"results": value}) for value in ("", 5, "a b")),
    ("TaskFields", {"time_zone": "Europe/Berlin"}),
    ("TaskFields", {"missed": "all"}),
    ("TaskFields", {"every": 5, "time_zone": "UTC"}),
    *(("QueueFields", {"unknown_task_grace": value}) for value in ("5", -1, float("nan"))),
    ("QueueFields", {"stream": "A.B"}),
    ("QueueFields", {"subject": "a.b"}),
]


@pytest.mark.parametrize(("name", "options"), WRONG)
def test_a_wrong_option_is_refused_where_it_is_given(name, options):
    """Not when the worker starts, and never ignored."""
    with pytest.raises(InvalidOptionError) as caught:
        decorate = CALLS[name][1](**options)
        if decorate is not None and not isinstance(decorate, Worker):
            decorate(clock)
    assert caught.value.option in {*options, "time_zone"}


@pytest.mark.parametrize(
    "options",
    [
        *({"countdown": value} for value in (-1, "5", float("nan"), float("inf"), 1e12)),
        *({"expires": value} for value in ("5", float("nan"), float("inf"), [])),
        {"eta": 5},
        {"countdwn": 5},
        {"args": "a"},
        {"args": 5},
        {"kwargs": [1]},
    ],
)
def test_a_wrong_option_of_a_call_is_refused_before_it_is_sent(options):
    task = Worker("nats://127.0.0.1:1", name="tests").task(clock)
    with pytest.raises(InvalidArgumentError, match=next(iter(options))):
        task.apply_async(**options)


def test_a_function_without_a_name_needs_one():
    """A partial and a lambda have none that another process could find."""
    for function in (partial(clock), lambda: None):
        with pytest.raises(InvalidOptionError, match="name"):
            Worker(name="tests").task(function)
    assert Worker(name="tests").task(name="tick")(partial(clock)).name == "tick"


def test_signatures_show_the_values_that_are_used():
    """A default in a signature is the value of an option that is not given."""
    worker = Worker(name="tests")
    handler = worker.handler(stream="S", consumer="C")(do_nothing)
    work = worker.task(do_nothing).work
    for function, used in ((Worker, worker), (Worker.handler, handler), (Worker.task, work)):
        parameters = inspect.signature(function).parameters
        shown = {
            name: item.default
            for name, item in parameters.items()
            if item.default is not item.empty and hasattr(used, name)
        }
        assert shown
        found = {name: getattr(used, name) for name in shown}
        differing = {name for name in shown if found[name] != shown[name]}
        # Texts say what these are.
        assert differing <= {"consumer", "function", "name", "program"}


def do_nothing() -> None:
    """Do nothing."""
