"""The frame of ``jsm``: options, streams, and the way from an error to an exit status."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from typing import NoReturn

import click
import pytest

from jetstream_sync import errors
from jetstream_sync.cli import main as cli_main
from jetstream_sync.cli.env import Environment
from jetstream_sync.cli.main import jsm, run
from jetstream_sync.cli.settings import Settings, common_options
from jetstream_sync.cli.status import CommandError, ExitStatus, exit_status, one_line


def jsm_run(*args: str, stdin: bytes = b"", **variables: str) -> tuple[int, str, str]:
    """Run a command line in this process."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    env = Environment(stdin=io.BytesIO(stdin), stdout=out, stderr=err, variables=variables)
    return run(args, env), text_of(out), text_of(err)


def text_of(stream: io.TextIOWrapper) -> str:
    """Return what was written."""
    stream.seek(0)
    return stream.read()


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """Give the tree a command ``fail`` that raises the first error of the list."""
    to_raise: list[BaseException] = []

    @click.command()
    @common_options
    def fail(_settings: Settings) -> NoReturn:
        raise to_raise[0]

    monkeypatch.setitem(jsm.commands, "fail", fail)
    return to_raise


STATUSES = [
    (CommandError("it went wrong", ExitStatus.TIMED_OUT), 4),
    (errors.APIError(400, 10001, "no"), 1),
    (errors.StreamNameInUseError(400, 10058, "name in use"), 1),
    (errors.BadSubjectError("a..b", "it has an empty token"), 2),
    (errors.InvalidNameError("stream", "a.b", "no dots"), 2),
    (errors.StreamNotFoundError(404, 10059, "stream not found"), 3),
    (errors.ConsumerNotFoundError(404, 10014, "consumer not found"), 3),
    (errors.TimeoutError("too late"), 4),
    (errors.NoServersError((("nats://x:1", "refused"),)), 5),
    (errors.AuthorizationError("wrong password"), 5),
    (errors.ConnectionLostError("gone"), 5),
    (errors.ServerUnavailableError("install it"), 5),
    (errors.JetStreamNotEnabledError(503, 10076, "JetStream not enabled"), 5),
    (errors.JetStreamNotEnabledForAccountError(503, 10039, "not for this account"), 5),
    (errors.NoRespondersError("a.b"), 6),
    (errors.NoStreamResponseError("a.b"), 1),
    (click.FileError("x", "no"), 1),
    (KeyboardInterrupt(), 130),
    (click.Abort(), 130),
]


@pytest.mark.parametrize(("error", "status"), STATUSES, ids=lambda value: type(value).__name__)
def test_every_error_is_one_line_and_its_status(
    failing: list[BaseException], error: BaseException, status: int
) -> None:
    """An error ends in one line on stderr, nothing on stdout, and the status of its kind."""
    failing.append(error)
    code, out, err = jsm_run("fail")
    assert (code, out) == (status, "")
    assert err.startswith("jsm: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")


@pytest.mark.parametrize(("error", "status"), STATUSES, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("args", [("-j", "fail"), ("fail", "--json")], ids=["root", "leaf"])
def test_with_json_the_error_is_a_document(
    failing: list[BaseException], error: BaseException, status: int, args: tuple[str, ...]
) -> None:
    """With --json at either place the error is a JSON document on stderr."""
    failing.append(error)
    code, out, err = jsm_run(*args)
    assert (code, out) == (status, "")
    document = json.loads(err)["error"]
    assert document["exit_status"] == status
    if isinstance(error, errors.APIError):
        assert document["err_code"] == error.err_code


def test_every_error_of_the_library_has_a_status() -> None:
    """No error of the library is taken for an unknown one by accident: the root has a status."""
    assert exit_status(errors.Error("x")) is ExitStatus.FAILED


def test_a_bug_is_not_hidden(failing: list[BaseException]) -> None:
    """An error that nobody raises on purpose is not made into a message."""
    failing.append(ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError):
        jsm_run("fail")


def test_error_text_is_folded_into_one_line() -> None:
    """Line breaks in an error's text become spaces; an error without text has its name."""
    assert one_line(errors.Error("a\nb\r\n  c")) == "a b c"
    assert one_line(errors.Error()) == "Error"


def test_broken_pipe_is_quiet(failing: list[BaseException]) -> None:
    """When the reader goes away nothing is written, and the status is that of SIGPIPE."""
    failing.append(BrokenPipeError())
    assert jsm_run("fail") == (141, "", "")


@pytest.mark.parametrize("args", [("--nonsense",), ("nonsense",), ("demo", "--workers", "0")])
def test_wrong_usage_is_status_2(args: tuple[str, ...]) -> None:
    """An unknown option or command, or a value out of range, is wrong usage."""
    code, out, err = jsm_run(*args)
    assert (code, out) == (2, "")
    assert err.startswith("jsm: ")
    assert err.count("\n") == 1


def test_wrong_usage_with_json() -> None:
    """With --json a usage error is a document as well."""
    code, _, err = jsm_run("demo", "-j", "--workers", "0")
    assert code == 2
    assert "--workers" in json.loads(err)["error"]["description"]


@pytest.mark.parametrize("option", ["-h", "--help"])
@pytest.mark.parametrize("command", [(), ("demo",)], ids=["jsm", "demo"])
def test_help_goes_to_stdout(command: tuple[str, ...], option: str) -> None:
    """Help is a result: it goes to stdout, at each level, and succeeds."""
    code, out, err = jsm_run(*command, option)
    assert (code, err) == (0, "")
    assert out.startswith("Usage: jsm")


def test_version() -> None:
    """The version names the program and the Python that runs it."""
    code, out, err = jsm_run("--version")
    assert (code, err) == (0, "")
    assert out.startswith("jsm ")
    assert f"Python {sys.version.split()[0]}" in out


def test_servers_of_the_nearest_level_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """--server may stand before or after the command, be repeated, or be a list."""
    seen: list[list[str]] = []

    @click.command()
    @common_options
    def show(settings: Settings) -> None:
        seen.append(settings.servers)

    monkeypatch.setitem(jsm.commands, "show", show)
    for args in (
        ("show",),
        ("-s", "a", "show"),
        ("-s", "a", "show", "--server", "b", "-s", "c"),
        ("show", "-s", "a:1, b:2"),
    ):
        assert jsm_run(*args)[0] == 0
    assert seen == [[], ["a"], ["b", "c"], ["a:1", "b:2"]]
    assert jsm_run("show", "-s", "a,,b")[0] == 2


def test_keep_needs_a_server() -> None:
    """--keep without --server is wrong usage: nothing could be kept."""
    code, _, err = jsm_run("demo", "--keep")
    assert code == 2
    assert "--keep needs --server" in err


def test_bad_stream_name_is_wrong_usage() -> None:
    """A stream name that no server accepts is refused before anything is started."""
    code, out, err = jsm_run("demo", "--stream", "a.b")
    assert (code, out) == (2, "")
    assert "'a.b'" in err


@pytest.mark.parametrize(
    ("stdin", "part"),
    [(b"", "no orders"), (b"[]\n", "standard input, line 1: not a JSON object")],
)
def test_bad_input_is_wrong_usage(stdin: bytes, part: str) -> None:
    """Bad input is refused in one line, before a server is started."""
    code, out, err = jsm_run("demo", "--input", "-", stdin=stdin)
    assert (code, out) == (2, "")
    assert part in err
    assert err.count("\n") == 1


def test_missing_input_file_is_wrong_usage() -> None:
    """A file that is not there is named."""
    code, _, err = jsm_run("demo", "--input", "no-such-file.jsonl")
    assert (code, err) == (2, "jsm: can not read no-such-file.jsonl: No such file or directory\n")


def test_completion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shell completion knows the commands."""
    # click reads what the shell passes from the process.
    monkeypatch.setenv("COMP_WORDS", "jsm de")
    monkeypatch.setenv("COMP_CWORD", "1")
    code, out, err = jsm_run(_JSM_COMPLETE="bash_complete")
    assert (code, err) == (0, "")
    assert "demo" in out


def start(*args: str) -> subprocess.Popen[bytes]:
    """Start ``jsm`` as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "jetstream_sync.cli", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_process_with_a_closed_pipe() -> None:
    """The process writes nothing about a reader that went away, not even at its very end."""
    process = start("--help")
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr as stderr:
        assert stderr.read() == b""
    assert process.wait(timeout=30) == ExitStatus.BROKEN_PIPE


def test_process_without_click_names_the_extra() -> None:
    """Without the extra the process says in one line what to install."""
    code = (
        "import sys; sys.modules['click'] = None; "
        "from jetstream_sync.cli.__main__ import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.decode() == "jsm needs click: pip install 'jetstream-sync[cli]'\n"


def test_entry_point_uses_the_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`main` takes the arguments of the process and exits with the status."""
    monkeypatch.setattr(sys, "argv", ["jsm", "--version"])
    with pytest.raises(SystemExit) as caught:
        cli_main.main()
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("jsm ")
