"""The options of the Spark source and sink: accepted values, refused values and error texts."""

from __future__ import annotations

import pickle
import re
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from fixtures.exact import as_member, as_subclass
from hypothesis import given
from hypothesis import strategies as st

from jetstream_sync.durations import time_to_ns
from jetstream_sync.errors import InvalidOptionError
from jetstream_sync.spark import ReadOptions, WriteOptions
from jetstream_sync.spark.option_values import KAFKA_OPTIONS, option_names
from jetstream_sync.spark.options import EARLIEST, LATEST, READ_OPTIONS, exposed_secrets

SINK_OPTIONS = set(option_names(WriteOptions)) - set(READ_OPTIONS)


def read(**options: str) -> ReadOptions:
    return ReadOptions.from_options({"stream": "ORDERS", **options})


def write(**options: str) -> WriteOptions:
    return WriteOptions.from_options({"stream": "ORDERS", **options})


def refusal(call: object, **options: str) -> InvalidOptionError:
    with pytest.raises(InvalidOptionError) as caught:
        call(**options)  # type: ignore[operator]
    return caught.value


def test_names_are_case_insensitive():
    """Spark converts the names of options to lower case."""
    assert read(maxrecordsperpartition="5").max_records_per_partition == 5
    assert read(MAXRECORDSPERPARTITION="5").max_records_per_partition == 5


def test_an_unknown_option_is_refused_with_the_nearest_name():
    """The error suggests the closest name, and omits the value, which may be a secret."""
    error = refusal(read, startingOffset="earliest")
    assert error.option == "startingOffset"
    assert "startingOffsets" in str(error)
    assert "hunter2" not in str(refusal(read, pasword="hunter2"))
    assert refusal(write, subjects="orders.a").option == "subjects"  # of a source
    assert "password" in str(refusal(read, pasword="hunter2"))


def test_options_added_by_spark_are_ignored():
    """Spark adds the checkpoint location and the query name to the user's options."""
    assert write(checkpointLocation="/somewhere", queryName="orders") == write()
    assert read(checkpointLocation="/somewhere", queryName="orders") == read()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"streamPattern": "ORDERS_*"}, "streamPattern"),
        ({"startingOffsets": "latest", "startingTimestamp": "0"}, "startingTimestamp"),
        ({"user": "u", "token": "t"}, "token"),
        ({"password": "p"}, "password"),
        ({"user": "u", "password": "p", "passwordFile": "f"}, "passwordFile"),
        ({"credsFile": "f", "nkeySeed": "s"}, "nkeySeed"),
        ({"tlsKey": "k.pem"}, "tlsKey"),
        ({"domain": "D", "apiPrefix": "$JS.D.API"}, "apiPrefix"),
        ({"minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "9"}, "minOffsetsPerTrigger"),
        ({"maxTriggerDelay": "1m"}, "maxTriggerDelay"),
        ({"subjects": "orders.*,orders.new"}, "subjects"),
        ({"subjects": "orders.a,orders.a"}, "subjects"),
        (
            {"startingTimestamp": "0", "startingOffsetsByTimestamp": "{}"},
            "startingOffsetsByTimestamp",
        ),
        ({"startingTimestamp": "2", "endingTimestamp": "1"}, "endingTimestamp"),
        (
            {"startingTimestamp": "2000", "endingOffsetsByTimestamp": '{"ORDERS": 1}'},
            "endingOffsetsByTimestamp",
        ),
        ({"stream": "A,B", "consumer": "lag"}, "consumer"),
        ({"stream": "A,B", "startingOffsets": '{"A": 1}'}, "startingOffsets"),
        ({"startingOffsets": '{"OTHER": 1}'}, "startingOffsets"),
        ({"delivery": "exactly-once"}, "delivery"),
        ({"delivery": "transaction"}, "markerSubject"),
        ({"markerSubject": "m"}, "markerSubject"),
        ({"delivery": "at-least-once", "ids": "content"}, "ids"),
        ({"delivery": "at-least-once", "expectedRecovery": "1m"}, "expectedRecovery"),
        ({"subject": "orders.*"}, "subject"),
        ({"maxPending": "0"}, "maxPending"),
        ({"overwriteMode": "truncate"}, "overwriteMode"),
        ({"onShortWindow": "ignore"}, "onShortWindow"),
    ],
)
def test_contradictions_are_refused(options, named):
    """Options that exclude or require each other, of a source or a sink, are refused by name."""
    call = write if options.keys() & SINK_OPTIONS else read
    assert refusal(call, **options).option == named


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("stream", "a.b"),
        ("stream", "A,,B"),
        ("stream", " "),
        ("subjects", "a..b"),
        ("startingOffsets", "newest"),
        ("startingOffsets", "[1]"),
        ("startingOffsets", '{"ORDERS": 0}'),
        ("startingOffsets", '{"ORDERS": -3}'),
        ("startingOffsets", '{"ORDERS": "7"}'),
        ("endingOffsets", "earliest"),
        ("endingOffsets", '{"ORDERS": -2}'),
        ("startingTimestamp", "2026-01-31T12:00:00"),
        ("startingTimestamp", "yesterday"),
        ("maxOffsetsPerTrigger", "0"),
        ("maxBytesPerTrigger", "4 apples"),
        ("failOnDataLoss", "maybe"),
        ("readMode", "push"),
        ("batchBytes", "12"),
        ("batchBytes", "1GB"),
        ("planningTimeout", "nan"),
        ("pushdown", "true"),
        ("domain", "a.b"),
        ("servers", "http://host"),
    ],
)
def test_a_value_out_of_range_is_refused(option, value):
    """The error names the option and the accepted values."""
    error = refusal(read, **{option: value})
    assert error.option == option
    assert error.reason


def test_a_stream_is_required():
    """A source needs a stream or a pattern, and a sink needs a stream."""
    with pytest.raises(InvalidOptionError) as caught:
        ReadOptions.from_options({})
    assert caught.value.option == "stream"
    with pytest.raises(InvalidOptionError) as caught:
        WriteOptions.from_options({})
    assert caught.value.option == "stream"
    assert ReadOptions.from_options({"streamPattern": "ORDERS_*"}).stream_pattern == "ORDERS_*"
    assert ReadOptions.from_options({"streamPattern": "/A|B/"}).stream_pattern == "/A|B/"


@pytest.mark.parametrize("pattern", ["/(/", "a.b", "A B"])
def test_an_invalid_pattern_is_refused(pattern):
    """A pattern contains characters of stream names and asterisks, or is a regular expression."""
    with pytest.raises(InvalidOptionError) as caught:
        ReadOptions.from_options({"streamPattern": pattern})
    assert caught.value.option == "streamPattern"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10", 10), ("0.5", 0.5), ("500ms", 0.5), ("10s", 10), ("2m", 120), ("1h30m", 5400)],
)
def test_durations(text, seconds):
    """A duration is a number of seconds, or a Go duration."""
    assert read(planningTimeout=text).planning_timeout == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("65536", 65536),
        ("4MB", 4_000_000),
        ("4MiB", 4 * 1024**2),
        ("4mib", 4 * 1024**2),
        ("1.5 MB", 1_500_000),
        ("64KiB", 65536),
        ("2000B", 2000),
    ],
)
def test_sizes(text, size):
    """A size is a number of bytes, or a number with a unit of 1000 or 1024."""
    assert read(batchBytes=text).batch_bytes == size


@pytest.mark.parametrize("text", ["4M", "4m", "4 k", "4Mi", "64K", "4G"])
def test_a_size_with_a_single_letter_is_refused(text):
    """In Spark's own options ``4m`` is 4 MiB, elsewhere 4 MB."""
    error = refusal(read, batchBytes=text)
    assert (error.option, error.value) == ("batchBytes", text)
    assert "4MB or 4MiB" in error.reason


def test_starting_offsets():
    """Offsets are a keyword for all streams, or a sequence or negative number for each."""
    earliest = read(startingOffsets="Earliest").starting_offsets
    latest = read(startingOffsets="latest").starting_offsets
    assert earliest.of("ANY") == EARLIEST
    assert latest.of("ANY") == LATEST
    starting = read(stream="A,B,C", startingOffsets='{"A": 17, "B": -2, "C": -1}').starting_offsets
    assert [starting.of(name) for name in ("A", "B", "C", "D")] == [17, EARLIEST, LATEST, None]


def test_offsets_as_for_kafka():
    """An offset may be that of the only partition, and a number applies to all streams."""
    for text in ('{"ORDERS": {"0": 23}}', '{"ORDERS": 23}', "23"):
        found = read(startingOffsets=text).starting_offsets
        assert found.of("ORDERS") == 23
    assert "partition 0" in str(refusal(read, startingOffsets='{"ORDERS": {"1": 23}}'))


def test_times_for_each_stream():
    """A time for each stream is in milliseconds or in ISO 8601, as in Kafka or without the partition."""
    found = read(
        stream="A,B",
        startingOffsetsByTimestamp='{"A": {"0": 1000}, "B": "1970-01-01T00:00:02Z"}',
        endingOffsetsByTimestamp='{"A": 3000, "B": 4000}',
    )
    at = datetime(1970, 1, 1, tzinfo=timezone.utc)
    assert found.starting_time("A") == at + timedelta(seconds=1)
    assert found.starting_time("B") == at + timedelta(seconds=2)
    assert found.ending_time("B") == at + timedelta(seconds=4)
    error = refusal(read, stream="A,B", startingOffsetsByTimestamp='{"A": 1000}')
    assert "no value for stream B" in str(error)


def test_the_path_is_the_stream():
    """``load("ORDERS")`` and ``save("ORDERS")`` name the stream."""
    assert ReadOptions.from_options({"path": "ORDERS"}).stream == ("ORDERS",)
    assert WriteOptions.from_options({"path": "ORDERS"}).stream == "ORDERS"
    assert refusal(read, path="ORDERS").option == "path"


def test_an_option_of_the_other_direction():
    """It is shown in the usual spelling, which Spark does not keep, with the direction it is for."""
    error = refusal(write, startingoffsets="latest")
    assert (error.option, error.reason) == ("startingOffsets", "applies to reading only")
    error = refusal(read, maxpending="1")
    assert (error.option, error.reason) == ("maxPending", "applies to writing only")
    assert refusal(read, batchsize="1").option == "batchSize"


@pytest.mark.parametrize("entry", KAFKA_OPTIONS, ids=lambda entry: entry.option)
def test_options_of_kafka(entry):
    """An option of Spark's Kafka source exists here, or its error names what to use instead."""
    if entry.option in READ_OPTIONS:
        assert entry.instead.startswith("the same")
        return
    name = entry.option.replace("*", "sasl.mechanism")
    error = refusal(read, **{name.lower(): "value"})
    assert entry.instead in str(error)
    assert error.option == (name.lower() if "*" in entry.option else name)


def test_the_page_for_users_of_kafka_has_the_table_of_the_code():
    """The page lists the options with the texts of the errors."""
    page = (Path(__file__).parents[3] / "docs/howto/spark-from-kafka.rst").read_text()
    rows = re.findall(r"^   \* - ``(.+)``\n     - (.+)$", page, re.MULTILINE)
    assert [(name, text.replace("`", "")) for name, text in rows][: len(KAFKA_OPTIONS)] == [
        tuple(entry) for entry in KAFKA_OPTIONS
    ]


def test_timestamps():
    """A time has a time zone or is in milliseconds, and keeps its nanoseconds."""
    at = datetime(2026, 1, 31, 12, 0, tzinfo=timezone.utc)
    for text in ("2026-01-31T12:00:00Z", "2026-01-31T13:00:00+01:00", "2026-01-31 12:00:00+00:00"):
        assert read(startingTimestamp=text).starting_timestamp == at
    millis = int(at.timestamp() * 1000) + 7
    assert read(endingTimestamp=str(millis)).ending_timestamp == at + timedelta(milliseconds=7)
    exact = read(startingTimestamp="1970-01-01T00:00:01.000000001Z").starting_timestamp
    assert time_to_ns(exact) == 1_000_000_001


def test_the_default_servers(monkeypatch):
    """The default servers are those in NATS_URL of the driver."""
    monkeypatch.delenv("NATS_URL", raising=False)
    assert read().connection.servers == ("nats://127.0.0.1:4222",)
    monkeypatch.setenv("NATS_URL", "nats://u:hunter2@one:4333,two")
    options = read()
    assert options.connection.servers == ("nats://one:4333", "nats://two:4222")
    assert "hunter2" not in repr(options)
    assert read(servers="three").connection.servers == ("nats://three:4222",)


SECRETS = {
    "servers": "nats://u:hunter2@host",
    "creds": "hunter2",
    "password": "hunter2",
    "user": "u2",
}


@pytest.mark.parametrize("call", [read, write])
def test_parsed_options_print_no_secret(call):
    """Printed options contain no secret, and pickled ones keep it."""
    options = call(**SECRETS)  # type: ignore[operator]
    assert "hunter2" not in f"{options} {options!r} {options.connection.connect_options()}"
    again = pickle.loads(pickle.dumps(options))
    assert again == options
    assert again.connection.password() == "hunter2"


@given(
    st.sampled_from(["servers", "password", "token", "creds", "nkeySeed", "startingTimestamp"]),
    st.text(min_size=1).filter(str.strip),
)
def test_no_error_repeats_a_secret(option, secret):
    """The error text for invalid options contains no possible secret."""
    secret = f"hunter2{secret}"
    value = f"nats://u:{secret}@host" if option == "servers" else secret
    given_options = {"stream": "S", "user": "u", option: value, "readMode": "push"}
    if option == "startingTimestamp":
        given_options["password"] = secret
        given_options[option] = "never"
    with pytest.raises(InvalidOptionError) as caught:
        ReadOptions.from_options(given_options)
    assert "hunter2" not in str(caught.value)


def test_secrets_that_spark_exposes():
    """They are options without a name that Spark redacts, and logins in the servers."""
    hidden = {"credsSecret": "c", "password": "p", "user": "u", "token": "t", "servers": "nats://h"}
    assert exposed_secrets(hidden) == {}
    assert set(exposed_secrets({"CREDS": "c"})) == {"creds"}
    assert set(exposed_secrets({"nkeyseed": "c", "Servers": "u:p@h"})) == {"nkeySeed", "servers"}


@pytest.mark.parametrize(
    ("option", "field"), [("credsSecret", "creds"), ("nkeySeedSecret", "nkey_seed")]
)
def test_secrets_with_names_that_spark_redacts(option, field):
    """They equal those of the plain names, and both cannot be given."""
    plain = option.removesuffix("Secret")
    by_safe_name = read(**{option: "x"}).connection
    assert by_safe_name == read(**{plain: "x"}).connection
    assert getattr(by_safe_name, field)() == "x"
    with pytest.raises(InvalidOptionError):
        read(**{option: "x", plain: "x"})


@pytest.mark.parametrize("how", [as_subclass, as_member])
def test_options_are_taken_by_value(how):
    """Members of enums and other subclasses are values, not their texts."""
    given = {
        "stream": "ORDERS",
        "subjects": "a,b",
        "maxOffsetsPerTrigger": 10,
        "startingOffsets": "5",
    }
    plain = ReadOptions.from_options(given)
    assert ReadOptions.from_options({name: how(value) for name, value in given.items()}) == plain
