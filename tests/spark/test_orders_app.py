"""The program ``docs/howto/apps/spark/orders.py``: all orders once, and how it ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.apps import APPS, Program
from fixtures.spark import need_java, processes_of_session, spark_environment
from fixtures.threads import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(200)]

COUNT = 2_500


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    """The program, with its temporary files in ``tmp_path/temporary``."""
    need_java()
    (tmp_path / "temporary").mkdir()
    variables = {**spark_environment(), "TMPDIR": str(tmp_path / "temporary")}
    # As in a virtual environment that is not activated: the program itself finds the interpreter.
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        del variables[name]
    command = [str(APPS / "spark" / "orders.py"), str(COUNT)]
    with Program(command, "", tmp_path, variables=variables) as running:
        yield running


def assert_nothing_left(program: Program, folder: Path) -> None:
    """Check that a program that has ended left no process and no file."""
    wait_until(lambda: not processes_of_session(program.process.pid), 15)
    assert list((folder / "temporary").iterdir()) == []


@pytest.mark.full
def test_every_order_comes_through_once(program, tmp_path):
    """Both queries take all orders through, and their repeated batches store nothing twice."""
    assert program.ended(150) == 0, program.output
    lines = program.output.splitlines()
    assert lines[-1] == f"{COUNT} orders came through exactly once"
    repeated = [line.split() for line in lines if "repeated a batch of" in line]
    assert [int(words[words.index("of") + 1]) > 0 for words in repeated] == [True, True]
    assert_nothing_left(program, tmp_path)


@pytest.mark.full
def test_ctrl_c_leaves_nothing_behind(program, tmp_path):
    """Ctrl-C in the middle ends the program with its server, Spark and temporary files."""
    program.wait_for(f" of {COUNT} completed", 110)
    program.ctrl_c()
    assert program.ended(60) == 1
    assert program.output.splitlines()[-1] == "interrupted"
    assert_nothing_left(program, tmp_path)
