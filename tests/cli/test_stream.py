"""``jsm stream``: streams are created, listed, shown, purged and deleted."""

from __future__ import annotations

from typing import Any

import pytest
from fixtures.jsm import CLEAR_LINE
from fixtures.rawnats import RawClient

#: The command of the document of 2020, as it stands there.
SEED = (
    'add ORDERS --subjects "ORDERS.*" --ack --max-msgs=-1 --max-bytes=-1 --max-age=1y '
    "--storage file --retention stream --max-msg-size=-1"
).replace('"', "")


def config_of(raw: RawClient, name: str) -> dict[str, Any]:
    config: dict[str, Any] = raw.api(f"STREAM.INFO.{name}")["config"]
    return config


def fill(raw: RawClient, *subjects: str) -> None:
    for number, subject in enumerate(subjects, 1):
        assert b'"seq"' in raw.request(subject, b"order %d" % number)


@pytest.mark.parametrize("noun", ["ms", "messageset", "str", "st", "s", "stream"])
def test_the_2020_command_creates_the_stream(jsm, raw, noun):
    """The command of the 2020 documentation works unchanged, and a year is exactly 365 days."""
    result = jsm(noun, *SEED.split()).ok()
    config = config_of(raw, "ORDERS")
    assert config["subjects"] == ["ORDERS.*"]
    assert (config["retention"], config["storage"]) == ("limits", "file")
    assert (config["max_msgs"], config["max_bytes"], config["max_msg_size"]) == (-1, -1, -1)
    assert config["max_age"] == 31_536_000_000_000_000
    assert "no_ack" not in config
    assert result.out.startswith("Stream ORDERS was created\n")
    assert "Subjects: ORDERS.*\n" in result.out
    assert "Maximum Age: 1y (8760h0m0s)\n" in result.out


@pytest.mark.parametrize(
    ("word", "wire"),
    [
        ("stream", "limits"),
        ("Limits", "limits"),
        ("StreamPolicy", "limits"),
        ("interest", "interest"),
        ("InterestPolicy", "interest"),
        ("work", "workqueue"),
        ("workq", "workqueue"),
        ("workqueue", "workqueue"),
        ("WorkQueuePolicy", "workqueue"),
    ],
)
def test_retention_aliases(jsm, raw, word, wire):
    """Retention policies have the names of the 2020 CLI, of the nats CLI and of the API."""
    jsm("stream", "add", "R", "--subjects", "r", "--retention", word).ok()
    assert config_of(raw, "R")["retention"] == wire


OPTIONS: list[tuple[str, str, Any]] = [
    ("--description text", "description", "text"),
    ("--subjects a.*,b", "subjects", ["a.*", "b"]),
    ("--subjects a --subjects b", "subjects", ["a", "b"]),
    ("--no-ack", "no_ack", True),
    ("--storage m", "storage", "memory"),
    ("--max-msgs 1,000", "max_msgs", 1000),
    ("--max-bytes 10KB", "max_bytes", 10_000),
    ("--max-bytes 1GiB", "max_bytes", 2**30),
    ("--max-age 1d12h", "max_age", 36 * 3600 * 10**9),
    ("--max-msg-size 1K", "max_msg_size", 1000),
    ("--max-msgs-per-subject 3", "max_msgs_per_subject", 3),
    ("--max-consumers 4", "max_consumers", 4),
    ("--max-observables 4", "max_consumers", 4),
    ("--replicas 1", "num_replicas", 1),
    ("--discard new", "discard", "new"),
    (
        "--discard new --discard-per-subject --max-msgs-per-subject 1",
        "discard_new_per_subject",
        True,
    ),
    ("--dupe-window 30s", "duplicate_window", 30 * 10**9),
    ("--first-seq 1000", "first_seq", 1000),
    ("--compression s2", "compression", "s2"),
    ("--persist-mode async", "persist_mode", "async"),
    ("--marker-ttl 1h", "subject_delete_marker_ttl", 3600 * 10**9),
    ("--allow-rollup", "allow_rollup_hdrs", True),
    ("--no-allow-direct", "allow_direct", False),
    ("--deny-delete", "deny_delete", True),
    ("--deny-purge", "deny_purge", True),
    ("--allow-msg-ttl", "allow_msg_ttl", True),
    ("--ttl", "allow_msg_ttl", True),
    ("--allow-atomic", "allow_atomic", True),
    ("--allow-batch", "allow_atomic", True),
    ("--allow-counter", "allow_msg_counter", True),
    ("--allow-schedules", "allow_msg_schedules", True),
    (
        "--transform-source a.* --transform-destination b.{{wildcard(1)}}",
        "subject_transform",
        {"src": "a.*", "dest": "b.{{wildcard(1)}}"},
    ),
    (
        "--republish-source > --republish-destination c.> --republish-headers",
        "republish",
        {"src": ">", "dest": "c.>", "headers_only": True},
    ),
    (
        "--limit-consumer-inactive 1h --limit-consumer-max-pending 10",
        "consumer_limits",
        {"inactive_threshold": 3600 * 10**9, "max_ack_pending": 10},
    ),
]


#: The servers that know a field, where older ones ignore it.
SINCE = {
    "allow_msg_ttl": ">=2.11",
    "subject_delete_marker_ttl": ">=2.11",
    "persist_mode": ">=2.12",
    "allow_atomic": ">=2.12",
    "allow_msg_counter": ">=2.12",
    "allow_msg_schedules": ">=2.12",
}


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        pytest.param(
            *option,
            marks=[pytest.mark.server(SINCE[option[1]])] if option[1] in SINCE else [],
            id=option[0],
        )
        for option in OPTIONS
    ],
)
def test_each_option_sets_its_field(jsm, raw, words, field, value):
    """Each option of ``add`` sets its field of the config, in the right unit."""
    more = () if "--subjects" in words else ("--subjects", "a.*")
    jsm("stream", "add", "S", *words.split(), *more).ok()
    assert config_of(raw, "S").get(field, False) == value


@pytest.mark.server("<2.11")
def test_a_field_that_the_server_ignores_is_an_error(jsm):
    """An older server drops fields that it does not know: the stream that lacks them is removed."""
    made = jsm("stream", "add", "S", "--defaults", "--ttl")
    assert made.status == 2
    assert "allow_msg_ttl needs nats-server 2.11" in made.err
    assert jsm("stream", "ls", "-n").ok().out == ""


def test_metadata_and_placement_options(jsm, raw):
    """--metadata is repeatable; --cluster and --tag set the placement."""
    jsm("stream", "add", "S", "--defaults", "--metadata", "team=a=b", "--metadata", "x=").ok()
    labels = config_of(raw, "S")["metadata"]
    assert (labels["team"], labels["x"]) == ("a=b", "")
    shown = jsm(
        "stream", "add", "T", "--defaults", "--cluster", "C", "--tag", "ssd", "--output", "-"
    )
    assert shown.ok().json["placement"] == {"cluster": "C", "tags": ["ssd"]}


def test_mirrors_and_sources_are_names_pairs_or_json(jsm, raw):
    """A mirror or source is given as a name, as key=value pairs, or as JSON."""
    jsm("stream", "add", "O", "--subjects", "o.*").ok()
    jsm("stream", "add", "M", "--mirror", "O").ok()
    assert config_of(raw, "M")["mirror"]["name"] == "O"
    jsm(
        *("stream", "add", "S", "--source", "name=O,seq=5,filter=o.a"),
        *("--source", '{"name": "O", "filter_subject": "o.b"}'),
    ).ok()
    sources = config_of(raw, "S")["sources"]
    assert sources[0] == {"name": "O", "opt_start_seq": 5, "filter_subject": "o.a"}
    assert sources[1]["filter_subject"] == "o.b"
    refused = jsm("stream", "add", "X", "--source", "nmae=O")
    assert refused.status == 2
    refused = jsm("stream", "add", "X", "--mirror", "name=O,color=red")
    assert (refused.status, "color" in refused.err) == (2, True)


def test_json_output_is_the_reply_of_the_server(jsm, raw):
    """With -j stdout is one document with the config and state of the server."""
    made = jsm("stream", "add", "S", "--subjects", "s.*", "-j").ok()
    assert made.err == ""
    fill(raw, "s.a", "s.b")
    shown = jsm("stream", "info", "S", "-j").ok().json
    said = raw.api("STREAM.INFO.S")
    assert made.json["config"] == said["config"]
    assert shown["config"] == said["config"]
    assert shown["state"] == said["state"]
    assert shown["created"] == said["created"]
    assert jsm("stream", "state", "S", "-j").ok().json == said["state"]
    listed = raw.api("STREAM.LIST")["streams"][0]
    assert jsm("-j", "stream", "ls").ok().json[0]["config"] == listed["config"]
    assert jsm("stream", "ls", "-n", "-j").ok().json == ["S"]


def test_info_shows_config_and_state(jsm, raw):
    """The blocks have the labels of the documentation, and limits that are not set are named."""
    jsm("ms", *SEED.split()).ok()
    fill(raw, "ORDERS.a", "ORDERS.b", "ORDERS.a")
    shown = jsm("ms", "info", "ORDERS").ok().out
    assert shown.startswith("Information for stream ORDERS\n\nConfiguration:\n")
    for line in ("Messages: 3\n", "FirstSeq: 1 @ ", "LastSeq: 3 @ ", "Active Consumers: 0\n"):
        assert line in shown
    assert "Maximum Messages: Unlimited\n" in shown


def test_ls(jsm):
    """The list is a table or only names; no streams is not an error."""
    assert jsm("stream", "ls").ok().out == "No streams defined\n"
    assert jsm("stream", "ls", "-j").ok().json == []
    jsm("ms", *SEED.split()).ok()
    jsm("ms", "add", "KV_hidden", "--subjects", "$KV.hidden.>").ok()
    assert jsm("stream", "ls", "-n").ok().out == "ORDERS\n"
    assert jsm("stream", "ls", "-n", "-a").ok().out == "KV_hidden\nORDERS\n"
    assert jsm("stream", "ls", "-n", "-a", "--subject", "ORDERS.x").ok().out == "ORDERS\n"
    table = jsm("stream", "ls").ok().out
    assert "ORDERS" in table
    assert "hidden" not in table


def test_written_configs_can_be_read_again(jsm, raw, tmp_path):
    """--config accepts the output of --output and of info; options override it."""
    file = tmp_path / "orders.json"
    options = ("--subjects", "o.*", "--max-age", "1h", "--metadata", "a=b")
    jsm("stream", "add", "O", *options, "--output", str(file)).ok()
    assert raw.api("STREAM.NAMES")["total"] == 0
    jsm("stream", "add", "--config", str(file)).ok()
    before = config_of(raw, "O")
    info = jsm("stream", "info", "O", "-j").ok().out
    jsm("stream", "rm", "O", "-f").ok()
    jsm("stream", "add", "--config", "-", stdin=info.encode()).ok()
    assert config_of(raw, "O") == before
    jsm("stream", "rm", "O", "-f").ok()
    jsm("stream", "add", "P", "--config", "-", "--max-msgs", "7", stdin=info.encode()).ok()
    changed = config_of(raw, "P")
    assert (changed["max_msgs"], changed["max_age"]) == (7, before["max_age"])


def test_a_file_may_contain_units(jsm, raw):
    """A file may contain durations, sizes and policies in the syntax of options."""
    text = (
        '{"name": "O", "max_age": "1y", "max_bytes": "10GB", "retention": "stream",'
        ' "consumer_limits": {"inactive_threshold": "1h"}, "metadata": {"max_age": "1y"}}'
    )
    jsm("stream", "add", "--config", "-", stdin=text.encode()).ok()
    config = config_of(raw, "O")
    assert (config["max_age"], config["max_bytes"]) == (31_536_000_000_000_000, 10_000_000_000)
    assert config["retention"] == "limits"
    assert config["consumer_limits"]["inactive_threshold"] == 3600 * 10**9
    assert config["metadata"]["max_age"] == "1y"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nonsense: [", "install"),
        ("[1]", "expected an object"),
        ('{"config": {"subjects": []}}', "name"),
        ('{"name": "a.b"}', "a.b"),
        ('{"name": "O", "max_age": "a year"}', "max_age"),
        ('{"name": "O", "max_msgs": -7}', "max_msgs"),
    ],
)
def test_an_invalid_file_is_a_usage_error(jsm, raw, text, words):
    """An invalid file exits with status 2, and the error names the problem."""
    refused = jsm("stream", "add", "--config", "-", stdin=text.encode())
    assert refused.status == 2
    assert words in refused.err or "yaml" in refused.err.lower()
    assert len(refused.err.splitlines()) == 1
    assert raw.api("STREAM.NAMES")["total"] == 0


def test_adding_an_existing_stream(jsm, raw):
    """An equal config succeeds; another one is an error, ignored, or an update, by option."""
    add = ("stream", "add", "S", "--subjects", "s")
    jsm(*add).ok()
    jsm(*add).ok()
    refused = jsm(*add, "--max-msgs", "5")
    assert refused.status == 1
    assert "already in use" in refused.err
    left = jsm(*add, "--max-msgs", "5", "--if-not-exists").ok()
    assert left.out.startswith("Stream S exists\n")
    assert config_of(raw, "S")["max_msgs"] == -1
    jsm(*add, "--max-msgs", "5", "--update").ok()
    assert config_of(raw, "S")["max_msgs"] == 5


def test_names_are_checked_before_connecting(jsm):
    """An invalid name is an error before the command connects."""
    for name in ("a.b", "a b", "a*", "a>", "a/b", "a\\b"):
        for words in (("add", name, "--subjects", "x"), ("info", name), ("rm", "A", name, "-f")):
            refused = jsm("stream", *words, NATS_URL="nats://127.0.0.1:1")
            assert refused.status == 2, words
            assert " is invalid: " in refused.err


def test_one_error_names_all_missing_values(jsm):
    """Without a terminal, one error names every missing value; with -j it is JSON."""
    refused = jsm("ms", "add")
    assert refused.status == 2
    assert (
        refused.err == "jsm: missing: NAME, --subjects; without a terminal, nothing is asked for\n"
    )
    refused = jsm("ms", "add", "-j")
    assert refused.error["exit_status"] == 2
    for command in ("info", "state", "purge", "rm"):
        assert (
            jsm("stream", command).err
            == "jsm: missing: STREAM; without a terminal, nothing is asked for\n"
        )


def test_purge_reports_the_number_of_messages(jsm, raw):
    """The output has the number of deleted messages, and the next sequence follows the last one."""
    jsm("ms", *SEED.split()).ok()
    fill(raw, "ORDERS.a", "ORDERS.b", "ORDERS.a")
    purged = jsm("ms", "purge", "ORDERS", "-f").ok()
    assert purged.out.startswith("Purged 3 messages\n")
    for line in ("Messages: 0\n", "FirstSeq: 4", "LastSeq: 3"):
        assert line in purged.out
    state = raw.api("STREAM.INFO.ORDERS")["state"]
    assert (state["messages"], state["first_seq"], state["last_seq"]) == (0, 4, 3)
    fill(raw, "ORDERS.a")
    assert jsm("ms", "purge", "ORDERS", "-f", "-j").ok().json == {"success": True, "purged": 1}


@pytest.mark.parametrize(
    ("options", "left"),
    [
        (("--subject", "s.a"), [2, 4]),
        (("--seq", "3"), [3, 4, 5]),
        (("--keep", "2"), [4, 5]),
        (("--subject", "s.a", "--keep", "1"), [2, 4, 5]),
    ],
)
def test_a_part_of_the_messages_is_purged(jsm, raw, options, left):
    """Messages of a subject, before a sequence, or all but the newest are deleted."""
    jsm("stream", "add", "S", "--subjects", "s.*").ok()
    fill(raw, "s.a", "s.b", "s.a", "s.b", "s.a")
    done = jsm("stream", "purge", "S", *options, "-f", "-j").ok().json
    assert done["purged"] == 5 - len(left)
    found = [seq for seq in range(1, 6) if "message" in raw.api("STREAM.MSG.GET.S", seq=seq)]
    assert found == left


def test_deleting_needs_force_without_a_terminal(jsm, raw):
    """Without a terminal and --force nothing is deleted."""
    jsm("ms", *SEED.split()).ok()
    fill(raw, "ORDERS.a", "ORDERS.b")
    for command in (("rm", "ORDERS"), ("purge", "ORDERS"), ("rmm", "ORDERS", "1")):
        refused = jsm("ms", *command)
        assert refused.status == 2
        assert "--force" in refused.err
    assert raw.api("STREAM.INFO.ORDERS")["state"]["messages"] == 2


def test_an_unknown_name_deletes_no_stream(jsm, raw):
    """An unknown name among several deletes nothing, except with --ignore-missing."""
    for name in "ABC":
        jsm("stream", "add", name, "--defaults").ok()
    refused = jsm("stream", "rm", "A", "NOPE", "B", "-f")
    assert (refused.status, raw.api("STREAM.NAMES")["total"]) == (3, 3)
    assert jsm("stream", "rm", "NOPE", "-f", "-j").error["err_code"] == 10059
    gone = jsm("stream", "rm", "A", "NOPE", "B", "-f", "--ignore-missing", "-j").ok()
    assert gone.json == {"deleted": ["A", "B"]}
    assert raw.api("STREAM.NAMES")["streams"] == ["C"]
    gone = jsm("ms", "rm", "C", "-f").ok()
    assert (gone.out, gone.err) == ("", "Stream C was deleted\n")
    assert jsm("stream", "rm", "C", "-f", "--ignore-missing", "-j").ok().json == {"deleted": []}


def test_single_messages_are_deleted(jsm, raw):
    """``rmm`` accepts several sequences, and the error names those that do not exist."""
    jsm("stream", "add", "S", "--subjects", "s.*").ok()
    fill(raw, *["s.a"] * 5)
    assert jsm("stream", "rmm", "S", "2", "4", "-f", "-j").ok().json == {"deleted": [2, 4]}
    missed = jsm("stream", "rmm", "S", "4", "5", "99", "--no-erase", "-f", "-j")
    assert missed.status == 3
    assert missed.json == {"deleted": [5], "missing": [4, 99]}
    state = raw.api("STREAM.INFO.S", deleted_details=True)["state"]
    assert (state["messages"], state["last_seq"]) == (2, 5)


def test_copy_needs_other_subjects(jsm, raw):
    """A copy has the config of the original except for the options; the same subjects are an error."""
    jsm("stream", "add", "A", "--subjects", "a.*", "--max-age", "1h", "--metadata", "k=v").ok()
    refused = jsm("stream", "copy", "A", "B")
    assert (refused.status, "--subjects" in refused.err) == (2, True)
    made = jsm("stream", "cp", "A", "B", "--subjects", "b.*").ok()
    assert made.out.startswith("Stream B was created as a copy of A\n")
    again = jsm("stream", "cp", "A", "B", "--subjects", "b.*").ok()
    assert again.out.startswith("Stream B is unchanged\n")
    config = config_of(raw, "B")
    assert (config["subjects"], config["max_age"]) == (["b.*"], 3600 * 10**9)
    assert config["metadata"]["k"] == "v"


def test_the_prompts_of_the_2020_cli(terminal, raw, jsm):
    """The prompts have the order of the 2020 documentation."""
    child = terminal("ms", "add", "ORDERS")
    child.answer("Subjects to consume", "ORDERS.*")
    child.answer("Storage", "file")
    child.answer("Retention", "Stream")
    child.answer("Maximum Messages", "-1")
    child.answer("Maximum Bytes", "")
    child.answer("Maximum Age", "a year")
    child.expect("invalid duration")
    child.send(f"{CLEAR_LINE}1y\n")
    child.answer("Maximum Message Size", "-1")
    child.expect("Stream ORDERS was created")
    assert child.wait() == 0
    config = config_of(raw, "ORDERS")
    assert config["subjects"] == ["ORDERS.*"]
    assert config["max_age"] == 31_536_000_000_000_000
    assert (config["retention"], config["storage"]) == ("limits", "file")
    del jsm  # its fixture deletes the stream


def test_given_options_are_not_prompted_for(terminal, raw, jsm):
    """A given option has no prompt; with --defaults and a name there are no prompts."""
    options = SEED.replace("add ORDERS", "").split()
    child = terminal("ms", "add", *[option for option in options if "1y" not in option])
    child.answer("Stream name", "a.b")
    child.expect("stream name 'a.b' is invalid")
    child.send(f"{CLEAR_LINE}ORDERS\n")
    child.answer("Maximum Age", "1d")
    child.expect("Stream ORDERS was created")
    assert child.wait() == 0
    assert config_of(raw, "ORDERS")["max_age"] == 86400 * 10**9
    child = terminal("ms", "add", "PLAIN", "--defaults")
    child.expect("Stream PLAIN was created")
    assert child.wait() == 0
    assert config_of(raw, "PLAIN")["subjects"] == ["PLAIN"]
    del jsm


def test_deleting_asks_for_confirmation(terminal, raw, jsm):
    """The prompt has the number of messages; the default answer is no and changes nothing."""
    jsm("ms", *SEED.split()).ok()
    fill(raw, "ORDERS.a", "ORDERS.b")
    child = terminal("ms", "rm", "ORDERS")
    child.answer("Delete Stream ORDERS with 2 messages?", "")
    assert child.wait() == 2
    assert raw.api("STREAM.NAMES")["total"] == 1
    child = terminal("ms", "purge", "ORDERS")
    child.answer("Purge 2 messages from ORDERS?", "y")
    child.expect("Purged 2 messages")
    assert child.wait() == 0
    child = terminal("ms", "rm", "ORDERS")
    child.answer("Delete Stream ORDERS with 0 messages?", "y")
    assert child.wait() == 0
    assert raw.api("STREAM.NAMES")["total"] == 0


def test_gaps_are_ranges_of_deleted_sequences(jsm, raw):
    """Consecutive deleted messages are one row."""
    jsm("stream", "add", "S", "--subjects", "s", "--defaults").ok()
    raw.requests("s", [b"x"] * 9)
    for seq in (2, 3, 4, 7):
        raw.api("STREAM.MSG.DELETE.S", seq=seq)
    found = jsm("stream", "gaps", "S", "-j").ok().json
    assert found == [
        {"first": 2, "last": 4, "messages": 3},
        {"first": 7, "last": 7, "messages": 1},
    ]
    jsm("stream", "purge", "S", "-f").ok()
    assert jsm("stream", "gaps", "S").ok().out == "No gaps in stream S\n"
