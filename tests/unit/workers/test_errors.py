"""The errors of workers."""

from __future__ import annotations

import copy
import pickle

import pytest

from jetstream_sync.workers import BatchError, Reject, Retry, TaskError


@pytest.mark.parametrize(
    "error",
    [
        Reject("no"),
        Retry("later", 3),
        BatchError({1: ValueError("too large"), 2: Reject("negative")}),
        TaskError("it failed", "FAILED", "Traceback: ..."),
    ],
    ids=repr,
)
def test_errors_keep_their_fields_in_copies(error):
    """Handlers may raise them in another process or thread."""
    for again in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert repr(vars(again)) == repr(vars(error))
