"""Prompts on a terminal, and behaviour without one."""

from __future__ import annotations

import io
from datetime import timedelta
from typing import Any

import pytest
from fix_jsm import Jsm, Result, run_jsm
from rawnats import RawClient

from jetstream_sync.cli.env import Environment
from jetstream_sync.cli.prompts import Asker
from jetstream_sync.cli.settings import Settings
from jetstream_sync.cli.status import CommandError, ExitStatus
from jetstream_sync.cli.values import parse_limited_duration
from jetstream_sync.server import NatsServer


class Answers(io.BytesIO):
    """What a person types."""

    def isatty(self) -> bool:
        return True


class Screen(io.StringIO):
    """What a person sees."""

    def isatty(self) -> bool:
        return True


def asker(typed: str = "", *, tty: bool = True, **given: Any) -> tuple[Asker, Screen]:
    """Return an ``Asker`` and the screen that it writes to."""
    screen = Screen()
    stdin = Answers(typed.encode()) if tty else io.BytesIO(typed.encode())
    env = Environment(stdin=stdin, stdout=Screen(), stderr=screen)
    return Asker(Settings(env=env, given=given)), screen


def test_an_answer_is_taken() -> None:
    """A prompt is written to standard error, and its answer is returned."""
    ask, screen = asker("ORDERS.*\n")
    assert ask.text("Subjects to consume", "--subjects") == "ORDERS.*"
    assert screen.getvalue() == "? Subjects to consume "


def test_a_value_that_was_given_is_not_asked_for() -> None:
    """A given value is returned without a prompt, also an empty text."""
    ask, screen = asker()
    assert ask.text("Filter", "--filter", value="") == ""
    assert screen.getvalue() == ""


def test_an_empty_answer_is_the_default() -> None:
    """An empty answer is the default, which the question shows."""
    ask, screen = asker("\n")
    age = ask.value(
        "Maximum age", "--max-age", parse_limited_duration, default="1y", blank=timedelta(0)
    )
    assert age == timedelta(days=365)
    assert "(1y)" in screen.getvalue()


def test_what_is_required_is_asked_for_again() -> None:
    """Without a default, the prompt is repeated after an empty answer."""
    ask, screen = asker("\n\nA\n")
    assert ask.text("Name", "NAME") == "A"
    assert screen.getvalue().count("? Name") == 3


def test_an_answer_without_sense_is_asked_for_again() -> None:
    """An invalid answer is reported, and the prompt is repeated."""
    ask, screen = asker("soon\n5m\n")
    assert ask.value(
        "Maximum age", "--max-age", parse_limited_duration, blank=timedelta(0)
    ) == timedelta(minutes=5)
    assert "invalid duration 'soon'" in screen.getvalue()


def test_a_question_mark_shows_help_that_names_the_flag() -> None:
    """A '?' shows what the question is about, and which flag answers it."""
    ask, screen = asker("?\nx\n")
    assert ask.text("Subjects", "--subjects", help="What is stored.") == "x"
    assert "What is stored. Settable using --subjects" in screen.getvalue()
    assert screen.getvalue().count("? Subjects") == 2


def test_a_choice_is_one_of_the_options() -> None:
    """The start of an option is enough where it is the only one."""
    ask, screen = asker("x\nm\n")
    assert ask.choice("Storage", ["file", "memory"], "--storage", default="file") == "memory"
    assert "one of file, memory" in screen.getvalue()


def test_a_name_is_chosen_by_number_or_name() -> None:
    """Without a drawing library the list has numbers."""
    for typed in ("2\n", "B\n", "9\nB\n"):
        ask, _ = asker(typed)
        assert ask.select("Select a stream", ["A", "B"], "STREAM") == "B"


def test_nothing_to_choose_from_is_an_error() -> None:
    """An empty list is not shown."""
    ask, _ = asker()
    with pytest.raises(CommandError) as caught:
        ask.select("Select a stream", list, "STREAM")
    assert caught.value.status is ExitStatus.NOT_FOUND


@pytest.mark.parametrize(("typed", "goes_on"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_a_confirmation_is_no_unless_it_is_yes(typed: str, goes_on: bool) -> None:
    """A destructive action needs a yes; an invalid answer repeats the prompt."""
    ask, said = asker(typed)
    if goes_on:
        ask.confirm("Delete it?", force=False)
    else:
        with pytest.raises(CommandError):
            ask.confirm("Delete it?", force=False)
    assert said.getvalue() == "? Delete it? (y/N) "


def test_the_end_of_the_input_ends_the_command() -> None:
    """Ctrl-D at a prompt is an error."""
    ask, _ = asker("")
    with pytest.raises(CommandError) as caught:
        ask.text("Name", "NAME")
    assert caught.value.status is ExitStatus.USAGE


@pytest.mark.parametrize("how", [{"tty": False}, {"no_input": True}, {"json": True}])
def test_nobody_to_ask(how: dict[str, Any]) -> None:
    """Without a terminal defaults are used, and one error lists all missing values."""
    ask, screen = asker("typed\n", **how)
    assert ask.text("Storage", "--storage", default="file") == "file"
    ask.text("Name", "NAME")
    ask.text("Subjects", "--subjects")
    assert ask.select("Stream", list, "STREAM") == ""
    with pytest.raises(CommandError, match="missing: NAME, --subjects, STREAM") as caught:
        ask.done()
    assert caught.value.status is ExitStatus.USAGE
    with pytest.raises(CommandError, match="--force"):
        ask.confirm("Delete it?", force=False)
    assert screen.getvalue() == ""


def test_the_block_ends_with_the_error() -> None:
    """The end of the with block raises the error for missing values."""
    ask, _ = asker(tty=False)

    def ask_in_a_block() -> None:
        with ask:
            ask.text("Name", "NAME")

    with pytest.raises(CommandError, match="NAME"):
        ask_in_a_block()


def test_questions_that_nobody_sees_are_not_asked() -> None:
    """Without a terminal on standard error there are no prompts."""
    env = Environment(stdin=Answers(), stdout=Screen(), stderr=io.StringIO())
    assert not Settings(env=env).interactive


def _asked(*args: str, **variables: str) -> Result:
    return run_jsm("context", "select", *args, stdin=b"\n", tty=True, **variables)


@pytest.mark.parametrize(
    ("args", "variables"),
    [(("--no-input",), {}), (("-j",), {}), ((), {"JSM_NO_INPUT": "1"}), ((), {"CI": "true"})],
)
def test_words_against_questions(args: tuple[str, ...], variables: dict[str, str]) -> None:
    """--no-input, JSM_NO_INPUT, CI and -j disable prompts on a terminal."""
    result = _asked(*args, **variables)
    assert result.status == 2
    assert "missing: NAME" in result.err


def test_a_list_is_drawn_and_searched(terminal: Any, raw: RawClient, jsm: Jsm) -> None:
    """On a real terminal a stream is chosen from a list that typing filters."""
    pytest.importorskip("questionary")
    for name in ("AAA", "ORDERS", "ZZZ"):
        raw.api(f"STREAM.CREATE.{name}", name=name, subjects=[name], storage="memory")
    child = terminal("stream", "info")
    child.expect("Select a stream")
    child.expect("settable using STREAM")
    child.expect("ZZZ")
    child.send("ORD")
    child.expect("ORD")
    child.send("\r")
    child.expect("ORDERS")
    assert child.wait() == 0, child.text
    assert "Subjects: ORDERS" in child.text
    assert jsm.url


def test_a_password_is_asked_for_and_not_shown(terminal: Any) -> None:
    """A user without a password is prompted for it without echo."""
    child = terminal("account", "info", "--user", "me")
    child.answer("Password of me", "geheim")
    child.wait()
    assert "geheim" not in child.text


def test_ctrl_d_at_a_password_is_no_answer(terminal: Any) -> None:
    """Ctrl-D at the password prompt is an error in one line."""
    child = terminal("account", "info", "--user", "me")
    child.expect("Password of me")
    child.send("\x04")
    assert child.wait() == 2, child.text
    assert "the input ended before all prompts were answered" in child.text
    assert "bug" not in child.text


def test_a_password_is_asked_for_once(terminal: Any, nats_server: NatsServer) -> None:
    """Several connections prompt for the password once."""
    servers = f"{nats_server.url},{nats_server.url}"
    for command in (
        ("rtt", "-n", "1", "-s", servers),
        ("bench", "pub", "--msgs", "10", "--clients", "2"),
    ):
        child = terminal(*command, "--user", "me")
        child.answer("Password of me", "geheim")
        assert child.wait() == 0, child.text
        assert child.text.count("Password of me") == 1


def test_ctrl_c_at_a_question(terminal: Any, raw: RawClient) -> None:
    """Ctrl-C at a question ends the command with status 130."""
    assert raw.info
    child = terminal("account", "info", "--user", "me")
    child.expect("Password of me")
    child.send("\x03")
    assert child.wait() == 130, child.text
