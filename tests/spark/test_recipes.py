"""The programs of the page ``docs/howto/spark-recipes.rst`` do what the page says."""

from __future__ import annotations

import io
import json
import runpy
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fixtures.apps import APPS, Program
from fixtures.django import postgres_server
from fixtures.spark import Driver, batches, forget_commit, need_java, spark_environment
from fixtures.threads import SCALE, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from jetstream_sync import JetStream
    from jetstream_sync.server import NatsServer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(200 * SCALE)]
full = pytest.mark.full

PROGRAMS = APPS / "spark"
#: The result of an order: its id, its country and its price in cents.
ROWS = [(f"SO-{number}", ("de", "fr")[number % 2], 100 + number) for number in range(20)]
ORDERS = "SELECT id, country, cents FROM orders ORDER BY cents"


class Recipes:
    """The functions of ``recipes.py``, run until their query ends, with one checkpoint."""

    def __init__(self, spark: SparkSession, checkpoint: Path) -> None:
        self._spark = spark
        self.checkpoint = checkpoint
        self._functions = runpy.run_path(str(PROGRAMS / "recipes.py"))
        self._functions |= runpy.run_path(str(PROGRAMS / "formats.py"))

    def call(self, name: str, *arguments: object) -> Any:
        """Call a function that has the session as its first argument."""
        return self._functions[name](self._spark, *arguments)

    def run(self, name: str, *arguments: object) -> StreamingQuery:
        """Run a query to its end, and return it."""
        query: StreamingQuery = self.call(name, self.checkpoint, *arguments)
        assert query.awaitTermination(int(60 * SCALE)), "the query does not end"
        return query

    def repeat_last_batch(self, name: str, *arguments: object) -> None:
        """Run a query again as if its driver had died before the last batch was committed."""
        forget_commit(self.checkpoint, batches(self.checkpoint)[-1])
        query = self.run(name, *arguments)
        assert query.recentProgress[0]["numInputRows"] > 0

    def saved(self, folder: Path) -> DataFrame:
        """Return the rows of all Parquet files of a folder."""
        return self._spark.read.parquet(str(folder))


@pytest.fixture
def recipes(
    spark: SparkSession, nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Recipes:
    """Return the recipes, for the shared server."""
    monkeypatch.setenv("NATS_URL", nats_server.url)
    return Recipes(spark, tmp_path / "checkpoint")


@pytest.fixture(autouse=True)
def orders(js: JetStream) -> None:
    """The stream that all recipes read, empty."""
    js.create_stream(name="ORDERS", subjects=["ORDERS.*"], storage="memory")


def place(js: JetStream, rows: list[tuple[str, str, int]] = ROWS, minute: int = 0) -> None:
    """Publish orders, all in one minute."""
    for number, country, cents in rows:
        at = f"2026-01-31T12:{minute:02}:00Z"
        order = {"id": number, "country": country, "cents": cents, "ordered_at": at}
        js.publish_async("ORDERS.received", json.dumps(order).encode())
    js.publish_async_completed(20 * SCALE)


def messages(js: JetStream, stream: str) -> list[tuple[str, Any, str | None]]:
    """Return the subject, the JSON and the reason of each message of a stream."""
    last = js.get_stream(stream).info().state.last_seq
    found = [js.get_stream(stream).get_msg(seq) for seq in range(1, last + 1)]
    return [
        (msg.subject, msg.data, None if msg.headers is None else msg.headers.get("Reason"))
        for msg in found
    ]


def values(js: JetStream, stream: str) -> list[dict[str, Any]]:
    """Return the JSON of each message of a stream."""
    return [json.loads(data) for _, data, _ in messages(js, stream)]


@full
def test_dead_letters(js, recipes):
    """Each order that does not fit the schema is on the dead-letter subject, with the reason."""
    js.create_stream(name="CHECKED", subjects=["checked.*"], duplicate_window=3600)
    wrong = {
        b"{": "no valid JSON",
        b'{"id": "x", "cents": "many"}': "no valid JSON",
        b'{"cents": 1}': "no id",
        b'{"id": "x", "cents": 0}': "no positive price",
    }
    place(js)
    for data in wrong:
        js.publish("ORDERS.received", data)
    recipes.run("dead_letters")
    recipes.repeat_last_batch("dead_letters")
    found = messages(js, "CHECKED")
    assert len(found) == len(ROWS) + len(wrong)
    dead = {data: reason for subject, data, reason in found if subject == "checked.dead"}
    assert dead == wrong


@full
def test_windows(js, recipes):
    """The total of a minute is published once, after the watermark has passed it."""
    js.create_stream(name="TOTALS", subjects=["totals.*"], duplicate_window=3600)
    place(js)
    recipes.run("windows")
    assert messages(js, "TOTALS") == []
    place(js, [("late", "de", 1)])
    place(js, [("later", "de", 5)], minute=10)
    recipes.run("windows")
    place(js, [("too late", "de", 1)])
    recipes.run("windows")
    totals = {(subject, json.loads(data)["cents"]) for subject, data, _ in messages(js, "TOTALS")}
    cents = {name: sum(row[2] for row in ROWS if row[1] == name) for name in ("de", "fr")}
    assert totals == {("totals.de", cents["de"] + 1), ("totals.fr", cents["fr"])}
    assert len(messages(js, "TOTALS")) == 2


@full
def test_joined_streams(js, recipes):
    """An order is published with its payment in time, whichever of them is read first."""
    js.create_stream(name="PAID", subjects=["paid"], duplicate_window=3600)

    def pay(number: str, minute: int) -> None:
        paid = {"order_id": number, "paid_at": f"2026-01-31T12:{minute:02}:00Z"}
        js.publish("ORDERS.paid", json.dumps(paid).encode())

    pay("SO-0", 1)
    pay("SO-1", 11)
    recipes.run("joined_streams")
    place(js)
    recipes.run("joined_streams")
    pay("SO-2", 10)
    recipes.run("joined_streams")
    found = sorted((value["id"], value["cents"]) for value in values(js, "PAID"))
    assert found == [("SO-0", 100), ("SO-2", 102)]


@full
def test_joined_bucket(js, recipes):
    """Each run sees the current values of the bucket."""
    js.create_stream(name="NAMED", subjects=["named"], duplicate_window=3600)
    countries = js.create_key_value(bucket="COUNTRIES")
    countries.put("de", b"Germany")
    place(js, ROWS[:2])
    recipes.run("joined_bucket")
    countries.put("fr", b"France")
    place(js, ROWS[2:4])
    recipes.run("joined_bucket")
    found = {value["id"]: value.get("country") for value in values(js, "NAMED")}
    assert found == {"SO-0": "Germany", "SO-1": None, "SO-2": "Germany", "SO-3": "France"}


@full
def test_parquet_and_changed_subjects(js, recipes, tmp_path):
    """
    A repeated batch replaces its files.

    With other subjects the query continues at its position; a batch reads what is older.
    """
    folder = tmp_path / "orders"
    for number in range(1, 7):
        js.publish(f"ORDERS.{'received' if number % 2 else 'cancelled'}", b"%d" % number)
    query = recipes.run("parquet", folder, "ORDERS.received")
    recipes.repeat_last_batch("parquet", folder, "ORDERS.received")
    assert sorted(row.sequence for row in recipes.saved(folder).collect()) == [1, 3, 5]
    js.publish("ORDERS.cancelled", b"7")
    recipes.run("parquet", folder, "ORDERS.received,ORDERS.cancelled")
    later = [row.sequence for row in recipes.saved(folder).collect()]
    assert sorted(later)[:3] == [1, 3, 5]
    assert 7 in later
    earlier = [
        row.sequence for row in recipes.call("catch_up", query, "ORDERS.cancelled").collect()
    ]
    assert 2 in earlier
    assert sorted([*earlier, *later]) == list(range(1, 8))


ENCODED = {
    1: [{"name": "id", "type": "string"}, {"name": "cents", "type": "long"}],
    7: [
        {"name": "id", "type": "string"},
        {"name": "cents", "type": "long"},
        {"name": "country", "type": "string", "default": "unknown"},
    ],
}


def encoded_streams(
    js: JetStream, format_name: str, valid: list[bytes], invalid: list[bytes]
) -> None:
    """Create the streams of the recipes for other formats, and publish payloads."""
    js.create_stream(name="ENCODED", subjects=["encoded.*"], storage="memory")
    js.create_stream(name="DECODED", subjects=["decoded.*"], duplicate_window=3600)
    for data in valid + invalid:
        js.publish(f"encoded.{format_name}", data)


def decoded_orders(js: JetStream) -> tuple[list[Any], list[bytes]]:
    """Return the decoded orders, and the payloads that could not be decoded."""
    found = messages(js, "DECODED")
    orders = [json.loads(data) for subject, data, _ in found if subject == "decoded.valid"]
    return orders, [data for subject, data, _ in found if subject == "decoded.dead"]


@full
def test_avro_of_a_schema_registry(js, recipes):
    """Messages with two schemas are decoded by the id in their header; others are dead letters."""
    import fastavro

    schemas = {
        number: {"type": "record", "name": "Order", "fields": fields}
        for number, fields in ENCODED.items()
    }

    def encoded(number: int, order: dict[str, Any]) -> bytes:
        buffer = io.BytesIO(b"\0" + number.to_bytes(4, "big"))
        buffer.seek(5)
        fastavro.schemaless_writer(buffer, fastavro.parse_schema(schemas[number]), order)
        return buffer.getvalue()

    orders = [{"id": "a", "cents": 1}, {"id": "b", "cents": 2, "country": "de"}]
    valid = [encoded(1, orders[0]), encoded(7, orders[1])]
    assert valid[0] == b"\0\0\0\0\1\2a\2"
    invalid = [b"", b"\0\0", b"\1" + valid[0][1:], b"\0\0\0\0\2\2a\2", valid[0][:-1]]
    encoded_streams(js, "avro", valid, invalid)
    recipes.run("avro", schemas)
    recipes.repeat_last_batch("avro", schemas)
    assert decoded_orders(js) == ([{**orders[0], "country": "unknown"}, orders[1]], invalid)


@full
def test_protobuf(js, recipes, tmp_path):
    """Messages are decoded with a file of descriptors; others are dead letters."""
    from google.protobuf import descriptor_pb2

    descriptors = descriptor_pb2.FileDescriptorSet()
    file = descriptors.file.add(name="order.proto", package="shop", syntax="proto3")
    order = file.message_type.add(name="Order")
    kinds = descriptor_pb2.FieldDescriptorProto
    for number, (name, kind) in enumerate(
        (("id", kinds.TYPE_STRING), ("cents", kinds.TYPE_INT32)), 1
    ):
        order.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    path = tmp_path / "orders.desc"
    path.write_bytes(descriptors.SerializeToString())
    valid, invalid = [b"\x0a\x01a\x10\x01", b"\x0a\x01b\x10\x02"], [b"\x0a\x05a", b"\xff"]
    encoded_streams(js, "protobuf", valid, invalid)
    recipes.run("protobuf", path, "shop.Order")
    recipes.repeat_last_batch("protobuf", path, "shop.Order")
    expected = [{"id": "a", "cents": 1}, {"id": "b", "cents": 2}]
    assert decoded_orders(js) == (expected, invalid)


@full
def test_postgresql(js, recipes):
    """Every order is stored once, also after a failure between two partitions of a batch."""
    import psycopg

    with postgres_server() as settings:
        database = "host={PGHOST} user={PGUSER} dbname={PGDATABASE}".format_map(settings)
        rows = [(f"SO-{number}", "de", number + 1) for number in range(1_200)]
        place(js, rows)
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(
                "CREATE TABLE orders (sequence bigint, micros bigint, id text, country text,"
                " cents bigint CHECK (cents <> 1200), PRIMARY KEY (sequence, micros))"
            )
            with pytest.raises(Exception, match="violates check constraint"):
                recipes.run("postgresql", database)
            stored = connection.execute("SELECT count(*) FROM orders").fetchone()
            assert stored is not None
            assert stored[0] < len(rows)
            connection.execute("ALTER TABLE orders DROP CONSTRAINT orders_cents_check")
            recipes.run("postgresql", database)
            recipes.repeat_last_batch("postgresql", database)
            found = connection.execute(ORDERS).fetchall()
    assert found == rows


@full
@pytest.mark.timeout(600 * SCALE)
def test_postgresql_after_kills(js, nats_server, tmp_path):
    """
    Every order is stored once when the driver is killed within a partition, and when a commit is lost.

    Without the daemon of Spark's Python workers, which often ends them in time, a worker takes the end of the killed
    JVM for the end of its rows, and commits them.
    """
    import psycopg

    need_java()
    rows = [(f"SO-{number}", "de", number + 1) for number in range(20_000)]
    place(js, rows)
    checkpoint = tmp_path / "checkpoint"
    with postgres_server() as settings:
        database = "host={PGHOST} user={PGUSER} dbname={PGDATABASE}".format_map(settings)
        code = f"""
import runpy
recipes = runpy.run_path({str(PROGRAMS / "recipes.py")!r})
names = recipes["read"].__globals__
read, delay = names["read"], "reflect('java.lang.Thread', 'sleep', DELAYL) != ''"
names["read"] = lambda *args, **options: read(*args, **options).where(delay)
settings = {{"spark.python.use.daemon": "false", "spark.buffer.size": "4096"}}
spark = session(home, "local[2]", **settings)
recipes["postgresql"](spark, {str(checkpoint)!r}, {database!r}).awaitTermination()
spark.stop()
"""
        with psycopg.connect(database, autocommit=True) as connection:

            def stored() -> int:
                if connection.execute("SELECT to_regclass('orders')").fetchone() == (None,):
                    return 0
                (count,) = connection.execute("SELECT count(*) FROM orders").fetchone() or (0,)
                return int(count)

            def is_copying() -> bool:
                """Return whether a task is in its middle: it has begun, and its rows take four seconds."""
                age = "SELECT max(now() - query_start) > interval '2.5 s' FROM pg_stat_activity"
                return connection.execute(f"{age} WHERE query LIKE 'COPY part%'").fetchone() == (
                    True,
                )

            short = 0
            for _ in range(2):
                before = stored()
                with Driver(code.replace("DELAY", "4"), tmp_path, nats_server.url) as driver:
                    wait_until(lambda before=before: stored() > before and is_copying(), 120)
                    driver.kill()
                assert stored() < len(rows)
                short += stored() % 1000
            assert short
            for _ in range(2):
                with Driver(code.replace("DELAY", "0"), tmp_path, nats_server.url) as driver:
                    assert driver.ended(120) == 0, driver.output
                assert connection.execute(ORDERS).fetchall() == rows
                forget_commit(checkpoint, batches(checkpoint)[-1])


@full
def test_a_restored_checkpoint_with_parquet_and_postgresql(js, recipes, tmp_path):
    """The folders of later batches are replaced; the table has each message once, also with a new checkpoint."""
    import psycopg

    folder, copy = tmp_path / "orders", tmp_path / "copy"
    place(js, ROWS[:5])
    recipes.run("parquet", folder, "ORDERS.received")
    shutil.copytree(recipes.checkpoint, copy)
    for _ in range(2):
        place(js, ROWS[:5])
        recipes.run("parquet", folder, "ORDERS.received")
    shutil.rmtree(recipes.checkpoint)
    copy.rename(recipes.checkpoint)
    recipes.run("parquet", folder, "ORDERS.received")
    assert sorted(row.sequence for row in recipes.saved(folder).collect()) == list(range(1, 16))

    with postgres_server() as settings:
        database = "host={PGHOST} user={PGUSER} dbname={PGDATABASE}".format_map(settings)
        shutil.rmtree(recipes.checkpoint)
        recipes.run("postgresql", database)
        shutil.copytree(recipes.checkpoint, copy)
        for _ in range(2):
            place(js, ROWS[:5])
            recipes.run("postgresql", database)
        shutil.rmtree(recipes.checkpoint)
        copy.rename(recipes.checkpoint)
        recipes.run("postgresql", database)
        shutil.rmtree(recipes.checkpoint)
        recipes.run("postgresql", database)
        with psycopg.connect(database) as connection:
            found = connection.execute("SELECT sequence FROM orders ORDER BY sequence").fetchall()
            assert [sequence for (sequence,) in found] == list(range(1, 26))


@full
def test_replay_and_reread(js, recipes):
    """A new checkpoint starts at a time; the same messages are read again without duplicates."""
    js.create_stream(name="COPY", subjects=["copy"], duplicate_window=3600)
    place(js, ROWS[:5])
    middle = js.get_stream("ORDERS").get_msg(3).time.isoformat()
    recipes.run("replay", middle)
    assert len(messages(js, "COPY")) == 3
    for _ in range(2):
        recipes.call("reread", "2026-01-01T00:00:00Z", "2100-01-01T00:00:00Z")
    assert len(messages(js, "COPY")) == 5


def test_backfill(js, recipes, tmp_path):
    """The batch and the query read each message once."""
    place(js)
    recipes.run("backfill", tmp_path / "orders", 11)
    place(js)
    recipes.run("backfill", tmp_path / "orders", 11)
    saved = recipes.saved(tmp_path / "orders").collect()
    assert sorted(row.sequence for row in saved) == list(range(1, 41))


@full
def test_nightly(js, nats_server, tmp_path):
    """Each run of the program processes what was stored since the last one."""
    need_java()
    for count in (20, 3):
        place(js, ROWS[:count])
        command = [str(PROGRAMS / "nightly.py"), str(tmp_path / "orders")]
        with Program(command, nats_server.url, tmp_path, variables=spark_environment()) as program:
            assert program.ended(120) == 0, program.output
            assert program.output.splitlines()[-1] == f"{count} new messages"
