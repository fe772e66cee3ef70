"""Tests over a table: one test runs every case, and reports each case that fails."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

__all__ = ["each_case"]


def each_case(
    names: str | Sequence[str], cases: Iterable[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """
    Run a test with each case of a table, as one test.

    For tables in which every case checks the same rule. `pytest.mark.parametrize` makes each case
    a test of its own, with its own fixtures, report and order; that costs more than a short case.
    Fixtures of the test are set up once, so a case must not change what they return.

    Args:
        names: parameters of the test, as for `pytest.mark.parametrize`.
        cases: a value for each case, or a sequence of values where there are several names.

    """
    wanted = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = [case if len(wanted) > 1 else (case,) for case in cases]
    assert table, "a table without cases checks nothing"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run_all(*args: Any, **fixtures: Any) -> None:
            failures = []
            for case in table:
                values = dict(zip(wanted, case, strict=True))
                try:
                    test(*args, **fixtures, **values)
                except (Exception, pytest.fail.Exception) as error:
                    failures.append((values, error))
            if failures:
                listed = "\n".join(
                    f"--- {', '.join(f'{name}={value!r}' for name, value in values.items())}\n{error!r}"
                    for values, error in failures
                )
                text = f"{len(failures)} of {len(table)} cases fail:\n{listed}"
                raise AssertionError(text) from failures[0][1]

        signature = inspect.signature(test)
        assert set(wanted) <= signature.parameters.keys(), f"{test} takes no {wanted}"
        run_all.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[each for name, each in signature.parameters.items() if name not in wanted]
        )
        return run_all

    return decorate
