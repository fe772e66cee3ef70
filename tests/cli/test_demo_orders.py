"""The business of the demo: orders, prices, tracking numbers, and reading them from lines."""

from __future__ import annotations

import io
import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_sync.cli.demo import orders
from jetstream_sync.cli.demo.intake import read_input, read_lines
from jetstream_sync.cli.demo.orders import OrderError
from jetstream_sync.cli.status import CommandError, ExitStatus


def order(**changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "id": "A-1",
        "customer": "C-1",
        "currency": "EUR",
        "country": "DE",
        "items": [{"sku": "X", "quantity": 2, "price": "19.90"}],
    }
    fields.update(changes)
    return {name: value for name, value in fields.items() if value is not ...}


def line(**changes: Any) -> bytes:
    return json.dumps(order(**changes)).encode()


def item(**changes: Any) -> list[dict[str, Any]]:
    fields = {"sku": "X", "quantity": 1, "price": "1.00", **changes}
    return [{name: value for name, value in fields.items() if value is not ...}]


# --- prices -------------------------------------------------------------------------------------


def test_total_is_goods_less_discount_plus_tax() -> None:
    """Ten or more of an article cost 5 percent less, and the tax is that of the country."""
    goods = [
        {"sku": "A", "quantity": 2, "price": "10.00"},
        {"sku": "B", "quantity": 10, "price": "1.00"},
    ]
    # 20.00 + 10.00 - 0.50 = 29.50; 19 % of it are 5.605, rounded up to 5.61.
    order_id, result = orders.process(line(items=goods), "NEW-1")
    assert order_id == "A-1"
    assert json.loads(result) == {
        "id": "A-1",
        "customer": "C-1",
        "currency": "EUR",
        "country": "DE",
        "units": 12,
        "goods_minor": 3000,
        "discount_minor": 50,
        "tax_minor": 561,
        "total_minor": 3511,
        "processed_by": "NEW-1",
    }
    assert orders.total(orders.parse(line(items=goods))) == 3511


@pytest.mark.parametrize(
    ("price", "currency", "minor"),
    [
        ("19.90", "EUR", 1990),
        (19.9, "EUR", 1990),
        (20, "EUR", 2000),
        ("0", "EUR", 0),
        ("500", "JPY", 500),
        ("1.234", "KWD", 1234),
        (0.1, "USD", 10),
        ("1e2", "EUR", 10000),
    ],
)
def test_price_is_exact_in_minor_units(price: object, currency: str, minor: int) -> None:
    """A price becomes an integer of the currency's minor unit, without a rounding."""
    parsed = orders.parse(line(currency=currency, items=item(price=price)))
    assert parsed.lines[0].price_minor == minor


@given(cents=st.integers(0, 10**10), as_float=st.booleans())
def test_every_price_of_whole_cents_is_kept(cents: int, as_float: bool) -> None:
    """Any price of whole cents survives, be it text or a JSON number."""
    text = f"{cents // 100}.{cents % 100:02d}"
    parsed = orders.parse(line(items=item(price=float(text) if as_float else text)))
    assert parsed.lines[0].price_minor == cents


def test_a_country_without_a_known_tax_pays_none() -> None:
    """The total of an order to a country that is not listed has no tax in it."""
    assert orders.total(orders.parse(line(country="ZZ"))) == 3980


def test_largest_order_fits_64_bits() -> None:
    """The largest order that is accepted has a total that every JSON library can write."""
    goods = item(quantity=10_000, price="100000000") * 1_000
    largest = line(currency="KWD", country="NO", items=goods)
    assert 0 < orders.total(orders.parse(largest)) < 2**63
    assert orders.complete(orders.process(largest, "NEW-1")[1], "DISPATCH-1")[0] == "A-1"


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "part"),
    [
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[1]", "not a JSON object but a list"),
        (b"null", "not a JSON object but nothing"),
        (b"NaN", "not JSON"),
        (line(id=...), "id:"),
        (line(id=""), "id:"),
        (line(id=True), "id:"),
        (line(id=1.5), "id:"),
        (line(id=" a"), "id:"),
        (line(id="a\r\nNats-Msg-Id: b"), "id:"),
        (line(id="a" * 129), "id:"),
        (line(customer=...), "customer:"),
        (line(customer=7), "customer: text is needed, not a number"),
        (line(currency="eur"), "currency:"),
        (line(currency="EURO"), "currency:"),
        (line(country="D"), "country:"),
        (line(country=...), "country:"),
        (line(items=...), "items:"),
        (line(items=[]), "items:"),
        (line(items={}), "items:"),
        (line(items=item() * 1_001), "items:"),
        (line(items=[7]), "item 1: not an object"),
        (line(items=item() + item(sku=...)), "item 2: sku:"),
        (line(items=item(quantity=0)), "item 1: quantity: 0 is out of range"),
        (line(items=item(quantity=10_001)), "item 1: quantity:"),
        (line(items=item(quantity=1.0)), "item 1: quantity:"),
        (line(items=item(quantity=True)), "item 1: quantity:"),
        (line(items=item(price=...)), "item 1: price:"),
        (line(items=item(price=True)), "item 1: price:"),
        (line(items=item(price="1,00")), "item 1: price: '1,00' is not a number"),
        (line(items=item(price="-1")), "item 1: price:"),
        (line(items=item(price="NaN")), "item 1: price:"),
        (line(items=item(price="1e999999")), "item 1: price:"),
        (line(items=item(price="1.001")), "item 1: price: 1.001 has more decimal places"),
        (line(items=item(price="1." + "0" * 40 + "1")), "has more decimal places"),
        (line(currency="JPY", items=item(price="0.5")), "item 1: price:"),
    ],
)
def test_bad_order_is_refused_with_the_field(payload: bytes, part: str) -> None:
    """An order that can not be priced is refused, and the error names the field."""
    with pytest.raises(OrderError) as caught:
        orders.process(payload, "NEW-1")
    assert part in str(caught.value)


@given(st.binary() | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(
        st.sampled_from(["id", "customer", "currency", "country", "items", "x"]), inner
    ),
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_garbage_is_an_order_error(payload: bytes) -> None:
    """Whatever bytes arrive, the steps refuse them with an order error and nothing else."""
    for step in (orders.process, orders.complete):
        with pytest.raises(OrderError):
            step(payload, "W")
    with pytest.raises(OrderError):
        orders.settle(payload)


def test_unknown_fields_are_ignored() -> None:
    """An order may have more fields than the demo looks at."""
    assert orders.parse(line(note="leave at the door")) == orders.parse(line())


def test_integer_id_is_its_text() -> None:
    """An id may be a JSON integer; it is the same id as its text."""
    assert orders.parse(line(id=17)).id == "17"


# --- the next steps -----------------------------------------------------------------------------


def test_dispatch_keeps_total_and_adds_tracking() -> None:
    """A completed order has the id, currency and total of the processed one, and a number."""
    _, processed = orders.process(line(items=item(quantity=41)), "NEW-1")
    order_id, completed = orders.complete(processed, "DISPATCH-2")
    fields = json.loads(completed)
    assert order_id == "A-1"
    assert orders.settle(completed) == orders.settle(processed)
    assert fields["parcels"] == 3
    assert fields["carrier"] == "road"
    assert fields["tracking_number"] == orders.tracking_number("A-1")
    assert fields["dispatched_by"] == "DISPATCH-2"


def test_dispatch_refuses_an_order_that_was_not_processed() -> None:
    """An order without a total can not be dispatched."""
    with pytest.raises(OrderError, match="units"):
        orders.complete(line(), "DISPATCH-1")


def test_check_digit_is_that_of_s10() -> None:
    """The examples of the postal standard have the check digits that it gives them."""
    assert orders.check_digit("47312482") == 9
    # 11 - 0 is 11, which stands for 5; 11 - 1 is 10, which stands for 0.
    assert orders.check_digit("00000000") == 5
    assert orders.check_digit("00100010") == {0: 5, 1: 0}.get((4 + 9) % 11, 11 - (4 + 9) % 11)


@given(st.permutations(range(20)))
def test_sum_of_fingerprints_ignores_the_order(numbers: list[int]) -> None:
    """The sum of fingerprints is the same in any order of the orders."""
    prints = [orders.fingerprint(f"A-{n}", "EUR", n) for n in numbers]
    assert sum(prints) == sum(orders.fingerprint(f"A-{n}", "EUR", n) for n in range(20))


def test_fingerprint_tells_id_currency_and_total_apart() -> None:
    """A change of any one of id, currency and total changes the fingerprint."""
    prints = {
        orders.fingerprint("A-1", "EUR", 1),
        orders.fingerprint("A-2", "EUR", 1),
        orders.fingerprint("A-1", "USD", 1),
        orders.fingerprint("A-1", "EUR", 2),
    }
    assert len(prints) == 4


# --- reading ------------------------------------------------------------------------------------


def test_lines_are_read_as_they_are() -> None:
    """Payloads are the lines without white space around; blank lines and a mark are skipped."""
    lines = [b"\xef\xbb\xbf" + line(id=1) + b"\r\n", b"\n", b"  " + line(id=2)]
    read = read_lines(lines, "orders")
    assert [o.id for o in read] == ["1", "2"]
    assert [o.payload for o in read] == [line(id=1), line(id=2)]
    assert read[0].fingerprint == orders.fingerprint("1", "EUR", 3980 + 756)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "orders: there are no orders in it"),
        ([b"\n", b" \n"], "orders: there are no orders in it"),
        ([line(), b"", b"[]"], "orders, line 3: not a JSON object but a list"),
        (
            [b"", line(id="B"), line(id="A"), line(id="B")],
            "orders, line 4: order 'B' is on line 2 already",
        ),
        ([line(id="1"), line(id=1)], "orders, line 2: order '1' is on line 1 already"),
    ],
)
def test_bad_input_is_refused_with_file_and_line(lines: list[bytes], message: str) -> None:
    """Input that can not be run is wrong usage, and the error names the file and the line."""
    with pytest.raises(CommandError) as caught:
        read_lines(lines, "orders")
    assert str(caught.value) == message
    assert caught.value.status is ExitStatus.USAGE


def test_input_that_can_not_be_opened_is_refused(tmp_path: Path) -> None:
    """A missing file and a directory are wrong usage, and the error names them."""
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(CommandError, match="can not read") as caught:
            read_input(str(path), io.BytesIO())
        assert str(path) in str(caught.value)
        assert caught.value.status is ExitStatus.USAGE


def test_input_from_a_file_and_from_standard_input(tmp_path: Path) -> None:
    """``-`` is standard input; anything else is a path."""
    path = tmp_path / "orders.jsonl"
    path.write_bytes(line(id=1) + b"\n")
    assert [o.id for o in read_input(str(path), io.BytesIO())] == ["1"]
    assert [o.id for o in read_input("-", io.BytesIO(line(id=2)))] == ["2"]


def test_sample_is_what_its_generator_makes() -> None:
    """The sample that ships is 5,000 orders, byte for byte those of the seeded generator."""
    generator = runpy.run_path(str(Path(__file__).with_name("make_orders.py")))
    sample = read_input(None, io.BytesIO())
    made = [made_line.encode() for made_line in generator["make_orders"]()]
    assert len(made) == 5_000
    assert [o.payload for o in sample] == made
