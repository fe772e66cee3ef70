"""The keyword types of options agree with the classes that declare them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

import pytest
from make_option_fields import CLASSES, FILE, contents

from jetstream_sync import InvalidOptionError
from jetstream_sync.workers import Worker

#: Each call that takes options, and the types of its options.
CALLS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "WorkerFields": (Worker, Worker),
    "HandlerFields": (
        Worker.handler,
        lambda **options: Worker().handler(stream="S", consumer="C", **options),
    ),
    "TaskFields": (Worker.task, lambda **options: Worker().task(**options)),
    "QueueFields": (Worker.queue, lambda **options: Worker().queue("q", **options)),
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
        Worker().handler(stream="S", consumer="C", max_messages=3)  # type: ignore[call-arg]
