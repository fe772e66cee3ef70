"""Frozen dataclasses with shared methods behave like those with generated ones."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle

import pytest

from jetstream_sync import Server, TLSOptions
from jetstream_sync.errors import InvalidOptionError
from jetstream_sync.records import Frozen, frozen


@frozen()
class Point(Frozen):
    x: int
    y: int = 0
    tags: list[str] = dataclasses.field(default_factory=list, repr=False)
    size: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("x")
        object.__setattr__(self, "size", self.x + self.y)


def test_arguments_are_taken_by_position_and_by_name():
    """Fields are positional, with their defaults; `replace` makes a checked copy."""
    assert (Point(1).x, Point(1).y, Point(1, 2).size, Point(y=3, x=1).size) == (1, 0, 3, 4)
    assert Point(1).tags is not Point(1).tags
    assert dataclasses.replace(Point(1, 2), x=5).size == 7
    with pytest.raises(ValueError, match="x"):
        dataclasses.replace(Point(1), x=-1)
    with pytest.raises(InvalidOptionError):
        TLSOptions(key_file="k")


@pytest.mark.parametrize(
    ("args", "given", "text"),
    [
        ((), {}, "requires the argument 'x'"),
        ((1, 2, [], 4), {}, "takes 3 positional arguments, not 4"),
        ((1,), {"x": 2}, "multiple values for argument 'x'"),
        ((1,), {"z": 2}, "unexpected keyword argument 'z'"),
        ((1,), {"size": 2}, "unexpected keyword argument 'size'"),
    ],
)
def test_wrong_arguments_are_a_type_error(args, given, text):
    """The error names the class and the argument."""
    with pytest.raises(TypeError, match=rf"^Point\.__init__\(\) .*{text}"):
        Point(*args, **given)


def test_keyword_only_fields_have_no_position():
    """A class with keyword-only fields refuses positional arguments."""
    with pytest.raises(TypeError, match="takes 0 positional arguments, not 1"):
        TLSOptions("ca.pem")  # type: ignore[call-arg]
    kinds = {item.kind for item in inspect.signature(TLSOptions).parameters.values()}
    assert kinds == {inspect.Parameter.KEYWORD_ONLY}


def test_a_value_cannot_be_changed():
    """An assignment, or the deletion of a field, raises `FrozenInstanceError`."""
    point = Point(1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        point.x = 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        del point.x
    assert point.x == 1


def test_values_are_compared_hashed_shown_and_copied_by_their_fields():
    """Equality and hash use all fields, ``repr`` omits the hidden ones, and a pickle is equal."""
    server = Server("nats://h:4222", 1, discovered=True)
    assert server == Server("nats://h:4222", 1, True) != Server("nats://h:4222")
    assert len({server, Server("nats://h:4222", 1, True)}) == 1
    assert server != ("nats://h:4222", 1, True)
    assert repr(server) == "Server(uri='nats://h:4222', reconnects=1, discovered=True)"
    assert repr(Point(1)) == "Point(x=1, y=0, size=1)"
    assert pickle.loads(pickle.dumps(server)) == copy.copy(server) == server
    assert str(inspect.signature(Point)) == "(x: 'int', y: 'int' = 0, tags: 'list[str]' = [])"
