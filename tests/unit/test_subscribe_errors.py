"""The errors of the subscribe workflow: base classes, texts, pickle."""

from __future__ import annotations

import pickle

import pytest

from jetstream_sync import errors
from jetstream_sync.errors import (
    ConfigMismatchError,
    ConsumerSequenceMismatchError,
    Error,
    InvalidArgumentError,
    JetStreamError,
    SubscribeError,
)

CLASSES = [
    value
    for name in errors.__all__
    if issubclass(value := getattr(errors, name), SubscribeError | ConsumerSequenceMismatchError)
]


def example(cls: type[Error]) -> Error:
    if cls is ConsumerSequenceMismatchError:
        return cls(70, 7, 9)
    if cls is ConfigMismatchError:
        return cls("ack_wait", 1, 2)
    return cls("asked", "found")


@pytest.mark.parametrize("cls", CLASSES)
def test_every_error_survives_pickle(cls: type[Error]) -> None:
    """An error keeps its class, its fields and its text through pickle."""
    error = example(cls)
    copied = pickle.loads(pickle.dumps(error))
    assert type(copied) is cls
    assert vars(copied) == vars(error)
    assert str(copied) == str(error)


@pytest.mark.parametrize("cls", CLASSES)
def test_every_error_is_in_the_tree(cls: type[Error]) -> None:
    """Each is a JetStreamError; raised ones are also errors of an argument."""
    assert issubclass(cls, JetStreamError)
    if cls is not ConsumerSequenceMismatchError:
        assert issubclass(cls, SubscribeError)
        assert issubclass(cls, InvalidArgumentError)


@pytest.mark.parametrize("cls", CLASSES)
def test_the_text_has_the_values(cls: type[Error]) -> None:
    """The text names the values that disagree."""
    error = example(cls)
    for value in error.args[-2:]:
        assert str(value) in str(error)
