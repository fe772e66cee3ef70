"""The programs of docs/howto/threads: pools of processes, forked and spawned."""

from __future__ import annotations

import multiprocessing

import pytest
from fixtures.apps import APPS, run
from fixtures.rawnats import RawClient

METHODS = multiprocessing.get_all_start_methods()

pytestmark = pytest.mark.timeout(110)


@pytest.mark.matrix
@pytest.mark.parametrize("method", METHODS)
def test_a_pool(fresh_server, tmp_path, method):
    """Each process of a pool has its own connection, and the parent keeps its connection."""
    output = run([str(APPS / "multiprocessing" / "pool.py"), method], fresh_server.url, tmp_path)
    assert "100 orders from " in output
    assert "101 in the stream" in output
    with RawClient(fresh_server.port) as raw:
        assert raw.api("STREAM.INFO.ORDERS")["state"]["messages"] == 101


@pytest.mark.matrix
@pytest.mark.parametrize("method", [method for method in METHODS if method != "forkserver"])
def test_an_executor(fresh_server, tmp_path, method):
    """Messages stay in the process that fetched them; other processes get their bytes."""
    output = run(
        [str(APPS / "multiprocessing" / "executor.py"), method], fresh_server.url, tmp_path
    )
    assert "100 results" in output
    assert "0 open" in output
    with RawClient(fresh_server.port) as raw:
        assert raw.api("STREAM.INFO.RESULTS")["state"]["messages"] == 100
        last = raw.api("STREAM.MSG.GET.RESULTS", last_by_subj="RESULTS.squares")["message"]
    assert last["seq"] == 100
