"""``jsm consumer``: consumers are created, listed, shown and deleted."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

pytestmark = pytest.mark.usefixtures("orders")

#: The commands of the document of 2020, word for word, and the resulting configs.
SEED = {
    "NEW": (
        (
            "add ORDERS NEW --filter ORDERS.received --ack explicit --pull --deliver all "
            "--max-deliver=-1 --sample 100"
        ),
        {
            "filter_subject": "ORDERS.received",
            "ack_policy": "explicit",
            "deliver_policy": "all",
            "max_deliver": -1,
            "sample_freq": "100",
        },
    ),
    "DISPATCH": (
        (
            "add ORDERS DISPATCH --filter ORDERS.processed --ack explicit --pull --deliver all "
            "--sample 100 --max-deliver 20"
        ),
        {"filter_subject": "ORDERS.processed", "max_deliver": 20, "sample_freq": "100"},
    ),
    "MONITOR": (
        (
            "add ORDERS MONITOR --ack none --target monitor.ORDERS --deliver last --replay instant "
            "--filter ''"
        ),
        {
            "deliver_subject": "monitor.ORDERS",
            "ack_policy": "none",
            "deliver_policy": "last",
            "replay_policy": "instant",
            "filter_subject": None,
        },
    ),
    "TEN": (
        "add ORDERS TEN --pull --filter ORDERS.processed --ack none --replay instant --deliver 10",
        {"deliver_policy": "by_start_sequence", "opt_start_seq": 10, "ack_policy": "none"},
    ),
    "REPLAY": (
        (
            "add ORDERS REPLAY --target out.original --filter ORDERS.processed --ack none "
            "--deliver all --sample 100 --replay original"
        ),
        {"replay_policy": "original", "deliver_subject": "out.original"},
    ),
}


def words(command: str) -> list[str]:
    return ["" if word == "''" else word for word in command.split()]


# --- add ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SEED)
@pytest.mark.parametrize("noun", ["obs", "consumer"])
def test_the_commands_of_2020_create_their_consumers(jsm, orders, noun, name):
    """Each documented command works word for word, and prints the created consumer."""
    command, expected = SEED[name]
    result = jsm(noun, *words(command)).ok()
    config = orders.config(name)
    assert {key: config.get(key) for key in expected} == expected
    assert result.out.startswith(f"Information for consumer ORDERS > {name}\n\nConfiguration:\n\n")
    assert f"Durable Name: {name}\n" in result.out
    assert ("Mode: pull\n" in result.out) is ("--pull" in command)
    assert result.err == ""


def test_a_start_may_be_a_duration(jsm, orders):
    """A duration as the start is counted back from now."""
    jsm("obs", "add", "ORDERS", "2MIN", "--pull", "--deliver", "2m").ok()
    config = orders.config("2MIN")
    assert config["deliver_policy"] == "by_start_time"
    start = datetime.fromisoformat(config["opt_start_time"][:19]).replace(tzinfo=timezone.utc)
    ago = datetime.now(timezone.utc) - start
    assert timedelta(minutes=2) - timedelta(seconds=5) < ago < timedelta(minutes=2, seconds=30)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("new", {"deliver_policy": "new"}),
        ("next", {"deliver_policy": "new"}),
        ("subject", {"deliver_policy": "last_per_subject"}),
        ("DeliverLast", {"deliver_policy": "last"}),
        (
            "2026-01-02T15:04:05+01:00",
            {"deliver_policy": "by_start_time", "opt_start_time": "2026-01-02T14:04:05Z"},
        ),
    ],
)
def test_a_start_may_be_a_policy(jsm, orders, text, expected):
    """The start policies of other tools are understood."""
    jsm("con", "add", "ORDERS", "A", "--deliver", text, "--filter", "ORDERS.*").ok()
    config = orders.config("A")
    assert {key: config.get(key) for key in expected} == expected


def test_every_modern_option_sets_its_field(jsm, orders):
    """Each option sets its field of the config."""
    jsm(
        "consumer", "add", "ORDERS", "A", "--pull", "--description", "a test", "--wait", "2s",
        "--max-deliver", "4", "--backoff", "1s,5s,1m", "--max-pending", "7", "--max-waiting", "9",
        "--max-pull-batch", "11", "--max-pull-expire", "30s", "--max-pull-bytes", "64KiB",
        "--inactive-threshold", "1h", "--replicas", "1", "--memory", "--headers-only",
        "--metadata", "team=a", "--metadata", "x=y=z", "--filter", "ORDERS.a,ORDERS.b",
        "--filter", "ORDERS.c", "--sample", "80",
    ).ok()  # fmt: skip
    config = orders.config("A")
    second = 1_000_000_000
    assert config["description"] == "a test"
    assert config["backoff"] == [second, 5 * second, 60 * second]
    assert (config["max_deliver"], config["max_ack_pending"]) == (4, 7)
    assert (config["max_waiting"], config["max_batch"]) == (9, 11)
    assert (config["max_expires"], config["max_bytes"]) == (30 * second, 65536)
    assert (config["inactive_threshold"], config["num_replicas"]) == (3600 * second, 1)
    assert (config["mem_storage"], config["headers_only"]) == (True, True)
    assert (config["metadata"]["team"], config["metadata"]["x"]) == ("a", "y=z")
    assert config["filter_subjects"] == ["ORDERS.a", "ORDERS.b", "ORDERS.c"]
    assert config["sample_freq"] == "80"


def test_the_options_of_push_consumers(jsm, orders):
    """Heartbeat, flow control, group and rate limit set their fields."""
    jsm(
        "consumer", "add", "ORDERS", "A", "--target", "out", "--deliver-group", "workers",
        "--bps", "8000", "--replay", "original",
    ).ok()  # fmt: skip
    jsm(
        "consumer", "add", "ORDERS", "B", "--target", "more", "--heartbeat", "5s", "--flow-control"
    ).ok()
    config = orders.config("A")
    assert (config["deliver_group"], config["rate_limit_bps"]) == ("workers", 8000)
    config = orders.config("B")
    assert (config["idle_heartbeat"], config["flow_control"]) == (5_000_000_000, True)


@pytest.mark.server(">=2.11")
def test_groups_of_pulls_and_a_pause(jsm, orders):
    """Priority groups have the flags of the nats command; a pause may be a duration."""
    jsm(
        "con", "add", "ORDERS", "A", "--pull", "--priority-groups", "A",
        "--priority-policy", "pinned", "--pinned-ttl", "10s",
        "--pause", "1h",
    ).ok()  # fmt: skip
    info = orders.info("A")
    assert info["config"]["priority_policy"] == "pinned_client"
    assert info["config"]["priority_groups"] == ["A"]
    assert info["config"]["priority_timeout"] == 10_000_000_000
    assert info["paused"]
    assert 3500 < info["pause_remaining"] / 1e9 <= 3600


def test_an_ephemeral_consumer_needs_no_name(jsm, orders):
    """The generated name is in the result."""
    result = jsm("con", "add", "ORDERS", "--pull", "--ephemeral", "-j").ok()
    name = result.json["name"]
    assert orders.names() == [name]
    assert "durable_name" not in orders.config(name)


def test_a_push_consumer_without_a_subscriber_gets_a_warning(jsm, orders):
    """A new ephemeral push consumer without a subscriber gets a warning with its lifetime."""
    command = "add ORDERS --filter '' --ack none --target my.monitor --deliver last --ephemeral"
    result = jsm("obs", *words(command)).ok()
    assert "no subscriber on my.monitor: subscribe within 5s" in result.err
    orders.raw.send(b"SUB my.monitor 9\r\n")
    orders.raw.api("INFO")  # the server has the subscription now
    assert jsm("obs", *words(command)).ok().err == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--sample", "-1"], "integer percentage"),
        (["--pull", "--heartbeat", "5s"], "deliver_subject"),
    ],
)
def test_invalid_values_are_usage_errors(jsm, orders, arguments, says):
    """A wrong value is a usage error with the allowed form; nothing is created."""
    result = jsm("consumer", "add", "ORDERS", "A", *arguments)
    assert result.status == 2, result
    assert says in result.err
    assert result.out == ""
    assert not orders.names()


def test_warnings_of_subjects_that_do_not_fit(jsm, orders):
    """A filter that matches no subject, and a target that the stream stores, cause warnings."""
    result = jsm("consumer", "add", "ORDERS", "A", "--pull", "--filter", "ORDER.received").ok()
    assert "filter ORDER.received matches no subject" in result.err
    assert orders.config("A")["filter_subject"] == "ORDER.received"
    result = jsm("consumer", "add", "ORDERS", "B", "--target", "ORDERS.again")
    assert result.status == 1
    assert "stores ORDERS.*" in result.err
    assert jsm("consumer", "add", "ORDERS", "C", "--pull", "--filter", "*.received").ok().err == ""


def test_an_existing_consumer_is_changed_only_with_update(jsm, orders):
    """Creating an equal consumer is allowed, another config is refused, and --update changes it."""
    command = ["consumer", "add", "ORDERS", "A", "--pull", "--max-deliver"]
    jsm(*command, "3").ok()
    jsm(*command, "3").ok()
    result = jsm(*command, "4")
    assert result.status == 1
    assert "--update" in result.err
    assert orders.config("A")["max_deliver"] == 3
    jsm(*command, "4", "--update").ok()
    assert orders.config("A")["max_deliver"] == 4
    jsm("consumer", "add", "ORDERS", "P", "--target", "one", "--update").ok()
    jsm("consumer", "add", "ORDERS", "P", "--target", "two", "--update").ok()
    assert orders.config("P")["deliver_subject"] == "two"


# --- ls, info, state ------------------------------------------------------------------------------


def test_names_and_documents(jsm, orders):
    """-n prints names, one per line, and -j arrays: of names with -n, of infos without."""
    orders.make("B")
    orders.make("A", deliver_subject="out")
    assert jsm("con", "ls", "ORDERS", "-n").ok().out == "A\nB\n"
    assert jsm("con", "ls", "ORDERS", "-n", "-j").ok().json == ["A", "B"]
    listed = jsm("con", "ls", "ORDERS", "-j").ok().json
    for item in [*listed, *(said := orders.raw.api("CONSUMER.LIST.ORDERS")["consumers"])]:
        del item["ts"]  # the time of the reply
    assert listed == said
    table = jsm("con", "ls", "ORDERS").ok().out
    assert [line.split()[:3] for line in table.splitlines()[2:]] == [
        ["A", "push", "explicit"],
        ["B", "pull", "explicit"],
    ]


def test_without_a_stream_all_consumers_are_listed(jsm, orders):
    """Without a stream, consumers of all streams are listed; -a asks for that."""
    orders.raw.api("STREAM.CREATE.OTHER", name="OTHER", subjects=["other"], storage="memory")
    orders.make("A")
    body = {"durable_name": "A", "ack_policy": "none"}
    orders.raw.api("CONSUMER.CREATE.OTHER.A", stream_name="OTHER", config=body)
    assert jsm("con", "ls", "-n").ok().out == "ORDERS A\nOTHER A\n"
    listed = jsm("con", "ls", "--all-streams", "-j").ok().json
    assert [(item["stream_name"], item["name"]) for item in listed] == [
        ("ORDERS", "A"),
        ("OTHER", "A"),
    ]
    assert "OTHER > A" in jsm("con", "ls", "-a").ok().out
    assert jsm("con", "ls", "NONE").status == 3


def test_the_info_is_that_of_the_server(jsm, orders):
    """-j has the reply, and the text has its numbers under its labels."""
    orders.make("NEW", filter_subject="ORDERS.received", max_deliver=20, sample_freq="100")
    for _ in range(3):
        orders.raw.request("ORDERS.received", b"x")
    orders.raw.request("$JS.API.CONSUMER.MSG.NEXT.ORDERS.NEW", b"1")
    reply = orders.info("NEW")
    found = jsm("con", "info", "ORDERS", "NEW", "-j").ok().json
    assert found.pop("ts") > reply.pop("ts")  # the time of the reply
    assert {"type": reply["type"], **found} == reply
    lines = [line.strip() for line in jsm("obs", "info", "ORDERS", "NEW").ok().out.splitlines()]
    assert "Filter Subject: ORDERS.received" in lines
    assert "Maximum Deliveries: 20" in lines
    assert "Sampling Rate: 100" in lines
    assert "Ack Wait: 30s" in lines
    assert "Unprocessed Messages: 2" in lines
    assert any(line.startswith("Pending Messages: 1 ") for line in lines)
    assert any(
        line.startswith("Last Delivered Message: Consumer sequence: 1 Stream sequence: 1")
        for line in lines
    )


def test_an_unknown_consumer(jsm, orders):
    """The error for an unknown name suggests a similar one; an invalid name is a usage error."""
    orders.make("DISPATCH")
    result = jsm("obs", "info", "ORDERS", "DISPATC")
    assert result.status == 3
    assert 'has no consumer "DISPATC", did you mean DISPATCH?' in result.err
    assert jsm("con", "info", "ORDER", "DISPATCH").status == 3
    result = jsm("con", "info", "ORDERS", "a.b")
    assert result.status == 2
    error = jsm("con", "info", "ORDERS", "X", "-j").error
    assert (error["err_code"], error["code"]) == (10014, 404)


# --- rm -------------------------------------------------------------------------------------------


def test_several_consumers_are_deleted(jsm, orders):
    """The deleted names are in the result, and the others stay."""
    for name in "ABC":
        orders.make(name)
    assert jsm("con", "rm", "ORDERS", "A", "B", "-f", "-j").ok().json == {"deleted": ["A", "B"]}
    assert orders.names() == ["C"]
    result = jsm("obs", "rm", "ORDERS", "C", "-f").ok()
    assert result.out == ""
    assert "Consumer ORDERS > C was removed" in result.err


def test_a_deletion_needs_a_confirmation(jsm, orders):
    """Without a terminal, --force is required. An unknown name prevents all deletions."""
    orders.make("A")
    result = jsm("con", "rm", "ORDERS", "A")
    assert result.status == 2
    assert "--force" in result.err
    assert jsm("con", "rm", "ORDERS", "A", "NONE", "-f").status == 3
    assert orders.names() == ["A"]
    result = jsm("con", "rm", "ORDERS", "A", "NONE", "-f", "--ignore-missing", "-j").ok()
    assert result.json == {"deleted": ["A"]}
