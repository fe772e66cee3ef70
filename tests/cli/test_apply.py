"""``jsm apply``: streams and consumers are created, updated and deleted to match a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from fixtures.jsm import CLEAR_LINE, Jsm
from fixtures.rawnats import RawClient

ORDERS: dict[str, Any] = {
    "streams": [
        {
            "name": "ORDERS",
            "subjects": ["ORDERS.*"],
            "max_age": "1y",
            "metadata": {"team": "shop"},
            "consumers": [
                {"name": "NEW", "filter_subject": "ORDERS.received", "ack_wait": "30s"},
                {
                    "durable_name": "MONITOR",
                    "deliver_subject": "monitor.ORDERS",
                    "ack_policy": "none",
                    "deliver_policy": "last",
                },
            ],
        }
    ],
    "consumers": [{"stream": "ORDERS", "name": "DISPATCH", "filter_subject": "ORDERS.processed"}],
}


def file_of(tmp_path: Path, document: object) -> str:
    file = tmp_path / "orders.json"
    file.write_text(json.dumps(document))
    return str(file)


@pytest.fixture
def applied(jsm: Jsm, tmp_path: Path) -> tuple[Jsm, str]:
    """A file that was applied once."""
    path = file_of(tmp_path, ORDERS)
    jsm("apply", "-f", path).ok()
    return jsm, path


def configs(raw: RawClient) -> dict[str, Any]:
    """Return the configs of all streams and consumers of the account, by name."""
    found = {item["config"]["name"]: item["config"] for item in raw.api("STREAM.LIST")["streams"]}
    for stream in list(found):
        for item in raw.api(f"CONSUMER.LIST.{stream}")["consumers"]:
            found[f"{stream} > {item['name']}"] = item["config"]
    return found


def test_missing_resources_are_created(jsm, raw, tmp_path):
    """The streams and consumers of the file are created with its values."""
    result = jsm("apply", "-f", file_of(tmp_path, ORDERS)).ok()
    assert result.out.splitlines() == [
        "created  stream ORDERS",
        "created  consumer ORDERS > NEW",
        "created  consumer ORDERS > MONITOR",
        "created  consumer ORDERS > DISPATCH",
        "4 created",
    ]
    found = configs(raw)
    assert found["ORDERS"]["max_age"] == 31_536_000_000_000_000
    assert found["ORDERS > NEW"]["filter_subject"] == "ORDERS.received"
    assert found["ORDERS > NEW"]["durable_name"] == "NEW"
    assert found["ORDERS > NEW"]["ack_policy"] == "explicit"
    assert found["ORDERS > MONITOR"]["deliver_subject"] == "monitor.ORDERS"


def test_applying_again_changes_nothing(applied, raw):
    """Applying the same file again reports that everything is unchanged."""
    jsm, path = applied
    before = configs(raw)
    again = jsm("apply", "-f", path, "-j").ok().json
    assert {item["action"] for item in again["items"]} == {"unchanged"}
    assert again["summary"] == {"created": 0, "updated": 0, "unchanged": 4, "deleted": 0}
    assert configs(raw) == before


def test_only_differing_fields_are_updated(applied, raw, tmp_path):
    """Fields that differ from the file are updated; fields that it does not contain are kept."""
    jsm, _ = applied
    jsm("stream", "edit", "ORDERS", "--max-msgs", "99", "--metadata", "own=1", "-f").ok()
    changed = json.loads(json.dumps(ORDERS).replace("1y", "2y").replace("30s", "10s"))
    changed["consumers"][0] = {
        "stream": "ORDERS",
        "name": "DISPATCH",
        "filter_subjects": ["ORDERS.processed", "ORDERS.sent"],
    }
    result = jsm("apply", "-f", file_of(tmp_path, changed)).ok()
    assert "max_age: 1y (8760h0m0s) -> 2y (17520h0m0s)" in result.out
    assert result.out.splitlines()[-1] == "3 updated, 1 unchanged"
    found = configs(raw)
    assert found["ORDERS"]["max_age"] == 2 * 31_536_000_000_000_000
    assert found["ORDERS"]["max_msgs"] == 99
    assert found["ORDERS"]["metadata"]["own"] == "1"
    assert found["ORDERS"]["metadata"]["team"] == "shop"
    assert found["ORDERS > NEW"]["ack_wait"] == 10 * 10**9
    assert found["ORDERS > DISPATCH"]["filter_subjects"] == ["ORDERS.processed", "ORDERS.sent"]


def test_a_dry_run_changes_nothing(jsm, raw, tmp_path):
    """A dry run shows the steps, and with --exit-code its status tells whether there are any."""
    path = file_of(tmp_path, ORDERS)
    shown = jsm("apply", "-f", path, "--dry-run").ok()
    assert shown.out.splitlines()[0] == "would create  stream ORDERS"
    assert shown.out.splitlines()[-1] == "4 would create"
    assert jsm("apply", "-f", path, "--dry-run", "--exit-code").status == 1
    assert configs(raw) == {}
    jsm("apply", "-f", path).ok()
    jsm("apply", "-f", path, "--dry-run", "--exit-code").ok()
    more = jsm(
        "apply", "-f", file_of(tmp_path, {"name": "ORDERS", "max_msgs": 5}), "--dry-run", "-j"
    )
    assert more.ok().json["items"] == [
        {
            "kind": "stream",
            "stream": "ORDERS",
            "action": "updated",
            "differences": [{"field": "max_msgs", "before": -1, "after": 5}],
            "not_managed": [
                {"field": "max_age", "before": 31_536_000_000_000_000, "after": None},
            ],
        }
    ]
    assert configs(raw)["ORDERS"]["max_msgs"] == -1


@pytest.mark.server(">=2.12")  # earlier ones take any number of replicas
def test_an_error_of_the_server_names_the_change(applied, raw, tmp_path):
    """Completed steps are reported; the error names the step and the difference."""
    jsm, _ = applied
    document = {
        "streams": [
            {"name": "ORDERS", "max_msgs": 7},
            {"name": "OTHER", "subjects": ["other"]},
            {"name": "THIRD", "subjects": ["ORDERS.x"]},
        ]
    }
    refused = jsm("apply", "-f", file_of(tmp_path, document), "-j")
    assert refused.status == 1
    done = [(item["stream"], item["action"]) for item in refused.json["items"]]
    assert done == [("ORDERS", "updated"), ("OTHER", "created")]
    assert [item["stream"] for item in refused.json["not_done"]] == ["THIRD"]
    assert "stream THIRD" in refused.error["description"]
    refused = jsm("apply", "-f", file_of(tmp_path, {"name": "ORDERS", "num_replicas": 3}))
    assert refused.status == 1
    assert refused.out == "not done  stream ORDERS\n1 not done\n"
    assert "num_replicas: 1 -> 3" in refused.err
    assert "OTHER" in configs(raw)


def test_prune_deletes_only_what_belongs_to_the_set(jsm, raw, tmp_path):
    """--prune deletes labelled objects that the file does not contain, after confirmation."""
    jsm("stream", "add", "STRAY", "--defaults").ok()
    jsm("consumer", "add", "STRAY", "OTHER", "--defaults", "--pull").ok()
    everything = {
        "set": "shop",
        "streams": [*ORDERS["streams"], {"name": "OLD", "subjects": ["old"]}],
        "consumers": [{"stream": "STRAY", "name": "LABELLED"}],
        "buckets": [{"bucket": "CONFIG", "history": 5}, {"bucket": "OLD"}],
        "object_stores": [{"bucket": "FILES"}],
    }
    jsm("apply", "-f", file_of(tmp_path, everything)).ok()
    raw.request("old", b"1")
    found = configs(raw)
    assert found["OLD"]["metadata"]["jetstream_sync.set"] == "shop"
    assert found["KV_CONFIG"]["max_msgs_per_subject"] == 5
    assert {"OBJ_FILES", "KV_OLD"} <= set(found)
    fewer = {"set": "shop", "streams": [{**ORDERS["streams"][0], "consumers": []}]}
    path = file_of(tmp_path, fewer)
    jsm("apply", "-f", path).ok()
    assert set(configs(raw)) == set(found)
    assert jsm("apply", "-f", path, "--prune").status == 2
    shown = jsm("apply", "-f", path, "--prune", "--dry-run").ok().out
    assert "would delete  stream OLD, 1 message\n" in shown
    assert "STRAY > LABELLED" in shown
    assert set(configs(raw)) == set(found)
    done = jsm("apply", "-f", path, "--prune", "--force").ok()
    assert "delete  stream OLD, 1 message" in done.err
    assert set(configs(raw)) == {"ORDERS", "STRAY", "STRAY > OTHER"}
    # Without a set, nothing can be told apart.
    other = jsm("apply", "-f", path, "--set", "bar")
    refused = jsm("apply", "-f", file_of(tmp_path, {"streams": []}), "--prune", "--force")
    assert refused.status == 2
    assert "--set" in refused.err
    assert other.status == 2
    assert "belongs to set 'shop'" in other.err


def test_prune_asks_for_the_number(jsm, raw, terminal, tmp_path):
    """On a terminal, the number of deletions is the confirmation."""
    document = {"set": "shop", "streams": [{"name": name, "subjects": [name]} for name in "ABC"]}
    jsm("apply", "-f", file_of(tmp_path, document)).ok()
    path = file_of(tmp_path, {"set": "shop", "streams": document["streams"][:1]})
    # --yes is for scripts.
    shown = terminal("apply", "-f", path, "--prune", "-y")
    shown.expect("delete  stream B, 0 messages")
    shown.answer("Number of deletions", "3")
    shown.expect("not the number of deletions")
    shown.send(f"{CLEAR_LINE}2\n")
    assert shown.wait() == 0
    assert set(configs(raw)) == {"A"}


def test_fields_that_are_not_in_the_file(jsm, raw, tmp_path):
    """A dry run lists them; with --strict they get their defaults."""
    jsm("stream", "add", "S", "--subjects", "s", "--max-age", "1h", "--defaults").ok()
    path = file_of(tmp_path, {"streams": [{"name": "S", "subjects": ["s"]}]})
    shown = jsm("apply", "-f", path, "--dry-run").ok().out
    assert "not managed: allow_direct: true; max_age: 1h0m0s" in shown
    (item,) = jsm("apply", "-f", path, "--dry-run", "-j").ok().json["items"]
    assert [entry["field"] for entry in item["not_managed"]] == ["allow_direct", "max_age"]
    bucket = file_of(tmp_path, {"buckets": [{"bucket": "B"}], "object_stores": [{"bucket": "O"}]})
    jsm("apply", "-f", bucket).ok()
    assert "not managed" not in jsm("apply", "-f", bucket, "--dry-run").ok().out
    path = file_of(tmp_path, {"streams": [{"name": "S", "subjects": ["s"]}]})
    strict = jsm("apply", "-f", path, "--strict").ok().out
    assert "max_age: 1h0m0s -> -" in strict
    assert configs(raw)["S"]["max_age"] == 0
    assert jsm("apply", "-f", path, "--strict").ok().out.endswith("1 unchanged\n")


def test_the_json_output_of_other_commands_is_accepted(jsm, raw, tmp_path):
    """A config, an info document, a list of them and standard input are accepted."""
    jsm("apply", "-f", file_of(tmp_path, ORDERS)).ok()
    info = jsm("stream", "info", "ORDERS", "-j").ok().out
    consumer = raw.api("CONSUMER.INFO.ORDERS.NEW")
    assert jsm("apply", "-f", "-", stdin=info.encode()).ok().out.endswith("1 unchanged\n")
    both = json.dumps([json.loads(info), consumer]).encode()
    jsm("stream", "rm", "ORDERS", "-f").ok()
    assert jsm("apply", "-f", "-", stdin=both).ok().out.endswith("2 created\n")
    assert set(configs(raw)) == {"ORDERS", "ORDERS > NEW"}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"streams": [{"subjects": ["a"]}]}, "name"),
        ({"streams": [{"name": "A.B"}]}, "A.B"),
        ({"streams": [{"name": "A", "max_mgs": 5}]}, "max_msgs"),
        ({"streams": [{"name": "A"}, {"name": "A"}]}, "twice"),
        ({"streams": {"name": "A"}}, "expected a list"),
        ({"streams": [], "extras": []}, "extras"),
        ({"consumers": [{"name": "C"}]}, "stream"),
        ({"consumers": [{"stream": "S", "ack_policy": "none"}]}, "no name"),
        ({"consumers": [{"stream": "S", "name": "C", "ack_wait": "soon"}]}, "ack_wait"),
        (5, "expected an object"),
    ],
)
def test_an_invalid_file_changes_nothing(jsm, raw, tmp_path, document, words):
    """The error names the place in the file and the problem; the exit status is 2."""
    path = file_of(tmp_path, document)
    refused = jsm("apply", "-f", path)
    assert refused.status == 2
    assert words in refused.err
    assert path in refused.err
    assert len(refused.err.splitlines()) == 1
    assert configs(raw) == {}


def test_a_consumer_needs_an_existing_stream(jsm, tmp_path):
    """A consumer whose stream exists neither on the server nor in the file exits with status 3."""
    document = {"consumers": [{"stream": "NOPE", "name": "C"}]}
    refused = jsm("apply", "-f", file_of(tmp_path, document))
    assert refused.status == 3
    assert "NOPE" in refused.err


def test_yaml_values_are_read_as_json_values(jsm, raw, tmp_path):
    """YAML times are read as text, and a YAML error is reported in one line."""
    file = tmp_path / "orders.yaml"
    file.write_text(
        "name: A\nsubjects: [a]\nmetadata: {2026: 2026-01-02}\nconsumers:\n- name: C\n"
        "  deliver_policy: by_start_time\n  opt_start_time: 2026-01-02T15:04:05.678\n"
    )
    jsm("apply", "-f", str(file)).ok()
    assert configs(raw)["A"]["metadata"]["2026"] == "2026-01-02"
    made = raw.api("CONSUMER.INFO.A.C")["config"]
    assert made["opt_start_time"] == "2026-01-02T15:04:05.678Z"
    for text, words in (("2026-13-01", "month must be"), ("0001-01-01T00:00:00+05:00", "range")):
        file.write_text(f"name: {text}\n")
        refused = jsm("apply", "-f", str(file))
        assert (refused.status, refused.err.count("\n")) == (2, 1), refused
        assert words in refused.err


def test_yaml_needs_pyyaml(jsm, raw, tmp_path, monkeypatch):
    """YAML is read with PyYAML; the error without it names the package."""
    file = tmp_path / "orders.yaml"
    file.write_text("name: A\nsubjects: [a.*]\nmax_age: 1y\n---\nname: B\nsubjects: b.*\n")
    jsm("apply", "-f", str(file)).ok()
    assert configs(raw)["A"]["max_age"] == 31_536_000_000_000_000
    assert configs(raw)["B"]["subjects"] == ["b.*"]
    monkeypatch.setitem(sys.modules, "yaml", None)
    refused = jsm("apply", "-f", str(file))
    assert refused.status == 2
    assert "PyYAML" in refused.err


def test_durations_in_lists_and_records_have_units(jsm, tmp_path):
    """No duration of a difference is shown in nanoseconds."""
    document = {
        "streams": [
            {
                "name": "S",
                "consumers": [{"name": "C", "max_deliver": 5, "backoff": ["1s", "2m"]}],
                "consumer_limits": {"inactive_threshold": "1h"},
            }
        ]
    }
    path = file_of(tmp_path, document)
    jsm("apply", "-f", path).ok()
    text = Path(path).read_text().replace("2m", "3m").replace("1h", "2h")
    Path(path).write_text(text)
    shown = jsm("apply", "-f", path, "--dry-run").ok().out
    assert "backoff: 1s, 2m0s -> 1s, 3m0s" in shown
    assert '{"inactive_threshold": "1h0m0s"} -> {"inactive_threshold": "2h0m0s"}' in shown
