"""The orders of the demo: prices, what each stage makes of an order, and the input."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_sync.cli.demo import orders
from jetstream_sync.cli.demo.orders import InputOrder, OrderError, read_orders
from jetstream_sync.cli.status import CommandError, ExitStatus


def line(**changes: Any) -> bytes:
    """An order as a line of the input; ``...`` leaves a field out."""
    fields: dict[str, Any] = {"id": "A-1", "items": item(quantity=2, price="19.90"), **changes}
    return json.dumps({name: value for name, value in fields.items() if value is not ...}).encode()


def item(**changes: Any) -> list[dict[str, Any]]:
    fields = {"sku": "X", "quantity": 1, "price": "1.00", **changes}
    return [{name: value for name, value in fields.items() if value is not ...}]


def read(*lines: bytes) -> list[InputOrder]:
    return read_orders("-", io.BytesIO(b"\n".join(lines)))


def test_a_priced_order_has_the_sum_of_its_items() -> None:
    """NEW adds up quantity times price, in hundredths, and DISPATCH keeps that total."""
    goods = item(quantity=2, price="10.00") + item(quantity=41, price="0.01")
    order_id, priced = orders.price(line(items=goods), "NEW-1")
    assert order_id == "A-1"
    assert json.loads(priced) == {
        "id": "A-1",
        "units": 43,
        "total": 2041,
        "processed_by": "NEW-1",
    }
    order_id, completed = orders.dispatch(priced, "DISPATCH-2")
    fields = json.loads(completed)
    assert order_id == "A-1"
    assert (fields["total"], fields["parcels"], fields["dispatched_by"]) == (2041, 3, "DISPATCH-2")
    assert fields["tracking_number"].startswith("JS")
    for stage, payload in (("received", line(items=goods)), ("completed", completed)):
        assert orders.result(stage, payload) == ("A-1", 2041)


def test_dispatch_refuses_an_order_that_was_not_priced() -> None:
    """An order without a total cannot be dispatched."""
    with pytest.raises(OrderError, match="units"):
        orders.dispatch(line(), "DISPATCH-1")


@given(cents=st.integers(0, 10**10), as_float=st.booleans())
def test_every_price_of_whole_cents_is_kept(cents: int, as_float: bool) -> None:
    """A price with two decimal places is exact, as text and as a JSON number."""
    text = f"{cents // 100}.{cents % 100:02d}"
    payload = line(items=item(price=float(text) if as_float else text))
    assert orders.result("received", payload) == ("A-1", cents)


@pytest.mark.parametrize(
    ("payload", "part"),
    [
        (b"{", "invalid JSON"),
        (b"\xff\xfe", "invalid JSON"),
        (b"[1]", "must be a JSON object, not list"),
        (line(id=...), "id: null must be"),
        (line(id=""), "id:"),
        (line(id=True), "id:"),
        (line(id=1.5), "id:"),
        (line(id=" a"), "id:"),
        (line(id="a\r\nNats-Msg-Id: b"), "id:"),
        (line(id="a" * 129), "id:"),
        (line(items=...), "items:"),
        (line(items=[]), "items:"),
        (line(items={}), "items:"),
        (line(items=item() * 1_001), "items:"),
        (line(items=[7]), "item 1: must be an object"),
        (line(items=item() + item(quantity=0)), "item 2: quantity: 0 must be an integer from 1"),
        (line(items=item(quantity=10_001)), "item 1: quantity:"),
        (line(items=item(quantity=1.0)), "item 1: quantity:"),
        (line(items=item(quantity=True)), "item 1: quantity:"),
        (line(items=item(price=...)), "item 1: price: null must be a number"),
        (line(items=item(price=True)), "item 1: price:"),
        (line(items=item(price="1,00")), "item 1: price: '1,00' must be a number"),
        (line(items=item(price="-1")), "item 1: price:"),
        (line(items=item(price="NaN")), "item 1: price:"),
        (line(items=item(price="1e999999")), "item 1: price:"),
        (line(items=item(price="1.001")), "at most two decimal places"),
        (line(items=item(price="1." + "0" * 40 + "1")), "at most two decimal places"),
    ],
)
def test_a_bad_order_is_refused_with_the_field(payload: bytes, part: str) -> None:
    """The error names the field, its value and the rule."""
    with pytest.raises(OrderError) as caught:
        orders.price(payload, "NEW-1")
    assert part in str(caught.value)


@given(
    st.binary()
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.fixed_dictionaries({}, optional={"id": inner, "items": inner, "x": inner})
        ),
        max_leaves=6,
    ).map(lambda value: json.dumps(value).encode())
)
def test_garbage_is_an_order_error(payload: bytes) -> None:
    """Every step refuses arbitrary bytes and JSON with an order error and nothing else."""
    for step in (orders.price, orders.dispatch):
        with pytest.raises(OrderError):
            step(payload, "W")
    with pytest.raises(OrderError):
        orders.result("processed", payload)


def test_the_input_is_one_order_per_line() -> None:
    """Blank lines, surrounding white space and a byte order mark are skipped; ids become text."""
    found = read(b"\xef\xbb\xbf" + line(id=1) + b"\r", b"", b"  " + line(id="2", note="ignored"))
    assert [(order.id, order.total) for order in found] == [("1", 3980), ("2", 3980)]
    assert found[0].payload == line(id=1)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "standard input contains no orders"),
        ([b"", b" "], "standard input contains no orders"),
        ([line(), b"", b"[]"], "standard input, line 3: must be a JSON object, not list"),
        (
            [b"", line(id="B"), line(id="A"), line(id="B")],
            "standard input, line 4: order 'B' is already on line 2; each id must occur once",
        ),
        (
            [line(id="1"), line(id=1)],
            "standard input, line 2: order '1' is already on line 1; each id must occur once",
        ),
    ],
)
def test_bad_input_is_refused_with_its_line(lines: list[bytes], message: str) -> None:
    """Input that is not all orders is wrong usage."""
    with pytest.raises(CommandError) as caught:
        read(*lines)
    assert str(caught.value) == message
    assert caught.value.status is ExitStatus.USAGE


def test_a_file_is_read_by_its_path(tmp_path: Path) -> None:
    """A missing file and a directory are wrong usage, and the error names them."""
    path = tmp_path / "orders.jsonl"
    path.write_bytes(line(id=1) + b"\n")
    assert [order.id for order in read_orders(str(path), io.BytesIO())] == ["1"]
    for wrong in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(CommandError, match="cannot read") as caught:
            read_orders(str(wrong), io.BytesIO())
        assert str(wrong) in str(caught.value)
        assert caught.value.status is ExitStatus.USAGE


def test_the_sample_is_the_same_in_every_run() -> None:
    """The generated sample has 5,000 orders, and a second one is equal."""
    sample = read_orders(None, io.BytesIO())
    assert len(sample) == 5_000
    assert sample == read_orders(None, io.BytesIO())
