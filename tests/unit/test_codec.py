"""JSON to records and back: no field is lost, invented or rounded."""

import copy
import dataclasses
import importlib.util
import inspect
import pickle
import pydoc
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from enum import Enum, IntEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_sync import AccountInfo, ConsumerConfig, ConsumerReset, StreamConfig, codec
from jetstream_sync.codec import (
    UNSET,
    Duration,
    Durations,
    Extra,
    Record,
    UnknownEnumValue,
    decode,
    encode,
    record,
)
from jetstream_sync.durations import duration_to_ns, time_to_ns
from jetstream_sync.errors import InvalidArgumentError, InvalidOptionError, InvalidResponseError


class Color(str, Enum):
    RED = "red"
    BLUE = "blue"


@record
class Leaf(Record):
    name: str
    size: int | None = None


@record
class Tree(Record):
    name: str
    on: bool | None = None
    count: int | None = None
    wait: Duration = UNSET
    waits: Durations = UNSET
    at: datetime | None = None
    color: Color | str = Color.RED
    leaf: Leaf | None = None
    leaves: Sequence[Leaf] | None = None
    by_name: Mapping[str, Leaf] | None = None
    words: Sequence[str] | None = None
    labels: Mapping[str, str] | None = None
    data: bytes | None = None

    def _check(self):
        self._refuse_if(self.name == "bad", "name", "it is bad")
        self._check_range(1, 10, "count")
        self._check_range(0.5, float("inf"), "wait")


FULL = {
    "name": "oak",
    "on": False,
    "count": 7,
    "wait": 1_000_000_001,
    "waits": [1, 2_000],
    "at": "2024-02-29T01:02:03.000000004Z",
    "color": "blue",
    "leaf": {"name": "a", "size": 0},
    "leaves": [{"name": "b"}, {"name": "c", "size": 2**63}],
    "by_name": {"d": {"name": "d"}},
    "words": ["x", ""],
    "labels": {"k": "v"},
    "data": "AAH/",
}

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
UNKNOWN = st.dictionaries(st.text(min_size=1).map(lambda key: f"x-{key}"), JSON, max_size=3)


@pytest.fixture(params=["orjson", "json"])
def either(request, monkeypatch):
    """The codec with orjson, and without it, as if orjson could not be imported."""
    if request.param == "orjson":
        pytest.importorskip("orjson")
        return codec
    monkeypatch.setitem(sys.modules, "orjson", None)
    spec = importlib.util.spec_from_file_location("jetstream_sync.codec_alone", codec.__file__)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    assert "orjson" not in vars(module) or module.orjson is None
    return module


# --- JSON -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -(2**63),
        2**64 - 1,
        "",
        'é"\\\u2028\n',
        "\U0001f600",
        [],
        [1, [2]],
        {},
        {"a": {"b": [None]}},
    ],
)
def test_json_values_are_unchanged(either, value):
    """Every JSON value is read back as written, from bytes and from text."""
    data = either.dumps(value)
    assert type(data) is bytes
    assert either.loads(data) == value
    assert either.loads(data.decode()) == value


@pytest.mark.parametrize(
    "data",
    [
        *(
            b"",
            b"{",
            b"nope",
            b"NaN",
            b"[Infinity]",
            b"1e999",
            b"\xff",
            b'"\xff"',
            b"{}x",
            b"[" * 100_000,
        ),
        *(rb'"\ud800"', rb'{"a": ["\udce9"]}', b'"\xed\xa0\x80"', '{"a":1}'.encode("utf-16")),
    ],
)
def test_bytes_without_json_are_an_invalid_response(either, data):
    """The error of a reply that is not JSON quotes its start only."""
    with pytest.raises(InvalidResponseError) as caught:
        either.loads(data)
    assert repr(data[:20])[2:-1] in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {1, 2},
        b"bytes",
        "\ud800",
        datetime(2024, 1, 1, tzinfo=timezone.utc),
        Leaf(name="a"),
    ],
)
def test_a_value_without_json_form_is_an_invalid_argument(either, value):
    """Records and times need encode(); another value is refused."""
    with pytest.raises(InvalidArgumentError):
        either.dumps({"a": value})


def test_the_codec_works_alone(either):
    """Records decode and encode with and without orjson."""

    @record
    class Alone(either.Record):
        name: str

    data = either.loads(b'{"name":"a","new":[1]}')
    assert either.dumps(either.encode(either.decode(Alone, data))) == b'{"new":[1],"name":"a"}'


# --- decode and encode ----------------------------------------------------------------------------


def test_every_type_is_read():
    """The type of a field decides how a JSON value is converted."""
    tree = decode(Tree, FULL)
    assert tree.name == "oak"
    assert tree.on is False
    assert tree.count == 7
    assert duration_to_ns(tree.wait) == 1_000_000_001
    assert [duration_to_ns(wait) for wait in tree.waits] == [1, 2_000]
    assert tree.waits[1] == timedelta(microseconds=2)
    assert tree.at.replace(microsecond=0) == datetime(2024, 2, 29, 1, 2, 3, tzinfo=timezone.utc)
    assert time_to_ns(tree.at) % 1000 == 4
    assert tree.color is Color.BLUE
    assert tree.leaf == Leaf(name="a", size=0)
    assert tree.leaves == [Leaf(name="b"), Leaf(name="c", size=2**63)]
    assert tree.by_name == {"d": Leaf(name="d")}
    assert tree.words == ["x", ""]
    assert tree.labels == {"k": "v"}
    assert tree.data == b"\x00\x01\xff"
    assert tree.extra == {}


def test_every_type_is_written():
    """A decoded value is encoded unchanged, and the JSON that was read is not modified."""
    before = copy.deepcopy(FULL)
    assert encode(decode(Tree, FULL)) == FULL == before


def test_unset_fields_are_not_sent():
    """A field that is None is left out; a default value is sent."""
    assert encode(Tree(name="a")) == {"name": "a", "color": "red"}
    assert type(encode(Tree(name="a"))["color"]) is str


@given(UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)
def test_unknown_fields_are_kept_at_every_depth(top, nested, item, value):
    """Unknown fields of a newer server are in extra, and are sent back unchanged."""
    data = {
        "name": "a",
        "color": "red",
        "leaf": {"name": "b", **nested},
        "leaves": [{"name": "c", **item}],
        "by_name": {"d": {"name": "d", **value}},
        **top,
    }
    tree = decode(Tree, data)
    assert tree.extra == top
    assert tree.leaf.extra == nested
    assert tree.leaves[0].extra == item
    assert tree.by_name["d"].extra == value
    assert encode(tree) == data
    changed = dataclasses.replace(tree, count=3)
    assert encode(changed) == {**data, "count": 3}
    assert encode(pickle.loads(pickle.dumps(changed))) == {**data, "count": 3}


TREES = st.fixed_dictionaries(
    {"name": st.text(), "color": st.sampled_from(["red", "blue", "mauve"])},
    optional={
        "on": st.booleans(),
        "count": st.integers(0, 2**64 - 1),
        "wait": st.integers(-(2**63), 2**63 - 1),
        "waits": st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
        "leaf": st.fixed_dictionaries({"name": st.text()}),
        "leaves": st.lists(st.fixed_dictionaries({"name": st.text()}), max_size=3),
        "words": st.lists(st.text(), max_size=3),
        "labels": st.dictionaries(st.text(), st.text(), max_size=3),
    },
)


@given(TREES)
def test_any_object_survives(data):
    """Decoding and encoding any object gives the same object."""
    assert encode(decode(Tree, data)) == data


def test_an_unknown_enum_value_is_kept():
    """An unknown enum value of a newer server is kept, and can be sent back and replaced."""
    tree = decode(Tree, {"name": "a", "color": "mauve"})
    assert tree.color == "mauve"
    assert type(tree.color) is UnknownEnumValue
    assert encode(dataclasses.replace(tree, name="b")) == {"name": "b", "color": "mauve"}


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("name", 1),
        ("on", 1),
        ("count", "1"),
        ("count", 1.0),
        ("count", True),
        ("wait", "1s"),
        ("wait", 1.5),
        ("wait", 10**30),
        ("waits", ["1"]),
        ("at", 1),
        ("at", "yesterday"),
        ("color", 1),
        ("leaves", "ab"),
        ("by_name", []),
        ("words", [1]),
        ("labels", {"k": 1}),
        ("data", 1),
        ("data", "not base64!"),
    ],
)
def test_a_wrong_json_type_names_record_and_field(field, wrong):
    """A value of the wrong type is an invalid response that names record and field."""
    with pytest.raises(InvalidResponseError, match=f"^Tree.{field}: expected "):
        decode(Tree, {**FULL, field: wrong})


@pytest.mark.parametrize("wrong", [1, "a", [], True])
def test_a_wrong_nested_value_names_the_nested_record(wrong):
    """A value that should be an object names the nested record."""
    with pytest.raises(InvalidResponseError, match="^Leaf: expected an object"):
        decode(Tree, {"name": "a", "leaf": wrong})
    with pytest.raises(InvalidResponseError, match="^Leaf.size: expected an int"):
        decode(Tree, {"name": "a", "leaf": {"name": "b", "size": "big"}})


@pytest.mark.parametrize("data", [{}, {"name": None}])
def test_a_missing_field_is_named(data):
    """A missing field that is required is an invalid response."""
    with pytest.raises(InvalidResponseError, match="Tree.name: required field is missing"):
        decode(Tree, data)


@pytest.mark.parametrize("data", [None, [], "x", 1])
def test_only_objects_are_records(data):
    """JSON that is not an object is not a record."""
    with pytest.raises(InvalidResponseError, match="^Tree: expected an object"):
        decode(Tree, data)


def test_long_values_are_quoted_by_their_start():
    """An error does not repeat a megabyte."""
    with pytest.raises(InvalidResponseError) as caught:
        decode(Tree, {"name": ["x" * 1_000_000]})
    assert len(str(caught.value)) < 200


# --- records that users make ----------------------------------------------------------------------


def test_values_are_brought_into_one_form():
    """Seconds become timedeltas, strings enum members, sequences lists."""
    tree = Tree(name="a", wait=1.5, waits=(1, timedelta(seconds=2)), color="blue", words=("x",))
    assert tree.wait == timedelta(seconds=1.5)
    assert tree.waits == [timedelta(seconds=1), timedelta(seconds=2)]
    assert tree.color is Color.BLUE
    assert tree.words == ["x"]


def test_ints_and_bytes_of_other_types_are_taken():
    """Subclasses and other int-like and bytes-like values are converted."""
    number = IntEnum("number", {"THREE": 3}).THREE
    tree = Tree(name="a", count=number, data=bytearray(b"x"))
    assert type(tree.count) is int
    assert encode(tree) == {"name": "a", "color": "red", "count": 3, "data": "eA=="}


def test_a_record_copies_the_values_it_is_made_of():
    """Later changes of the caller's list or dict do not change the record."""
    words, labels = ["x"], {"k": "v"}
    tree = Tree(name="a", words=words, labels=labels)
    words.append("y")
    labels.clear()
    assert tree == Tree(name="a", words=["x"], labels={"k": "v"})


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("name", None),
        ("on", 1),
        ("count", "1"),
        ("count", True),
        ("count", 1.0),
        ("wait", "1s"),
        ("wait", float("nan")),
        ("waits", 1),
        ("waits", ["1"]),
        ("at", "2024-01-01T00:00:00Z"),
        ("at", datetime(2024, 1, 1)),  # noqa: DTZ001
        ("at", datetime(9999, 12, 31, 23, tzinfo=timezone(-timedelta(hours=2)))),
        ("color", "mauve"),
        ("color", 1),
        ("leaf", {"name": "a"}),
        ("leaves", Leaf(name="a")),
        ("words", "ab"),
        ("words", {"a"}),
        ("labels", [("k", "v")]),
        ("labels", {1: "v"}),
        ("data", "text"),
    ],
)
def test_a_wrong_value_names_its_field(field, wrong):
    """The constructor refuses a value of the wrong type, with the field's name."""
    with pytest.raises(InvalidOptionError) as caught:
        Tree(**{"name": "a", field: wrong})
    assert caught.value.option == field


def test_an_invalid_enum_value_lists_the_valid_ones():
    """The error for an invalid policy lists the valid ones."""
    with pytest.raises(InvalidOptionError, match="'red', 'blue'"):
        Tree(name="a", color="rde")


def test_an_enum_value_of_a_newer_server_can_be_sent():
    """`UnknownEnumValue` sends a value that this version does not know."""
    assert encode(Tree(name="a", color=UnknownEnumValue("mauve")))["color"] == "mauve"


def test_checks_are_for_users():
    """A record's rules apply to what a user creates or changes, not to what a server sent."""
    with pytest.raises(InvalidOptionError, match="it is bad"):
        Tree(name="bad")
    tree = decode(Tree, {"name": "bad", "count": 11, "wait": 0})
    with pytest.raises(InvalidOptionError):
        dataclasses.replace(tree, on=True)


def test_ranges():
    """The error for a value out of range names the range; that of a duration is in seconds."""
    for count in (0, 11):
        with pytest.raises(InvalidOptionError, match="from 1 to 10$"):
            Tree(name="a", count=count)
    assert Tree(name="a", wait=0.5).wait == timedelta(milliseconds=500)
    with pytest.raises(InvalidOptionError, match="at least 0.5 seconds$"):
        Tree(name="a", wait=0.499)


# --- what records are -----------------------------------------------------------------------------


def test_records_are_frozen():
    """A record is immutable, and has no other attributes."""
    tree = Tree(name="a")
    with pytest.raises(dataclasses.FrozenInstanceError):
        tree.name = "b"
    with pytest.raises(dataclasses.FrozenInstanceError):
        del tree.name
    with pytest.raises((AttributeError, TypeError)):
        tree.other = 1
    with pytest.raises(TypeError):
        hash(tree)
    assert not hasattr(tree, "__dict__")


@pytest.mark.parametrize(
    ("values", "named"),
    [({}, "Leaf requires the field name"), ({"name": "a", "sise": 1}, "Leaf has no field sise")],
)
def test_the_wrong_keywords_are_a_type_error(values, named):
    """As in any dataclass, a missing or unknown keyword is a TypeError."""
    with pytest.raises(TypeError, match=named):
        Leaf(**values)
    with pytest.raises(TypeError):
        Leaf("a")


def test_a_record_works_with_the_dataclasses_module():
    """Its fields can be listed, and its signature has them with their defaults."""
    assert dataclasses.is_dataclass(Leaf)
    assert [field.name for field in dataclasses.fields(Leaf)] == ["extra", "name", "size"]
    parameters = inspect.signature(Leaf).parameters
    assert [*parameters] == ["extra", "name", "size"]
    assert {parameter.kind for parameter in parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
    assert parameters["name"].default is inspect.Parameter.empty
    assert parameters["size"].default is None
    assert parameters["size"].annotation == int | None
    assert Leaf(name="a", extra=parameters["extra"].default) == Leaf(name="a")


@pytest.mark.parametrize(
    "clone", [copy.copy, copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))]
)
def test_records_survive_copies(clone):
    """Copying and pickling return an equal record with the same encoding."""
    tree = decode(Tree, {**FULL, "color": "mauve", "new": {"a": [1]}})
    assert clone(tree) == tree
    assert encode(clone(tree)) == encode(tree)
    assert type(clone(tree).color) is UnknownEnumValue


def test_extra_is_read_only():
    """`extra` is immutable, since many records share the empty one."""
    tree = decode(Tree, {"name": "a", "new": 1})
    with pytest.raises(TypeError):
        tree.extra["other"] = 1
    assert dict(tree.extra) == {"new": 1}
    given_ = {"new": 1}
    made = Tree(name="a", extra=given_)
    given_.clear()
    assert type(made.extra) is Extra
    assert encode(made)["new"] == 1


def test_records_are_compared_by_fields():
    """Two records are equal when all their fields are, also unknown ones of a newer server."""
    assert decode(Tree, FULL) == decode(Tree, FULL)
    assert decode(Tree, {**FULL, "new": 1}) != decode(Tree, FULL)
    assert Leaf(name="a") != Tree(name="a")


def test_repr_shows_the_set_fields():
    """The repr of a config with forty fields shows the three that are set."""
    assert repr(Tree(name="a", count=3)) == "Tree(name='a', count=3, color=<Color.RED: 'red'>)"
    assert repr(decode(Leaf, {"name": "a", "new": 1})) == "Leaf(name='a', extra=Extra({'new': 1}))"


@pytest.mark.parametrize("record", [StreamConfig, ConsumerConfig, ConsumerReset, AccountInfo])
def test_help_lists_each_field_with_its_meaning(record):
    """The docstring of a record lists every field, also inherited ones, with its text."""
    text = pydoc.render_doc(record, renderer=pydoc.plaintext)
    for field in dataclasses.fields(record):
        assert re.search(rf"\b{field.name}: [A-Z]", text), field.name


SUBINTERPRETER = """
import sys
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
import orjson  # as another application of the same process
orjson.dumps({}, option=orjson.OPT_SORT_KEYS)
code = f"import sys; sys.path[:] = {sys.path!r}; from jetstream_sync.codec import dumps, loads; " \\
    "assert loads(dumps({'a': [1]})) == {'a': [1]}; print('right', flush=True)"
try:
    made = interpreters.create("legacy")
except TypeError:
    made = interpreters.create(isolated=False)
failed = interpreters.run_string(made, code)
assert failed is None, failed
"""


def test_json_in_a_subinterpreter():
    """As under mod_wsgi: if orjson cannot be used there, the standard library is."""
    pytest.importorskip("orjson")
    done = subprocess.run(
        [sys.executable, "-c", SUBINTERPRETER], capture_output=True, text=True, check=False
    )
    assert done.stdout == "right\n", done.stderr
