"""Prompts on a terminal, and behaviour without one."""

from __future__ import annotations

import io
from typing import Any

import pytest
from fixtures.jsm import Result, run_jsm

from jetstream_sync.cli.shared.env import Environment
from jetstream_sync.cli.shared.prompts import Asker
from jetstream_sync.cli.shared.settings import Settings
from jetstream_sync.cli.shared.status import CommandError
from jetstream_sync.exit_status import ExitStatus


class Keyboard(io.BytesIO):
    """A terminal on which nothing is typed."""

    def isatty(self) -> bool:
        return True


class Screen(io.StringIO):
    """What a person sees."""

    def isatty(self) -> bool:
        return True


def asker(*, tty: bool = True, **given: Any) -> tuple[Asker, Screen]:
    """Return an ``Asker`` that reads nothing, and the screen that it writes to."""
    screen = Screen()
    stdin = Keyboard() if tty else io.BytesIO()
    env = Environment(stdin=stdin, stdout=Screen(), stderr=screen)
    return Settings(env=env, given=given).ask(), screen


def test_nothing_to_choose_from_is_an_error():
    """An empty list is not shown."""
    ask, _ = asker()
    with pytest.raises(CommandError) as caught:
        ask.select("Select a stream", list, "STREAM")
    assert caught.value.status is ExitStatus.NOT_FOUND


@pytest.mark.parametrize("how", [{"tty": False}, {"no_input": True}, {"json": True}])
def test_nobody_to_ask(how):
    """Without a terminal defaults are used, and one error lists all missing values."""
    ask, screen = asker(**how)
    assert ask.value("Storage", "--storage", str, default="file", blank="") == "file"
    ask.value("Name", "NAME", str, blank="")
    ask.value("Subjects", "--subjects", str, blank="")
    assert ask.select("Stream", list, "STREAM") == ""
    with pytest.raises(CommandError, match="missing: NAME, --subjects, STREAM") as caught:
        ask.done()
    assert caught.value.status is ExitStatus.USAGE
    with pytest.raises(CommandError, match="--force"):
        ask.confirm("Delete it?", force=False)
    assert screen.getvalue() == ""


def test_questions_that_nobody_sees_are_not_asked():
    """Without a terminal on standard error there are no prompts."""
    env = Environment(stdin=Keyboard(), stdout=Screen(), stderr=io.StringIO())
    assert not Settings(env=env).interactive


def _asked(*args: str, **variables: str) -> Result:
    return run_jsm("context", "select", *args, stdin=b"\n", tty=True, **variables)


@pytest.mark.parametrize(
    ("args", "variables"),
    [(("--no-input",), {}), (("-j",), {}), ((), {"JSM_NO_INPUT": "1"}), ((), {"CI": "true"})],
)
def test_words_against_questions(args, variables):
    """--no-input, JSM_NO_INPUT, CI and -j disable prompts on a terminal."""
    result = _asked(*args, **variables)
    assert result.status == 2
    assert "missing: NAME" in result.err


def test_a_list_is_drawn_and_searched(terminal, raw, jsm):
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


def test_a_password_is_asked_for_and_not_shown(terminal):
    """A user without a password is prompted for it without echo."""
    child = terminal("account", "info", "--user", "me")
    child.answer("Password of me", "geheim")
    child.wait()
    assert "geheim" not in child.text


def test_ctrl_d_at_a_password_is_no_answer(terminal):
    """Ctrl-D at the password prompt is an error in one line."""
    child = terminal("account", "info", "--user", "me")
    child.expect("Password of me")
    child.send("\x04")
    assert child.wait() == 2, child.text
    assert "the input ended before the password" in child.text
    assert "bug" not in child.text


def test_a_password_is_asked_for_once(terminal, nats_server):
    """Several connections prompt once: a second prompt would not be answered."""
    servers = f"{nats_server.url},{nats_server.url}"
    for command in (
        ("rtt", "-n", "1", "-s", servers),
        ("bench", "pub", "--msgs", "10", "--clients", "2"),
    ):
        child = terminal(*command, "--user", "me")
        child.answer("Password of me", "geheim")
        assert child.wait() == 0, child.text


def test_ctrl_c_at_a_question(terminal, raw):
    """Ctrl-C at a question ends the command with status 130."""
    assert raw.info
    child = terminal("account", "info", "--user", "me")
    child.expect("Password of me")
    child.send("\x03")
    assert child.wait() == 130, child.text
