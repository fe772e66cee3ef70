"""Arguments of tasks arrive as the objects of their annotations, or are refused when they are sent."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter, OrderedDict, UserDict, defaultdict
from collections.abc import MutableMapping
from dataclasses import dataclass, field, make_dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from importlib.util import find_spec
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    NewType,
    Optional,
    TypedDict,
    TypeVar,
    Union,
)
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
import typing_extensions
from typing_extensions import NotRequired, ReadOnly, Required, TypeAliasType

from jetstream_sync.converters import to_json
from jetstream_sync.workers import TaskArgumentsError, Worker
from jetstream_sync.workers.arguments import Arguments

if TYPE_CHECKING:
    from fractions import Fraction

T = TypeVar("T")
Customer = NewType("Customer", int)
#: A type that contains itself; its parts are named late, as in a ``type`` statement.
Tree = TypeAliasType("Tree", "datetime | list[Tree] | None")
BERLIN = ZoneInfo("Europe/Berlin")
needs_orjson = pytest.mark.skipif(
    find_spec("orjson") is None, reason="the standard library writes integers of any length"
)


class Color(Enum):
    RED = "red"


class Size(IntEnum):
    BIG = 3


class Level(Enum):
    LOW = 1


class StrColor(str, Enum):
    RED = "red"


class Money(NamedTuple):
    amount: Decimal
    currency: str = "EUR"


class Address(TypedDict):
    city: str
    since: date


@dataclass
class Order:
    id: UUID
    at: datetime
    lines: list[Money] = field(default_factory=list)
    parent: Order | None = None
    total: int = field(init=False, default=0)


@dataclass
class LargeOrder(Order):
    pass


@dataclass
class Visit:
    at: Final[datetime]  # type: ignore[misc]


@dataclass
class Note:
    value: Any
    at: datetime | None = None
    inner: Note | None = None


@dataclass
class Share:
    part: Fraction


class Shop(typing_extensions.TypedDict):
    name: str
    opened: NotRequired[ReadOnly[datetime]]
    closed: Annotated[NotRequired[datetime], "local time"]


class Branch(typing_extensions.TypedDict, total=False):
    opened: Required[datetime]
    name: str


#: The strings stay in the annotations, as in a module without ``from __future__ import annotations``.
Album = make_dataclass(
    "Album",
    [("ids", list[list["UUID"]]), ("parts", Optional[list["Album"]])],  # noqa: UP045 - with a string
)
Album.__module__ = __name__

UUID_1 = UUID(int=1)
NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
#: A time in the hour that comes twice in Berlin.
TWICE = datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1)


def arguments(annotation: object) -> Arguments:
    def function(value: object) -> None:
        pass

    function.__annotations__ = {"value": annotation, "return": None}
    return Arguments(function)


def arrived(annotation: object, value: object) -> Any:
    """What a worker gets that is in another process."""
    found = arguments(annotation)
    received = found.check("t", (value,), {})
    return found.bind("t", received["args"], received["kwargs"]).arguments["value"]


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (datetime, NOON),
        (datetime, datetime(2026, 1, 1, 12)),  # noqa: DTZ001 - without a zone on purpose
        (datetime, TWICE),
        (date, date(2026, 2, 28)),
        (time, time(3, 4, 5)),
        (timedelta, timedelta(days=400, microseconds=1)),
        (UUID, UUID_1),
        (Decimal, Decimal("0.10")),
        (Path, Path("a/b")),
        (Color, Color.RED),
        (Size, Size.BIG),
        (Money, Money(Decimal("1.50"))),
        (Address, {"city": "Ulm", "since": date(2020, 1, 1)}),
        (Order, Order(UUID_1, NOON, [Money(Decimal(1))], Order(UUID_1, NOON))),
        (list[UUID], [UUID_1]),
        (tuple[int, Decimal], (1, Decimal(2))),
        (tuple[date, ...], (date(2026, 1, 1),)),
        (dict[str, Color], {"a": Color.RED}),
        (datetime | None, None),
        (datetime | None, NOON),
        (UUID | int, 3),
        (Literal["a", 1], 1),
        (Customer, 7),
        (float, 2),
        (Any, {"a": [1, None, True]}),
        (Optional["datetime"], NOON),
        (list["Order"], [Order(UUID_1, NOON)]),
        (Decimal, Decimal("0.100")),
        (dict, {"a": 1}),
        (MutableMapping[str, date], {"a": date(2026, 1, 1)}),
        (Visit, Visit(NOON)),
        (Album, Album([[UUID_1]], None)),
        (Album, Album([], [Album([], None)])),
        (Shop, {"name": "x"}),
        (Shop, {"name": "x", "opened": NOON, "closed": NOON}),
        (Branch, {"opened": NOON}),
        (Tree, [NOON, [None, [NOON]]]),
        (list[Tree], [[NOON]]),
    ],
)
def test_values_arrive_as_annotated(annotation, value):
    """Neither pydantic nor a registration is needed."""
    result = arrived(annotation, value)
    assert result == value or result.isoformat() == value.isoformat()
    assert type(result) is (float if annotation is float else type(value))


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (datetime, "noon"),
        (datetime, 5),
        (UUID, "x"),
        (Decimal, 1.5),
        (Decimal, "one"),
        (Color, "blue"),
        (Order, {"id": 1}),
        (Order, "x"),
        (Address, {"city": "Ulm"}),
        (Address, {"city": "Ulm", "since": date(2020, 1, 1), "zip": 1}),
        (int, True),
        (int, "1"),
        (int, 1.5),
        (float, float("nan")),
        (bool, 1),
        (list[UUID], ["x"]),
        (tuple[int, int], (1,)),
        (dict[str, Color], {"a": "blue"}),
        (dict[int, int], {1: 1}),
        (datetime | str, NOON),
        (list[datetime | str], [NOON]),
        (Literal["a"], "b"),
        (set[int], {1}),
        (object, object()),
        (Any, NOON),
        (Any, Color.RED),
        (Any, Order(UUID_1, NOON)),
        (complex, 1j),
        (Optional["Unknown"], NOON),  # noqa: F821 - a type that does not exist at run time
        (Optional[Any], NOON),  # noqa: UP045
        (Optional[Any], Decimal(1)),  # noqa: UP045
        (Optional[T], NOON),  # noqa: UP045
        (list, (Color.RED,)),
        (Order, LargeOrder(UUID_1, NOON)),
        (list[Order], [LargeOrder(UUID_1, NOON)]),
        (dict, Order(UUID_1, NOON)),
        (datetime, date(2026, 1, 1)),
        (float, 2**53 + 1),
        (Visit, {"at": "noon"}),
        (Shop, {"opened": NOON}),
        (Shop, {"name": "x", "opened": "noon"}),
        (Branch, {"name": "x"}),
        (Tree, ["noon"]),
        (defaultdict, defaultdict(int, a=1)),
        (defaultdict[str, int], defaultdict(int, a=1)),
        (Counter, Counter(a=1)),
        (Counter[str], Counter(a=1)),
        (OrderedDict[str, int], OrderedDict(a=1)),
        (UserDict, UserDict(a=1)),
        (Note, {"value": NOON}),
        (Note, {"value": 1, "inner": {"value": [Color.RED]}}),
        (Share, Share(1)),
        (Share, {"part": 1}),
        (timedelta, 1e20),
        (timedelta | None, 1e20),
        (Size, True),
        (Size, 3.0),
        (Level, True),
        (Level, 1.0),
    ],
)
def test_other_values_are_refused(annotation, value):
    with pytest.raises(TaskArgumentsError, match="task t"):
        arrived(annotation, value)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        ((1, "x", 3), {}),
        ((1,), {"order_id": 2}),
        ((), {"label": "x"}),
        ((1,), {"nope": 2}),
        ((1,), {"only": 2}),
        ((1.0,), {}),
        ((1, None), {}),
        ((1, "\ud800"), {}),
        pytest.param((2**70,), {}, marks=needs_orjson),
    ],
)
def test_plain_values_that_do_not_fit_are_refused(args, kwargs):
    """The usual call is checked by a shorter way, which accepts nothing more."""

    def bill(order_id: int, label: str = "x") -> None:
        pass

    bill.__annotations__ = {"order_id": int, "label": str}
    found = Arguments(bill)
    assert found.check("t", (1,), {"label": "y"}) == {"args": [1], "kwargs": {"label": "y"}}
    with pytest.raises(TaskArgumentsError, match="task t"):
        found.check("t", args, kwargs)


def test_a_positional_parameter_is_not_given_by_name():
    def bill(order_id: int, /) -> None:
        pass

    bill.__annotations__ = {"order_id": int}
    with pytest.raises(TaskArgumentsError, match="order_id"):
        Arguments(bill).check("t", (), {"order_id": 1})


def test_a_time_of_another_language_arrives():
    found = arguments(datetime)
    assert found.bind("t", ["2026-01-01T12:00:00Z"], {}).arguments["value"] == NOON


def test_pydantic_models_are_validated():
    pydantic = pytest.importorskip("pydantic")

    class Model(pydantic.BaseModel):
        at: datetime
        price: Decimal

    model = Model(at=NOON, price=Decimal("1.5"))
    assert arrived(Model, model) == model
    assert arrived(list[Model], [model]) == [model]
    assert arrived(Model, {"at": NOON, "price": 1}).price == 1
    with pytest.raises(TaskArgumentsError, match="price"):
        arrived(Model, {"at": NOON})
    with pytest.raises(TaskArgumentsError, match="greater than 0"):
        arrived(pydantic.PositiveInt, -1)


def test_objects_may_be_given_inside_of_the_form_of_another():
    given = {"value": 1, "at": NOON, "inner": {"value": [2], "at": str(NOON)}}
    assert arrived(Note, given) == Note(1, NOON, Note([2], NOON))
    assert arrived(Money, [Decimal("1.50")]) == arrived(Money, ("1.50",)) == Money(Decimal("1.50"))


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the type statement is new in Python 3.12")
def test_an_alias_may_name_types_that_are_defined_after_the_task():
    names: dict[str, Any] = {"__name__": __name__}
    exec("type When = list[When] | Later", names)
    found = arguments(names["When"])
    names["Later"] = date
    today = date(2026, 1, 1)
    assert found.check("t", ([today, [today]],), {})["args"] == [["2026-01-01", ["2026-01-01"]]]


def test_a_model_that_loses_a_value_is_refused():
    """Two models with the same JSON may differ."""
    pydantic = pytest.importorskip("pydantic")

    class Base(pydantic.BaseModel):
        a: int = 1

    class Sub(Base):
        b: int = 2

    class Login(pydantic.BaseModel):
        password: pydantic.SecretStr

    class Hidden(pydantic.BaseModel):
        note: str = pydantic.Field("", exclude=True)

    class Outer(pydantic.BaseModel):
        inner: Base
        value: Any = None

    class Open(pydantic.BaseModel, extra="allow"):
        pass

    class Sized(pydantic.BaseModel):
        limits: dict[int, set[str]]
        at: datetime

    for kind, model in (
        (Base, Sub(a=1, b=2)),
        (Login, Login(password="secret")),
        (Hidden, Hidden(note="x")),
        (list[Hidden], [Hidden(note="x")]),
        (Outer, Outer(inner=Sub(b=3))),
        (Outer, Outer(inner=Base(), value=StrColor.RED)),
        (Open, Open(at=NOON)),
    ):
        with pytest.raises(TaskArgumentsError, match="arrives as another value"):
            arrived(kind, model)
    for model in (Outer(inner=Base(a=3), value=[1]), Open(x=1), Sized(limits={1: {"a"}}, at=TWICE)):
        assert arrived(type(model), model).model_dump_json() == model.model_dump_json()


@pytest.mark.parametrize(
    "optional",
    [
        datetime | None,
        Optional[datetime],  # noqa: UP045
        Union[None, datetime],  # noqa: UP007
        Annotated[datetime | None, "a|b"],
        NewType("When", datetime | None),  # type: ignore[valid-newtype]
    ],
)
def test_the_spelling_of_an_optional_type_makes_no_difference(optional):
    """The JSON form of an object may be given, unless another type of a union might be meant."""
    assert arrived(optional, NOON.isoformat()) == NOON
    assert arrived(optional, None) is None
    with pytest.raises(TaskArgumentsError):
        arrived(optional | UUID if optional == datetime | None else datetime | UUID, str(NOON))


def test_values_that_cannot_be_converted_are_dead_letters():
    """The same call would fail each time."""
    worker = Worker(name="shop", dead_letters="DEAD")
    for name, annotation, value in (("a", timedelta, 1e20), ("b", Share, {"part": 1})):

        def function(value: object) -> None:
            pass

        function.__annotations__ = {"value": annotation}
        task = worker.task(function, name=name)
        assert worker.test_client().deliver(task, {"args": [value]}).kind == "dead"


def test_values_of_a_callers_mapping_are_not_changed():
    """What is sent is encoded once; the caller's objects stay as they are."""
    value = {"a": Color.RED}
    assert to_json(value) == b'{"a":"red"}'
    assert value == {"a": Color.RED}


PROGRAM = """
import sys
for name in sys.argv[1:]:
    sys.modules[name] = None
from dataclasses import dataclass
from datetime import datetime, timezone
from decimal import Decimal
from uuid import UUID
from enum import Enum, IntEnum
from jetstream_sync.workers import TaskArgumentsError, Worker
class Size(IntEnum):
    BIG = 3
class Color(str, Enum):
    RED = "red"
@dataclass
class Point:
    x: Decimal
worker = Worker(name="shop")
@worker.task(results="R")
def f(at: datetime, id: UUID, point: Point, size: Size, color: Color, text: str) -> str:
    assert (at, id, point) == (datetime(2026, 1, 1, tzinfo=timezone.utc), UUID(int=1), Point(Decimal("1.5")))
    assert (type(size), type(color)) == (Size, Color)
    return f"{text} {point.x}"
good = (datetime(2026, 1, 1, tzinfo=timezone.utc), UUID(int=1), Point(Decimal("1.5")), Size.BIG, Color.RED)
with worker.eager():
    print(f.delay(*good, "\\u00fc").get())
    for wrong in (object(), float("nan"), {1, 2}, {3: 4}, b"x", "\\ud800", 2 ** 70):
        try:
            f.delay(*good, wrong)
        except TaskArgumentsError:
            continue
        raise SystemExit(f"{wrong!r} was sent")
"""


@pytest.mark.parametrize("missing", [(), ("pydantic",), ("pydantic", "orjson")])
def test_tasks_need_neither_pydantic_nor_orjson(missing):
    """The standard library's JSON refuses what orjson refuses."""
    run = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", PROGRAM, *missing],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.stdout == "ü 1.5\n", run.stderr


@dataclass
class Ratio:
    value: float


@pytest.mark.parametrize(
    "value", [float("inf"), [1.5, float("nan")], Ratio(float("nan")), {"a": float("inf")}]
)
def test_a_number_that_json_does_not_have_is_named(value):
    """An annotation would not help."""
    for annotation in (type(value), Any):
        with pytest.raises(
            TaskArgumentsError, match="cannot be a number in JSON|not JSON compliant"
        ):
            arguments(annotation).check("t", (value,), {})


def test_what_cannot_be_called_is_a_dead_letter():
    """A message of an older version of the task has other arguments."""
    worker = Worker(name="shop", dead_letters="DEAD")

    def note(at: datetime) -> None:
        pass

    note.__annotations__ = {"at": datetime}
    task = worker.task(note)
    outcome = worker.test_client().deliver(task, {"args": ["soon"]})
    assert outcome.kind == "dead"
    assert "argument 'at'" in str(outcome.error)


def test_a_member_of_an_enum_of_strings_is_a_string():
    """Where a string is asked for, it arrives as one; where nothing is asked for, it is refused."""
    worker = Worker(name="shop")

    seen: list[object] = []

    @worker.task
    def paint(color: str, size: int) -> None:
        seen.extend((color, size))

    @worker.task
    def note(value) -> None:  # type: ignore[no-untyped-def]
        pass

    with worker.eager():
        paint.delay(StrColor.RED, Size.BIG)
        with pytest.raises(TaskArgumentsError):
            note.delay(Color.RED)
    assert seen == ["red", 3]
    assert [type(value) for value in seen] == [str, int]
