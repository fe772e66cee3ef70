"""The code in ``docs/howto/spark.rst`` and ``docs/tutorial/spark.rst`` runs, with the described results."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
from fixtures.rawnats import RawClient

from jetstream_sync.server import NatsServer

pytestmark = pytest.mark.spark

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^\.\. code-block:: python\n\n(?P<code>(?:\n|   .*\n)+)", re.MULTILINE)
ORDERS = 1000


def run_page(page: Path, server: NatsServer, folder: Path) -> None:
    """Run the blocks of a page in order, in one namespace."""
    text = page.read_text(encoding="utf-8")
    names: dict[str, object] = {"__name__": "__main__"}
    blocks = list(_BLOCK.finditer(text))
    assert len(blocks) == text.count("code-block:: python")
    for block in blocks:
        line = text.count("\n", 0, block.start("code"))
        code = textwrap.dedent(block["code"]).replace("nats://127.0.0.1:4222", server.url)
        # The local folder of Spark's relative paths differs from the current folder.
        code = re.sub(r'"(checkpoint|checkpoint-jobs)"', rf'"{folder}/\1"', code)
        exec(compile("\n" * line + code, str(page), "exec"), names)


@pytest.mark.full
@pytest.mark.timeout(180)
@pytest.mark.usefixtures("spark")
def test_the_page_runs(fresh_server, tmp_path, monkeypatch, capfd):
    """All code blocks run in order: write, read, stream, work queue, backlog."""
    monkeypatch.chdir(tmp_path)
    run_page(DOCS / "howto" / "spark.rst", fresh_server, tmp_path)
    printed = capfd.readouterr().out
    assert f"count(1)={ORDERS}, min(sequence)=1," in printed
    assert f"[Row(subject='ORDERS.received', count={ORDERS - 500})]" in printed
    assert "'pending': 0" in printed
    with RawClient(fresh_server.port) as raw:
        subjects = raw.api("STREAM.INFO.ORDERS", subjects_filter=">")["state"]["subjects"]
        last = raw.api("STREAM.MSG.GET.ORDERS", last_by_subj="ORDERS.processed")
    assert subjects == {"ORDERS.received": ORDERS, "ORDERS.processed": ORDERS}
    assert last["message"]["data"]


@pytest.mark.full
@pytest.mark.timeout(180)
@pytest.mark.usefixtures("spark")
def test_the_tutorial_runs_twice(fresh_server, tmp_path, monkeypatch):
    """The tutorial publishes each alert once, also when it runs again with its checkpoint."""
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        run_page(DOCS / "tutorial" / "spark.rst", fresh_server, tmp_path)
