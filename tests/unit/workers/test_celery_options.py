"""The words of Celery: in errors, and on the page that has all of them."""

from __future__ import annotations

import pytest
from pages import ROOT

from jetstream_sync import InvalidOptionError
from jetstream_sync.workers import Worker
from jetstream_sync.workers.options import CELERY_WORDS

PAGE = ROOT / "docs" / "howto" / "from-celery.rst"


def test_the_page_has_every_word():
    """The table of the page is that of the errors."""
    rows = [f"   * - {a}\n     - ``{b}``\n     - {c}\n" for a, b, c in CELERY_WORDS]
    assert "".join(rows) in PAGE.read_text()


@pytest.mark.parametrize(("place", "word", "hint"), CELERY_WORDS)
def test_a_word_of_celery_is_an_error_that_names_the_right_one(place, word, hint):
    """Each option and each attribute that the table has is refused with its replacement."""
    worker = Worker("nats://127.0.0.1:1", name="tests")
    task = worker.task(name="add")(add)
    with pytest.raises((InvalidOptionError, AttributeError)) as caught:
        if place == "task":
            worker.task(**{word: 1})
        elif place == "call":
            task.apply_async((1, 2), **{word: 1})
        else:
            getattr(task if place == "task object" else task.result_of("x"), word)
    assert hint in str(caught.value)


def add(x: int, y: int) -> int:
    return x + y
