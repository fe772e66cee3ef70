"""The Grafana dashboard and the alert rules of the pages: their form, and the metrics that they name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from fixtures.threads import wait_until
from fixtures.worker import running

from jetstream_sync import Stream
from jetstream_sync.server import NatsServer
from jetstream_sync.workers import Worker
from jetstream_sync.workers.metrics import metrics_text

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "howto" / "apps" / "monitoring"


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((FOLDER / "dashboard.json").read_text())["panels"]
    return found


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def expressions() -> list[str]:
    """Return all expressions, with values in place of the variables of Grafana."""
    found = [target["expr"] for panel in panels() for target in panel["targets"]]
    found = [item.replace("$__rate_interval", "5m").replace("$handler", ".*") for item in found]
    return [*found, *(rule["expr"] for rule in alerts())]


@pytest.fixture
def metrics(stream: Stream, nats_server: NatsServer) -> set[str]:
    """The names of the metrics of a running worker, and those of the outbox of Django."""
    worker = Worker(nats_server.url, name="shop")
    worker.handler(stream=stream.name, consumer="C", decode="text")(print)
    with running(worker):
        snapshot = wait_until(lambda: (now := worker.snapshot()) and now["handlers"] and now, 20)
        text = metrics_text([snapshot], 1)
    samples = re.findall(r"^# TYPE (\w+) (\w+)", text, re.MULTILINE)
    names = {name for name, kind in samples if kind != "histogram"}
    names |= {f"{name}_bucket" for name, kind in samples if kind == "histogram"}
    outbox = (ROOT / "jetstream_sync" / "django" / "outbox.py").read_text()
    return names | {f"jetstream_worker_{item}" for item in re.findall(r'\("(outbox_\w+)"', outbox)}


def test_every_metric_exists(metrics):
    """The dashboard shows every metric of a worker except three; alerts name no others."""
    named = set(re.findall(r"jetstream_worker_\w+", " ".join(expressions())))
    assert named <= metrics
    unused = {"leases_renewed_total", "settle_retries_total", "outbox_messages"}
    assert metrics - named == {f"jetstream_worker_{item}" for item in unused}


def test_expressions_are_valid():
    """Each expression is valid PromQL."""
    parser = pytest.importorskip("promql_parser", reason="promql-parser is in the extra test")
    for expression in expressions():
        parser.parse(expression)
    with pytest.raises(ValueError, match="parenthesis"):
        parser.parse("sum(")
