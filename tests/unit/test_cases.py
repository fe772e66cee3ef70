"""`each_case` of the tests: no failing case is hidden by the others."""

import pytest
from fix_cases import each_case


def test_every_case_runs_and_every_failure_is_listed():
    """A failing case does not stop the later ones, and the error names each case that failed."""
    ran = []

    @each_case("number", [1, 2, 3, 4])
    def even(number):
        ran.append(number)
        assert number % 2 == 0

    with pytest.raises(AssertionError) as caught:
        even()
    assert ran == [1, 2, 3, 4]
    assert "2 of 4 cases fail" in str(caught.value)
    assert "number=1" in str(caught.value)
    assert "number=3" in str(caught.value)
    assert "number=2" not in str(caught.value)


@each_case("left, right", [(1, 2), (2, 3)])
@each_case("offset", [0, 10])
def test_tables_combine_with_each_other_and_with_fixtures(tmp_path, left, right, offset):
    """Two tables give every combination, and the other parameters are fixtures."""
    assert tmp_path.is_dir()
    assert left + offset < right + offset


def test_an_empty_table_is_refused():
    """A table that lost its cases fails, instead of passing without a check."""
    with pytest.raises(AssertionError, match="without cases"):
        each_case("number", [])
