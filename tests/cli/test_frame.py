"""The frame of ``jsm``: options, streams, and the way from an error to an exit status."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import click
import pytest
from fixtures.jsm import NOWHERE, Jsm, run_jsm
from fixtures.threads import SCALE, wait_until

import jetstream_sync
from jetstream_sync import errors
from jetstream_sync.cli import main as cli_main
from jetstream_sync.cli.main import jsm as tree
from jetstream_sync.cli.shared.long_running import failover, pause
from jetstream_sync.cli.shared.settings import Settings, common_options
from jetstream_sync.cli.shared.status import CommandError, exit_status, one_line
from jetstream_sync.exit_status import ExitStatus
from jetstream_sync.server import NatsServer
from jetstream_sync.version import install_command


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """Give the tree a command ``fail`` that raises the first error of the list."""
    to_raise: list[BaseException] = []

    @click.command()
    @common_options
    def fail(_settings: Settings) -> NoReturn:
        raise to_raise[0]

    monkeypatch.setitem(tree.commands, "fail", fail)
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
    (errors.ConsumerIsPushBasedError(409, "Consumer is push based"), 2),
    (errors.ConsumerDeletedError(409, "Consumer Deleted"), 3),
    (click.FileError("x", "no"), 1),
    (FileNotFoundError(errno.ENOENT, "No such file", "x"), 1),
    (KeyboardInterrupt(), 130),
    (click.Abort(), 130),
]


@pytest.mark.parametrize(("error", "status"), STATUSES, ids=lambda value: type(value).__name__)
def test_every_error_is_one_line_and_its_status(failing, error, status):
    """An error ends in one line on stderr, or with --json in a document, and the status of its kind."""
    failing.append(error)
    result = run_jsm("fail")
    assert (result.status, result.out) == (status, "")
    assert result.err.startswith("jsm: ")
    assert result.err.count("\n") == 1
    assert result.err.endswith("\n")
    for args in (("-j", "fail"), ("fail", "--json")):
        result = run_jsm(*args)
        assert (result.status, result.out) == (status, "")
        assert result.error["exit_status"] == status
        if isinstance(error, errors.APIError):
            assert result.error["err_code"] == error.err_code


def test_every_error_of_the_library_has_a_status():
    """No error of the library is taken for an unknown one by accident: the root has a status."""
    assert exit_status(errors.Error("x")) is ExitStatus.FAILED


def test_a_bug_is_not_hidden(failing):
    """An unexpected exception is not converted to an error message."""
    failing.append(ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError):
        run_jsm("fail")


def test_error_text_is_folded_into_one_line():
    """Line breaks in an error's text become spaces; an error without text has its name."""
    assert one_line(errors.Error("a\nb\r\n  c")) == "a b c"
    assert one_line(errors.Error()) == "Error"


@pytest.mark.parametrize("option", ["-h", "--help"])
@pytest.mark.parametrize("command", [(), ("demo",)], ids=["jsm", "demo"])
def test_help_goes_to_stdout(command, option):
    """Help is a result: it goes to stdout, at each level, and succeeds."""
    result = run_jsm(*command, option)
    assert (result.status, result.err) == (0, "")
    assert result.out.startswith("Usage: jsm")


def test_no_command_is_help_on_stderr():
    """A group without a command says what there is, as wrong usage."""
    for args in ((), ("context",)):
        result = run_jsm(*args)
        assert (result.status, result.out) == (2, "")
        assert "Commands:" in result.err


@pytest.mark.parametrize(
    ("args", "meant"),
    [
        (("acount", "info"), "'account'"),
        (("context", "lst"), "'list'"),
        (("account", "info", "--timeot", "1s"), "--timeout"),
    ],
)
def test_a_slip_is_named(args, meant):
    """What is close to what there is, is what was meant."""
    result = run_jsm(*args)
    assert result.status == 2
    assert "id you mean" in result.err
    assert meant in result.err
    assert "--help" in result.err


def test_a_stream_with_a_slip(jsm, raw):
    """A stream that is not there is status 3, with the name that was meant and the server's code."""
    raw.api("STREAM.CREATE.ORDERS", name="ORDERS", subjects=["ORDERS.*"], storage="memory")
    result = jsm("stream", "info", "ORDRES")
    assert result.status == 3
    assert result.err == 'jsm: stream "ORDRES" not found, did you mean ORDERS?\n'
    error = jsm("stream", "info", "orders", "-j").error
    assert (error["code"], error["err_code"], error["exit_status"]) == (404, 10059, 3)
    assert "did you mean ORDERS?" in error["description"]


def test_version():
    """The version names the program and the Python that runs it."""
    result = run_jsm("--version")
    assert (result.status, result.err) == (0, "")
    assert result.out.startswith("jsm ")
    assert f"Python {sys.version.split()[0]}" in result.out


def test_servers_of_the_nearest_level_win(monkeypatch):
    """--server may stand before or after the command, be repeated, or be a list."""
    seen: list[list[str]] = []

    @click.command()
    @common_options
    def show(settings: Settings) -> None:
        seen.append(settings.servers)

    monkeypatch.setitem(tree.commands, "show", show)
    for args in (
        ("show",),
        ("-s", "a", "show"),
        ("-s", "a", "show", "--server", "b", "-s", "c"),
        ("show", "-s", "a:1, b:2"),
    ):
        assert run_jsm(*args).status == 0
    assert seen == [[], ["a"], ["b", "c"], ["a:1", "b:2"]]
    assert run_jsm("show", "-s", "a,,b").status == 2


def test_process_without_click_names_the_extra(tmp_path):
    """Without the extra the process says in one line what to install."""
    code = (
        "import sys; sys.modules['click'] = None; "
        "from jetstream_sync.cli.__main__ import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        cwd=tmp_path,  # the tests import the installed package, and so does the process
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.decode() == f"jsm needs click: {install_command('cli')}\n"


@pytest.mark.parametrize(
    "words", ["--help", "errors lookup 10059", "-s 127.0.0.1:1 account info", "-s 127.0.0.1:1 rtt"]
)
def test_a_command_is_not_late_for_the_modules_of_others(words):
    """The first output does not wait for what other commands, people and terminals need."""
    code = (
        "import sys\n"
        "before = set(sys.modules)\n"
        "from jetstream_sync.cli.__main__ import main\n"
        "try: main()\n"
        "finally: sys.stderr.write('|' + ' '.join(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words.split()],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=30,
        check=False,
    )
    modules = set(done.stderr.decode().rpartition("|")[2].split())
    assert "jetstream_sync.cli.shared.settings" in modules
    assert words != "--help" or "rich" not in modules
    assert modules.isdisjoint(
        {"questionary", "prompt_toolkit", "hashlib", "tempfile", "ssl"}
        | {"asyncio", "email", "http", "jetstream_sync.server", "jetstream_sync.spark"}
        | {
            f"jetstream_sync.cli.{noun}"
            for noun in ("streams", "consumers", "messages.bench", "top", "workers")
        }
    )


def test_entry_point_uses_the_process(monkeypatch, capsys):
    """`main` takes the arguments of the process and exits with the status."""
    monkeypatch.setattr(sys, "argv", ["jsm", "--version"])
    with pytest.raises(SystemExit) as caught:
        cli_main.main()
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("jsm ")


# --- processes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_a_command(jsm, number, status):
    """A command that waits ends at once, with the status of the signal and no traceback."""
    child = jsm.spawn("sub", "frame.signals", JSM_TRACE="1")
    assert child.stderr
    while b"SUB" not in (line := child.stderr.readline()) and b"isten" not in line:
        assert child.poll() is None, line
    child.send_signal(number)
    _, err = child.communicate(timeout=10 * SCALE)
    assert child.returncode == status
    assert b"Traceback" not in err


@pytest.mark.parametrize("args", [("--help",), ("account", "info"), ("errors", "ls", "-j")])
def test_a_reader_that_goes_away(jsm, args):
    """Nothing is written about a pipe that closed, not even at the very end of the process."""
    with jsm.spawn(*args) as child:
        assert child.stdout
        assert child.stderr
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait(10 * SCALE) == ExitStatus.BROKEN_PIPE


@pytest.mark.parametrize(
    "args",
    [
        ("kv", "watch", "FRAME"),
        ("sub", "--stream", "KV_FRAME", "--all", "-r"),
        ("stream", "view", "KV_FRAME", "--follow", "-r"),
    ],
)
def test_a_reader_that_goes_away_while_nothing_is_written(jsm, args):
    """A command that waits ends with the reader of its output, as in ``jsm kv watch FRAME | head -1``."""
    jsm("kv", "add", "FRAME").ok()
    jsm("kv", "put", "FRAME", "a", "1").ok()
    with jsm.spawn(*args) as child:
        assert child.stdout
        assert child.stdout.readline()
        child.stdout.close()
        assert child.wait(10 * SCALE) == ExitStatus.BROKEN_PIPE


def test_a_bug_is_one_line_unless_more_is_wanted(tmp_path):
    """An unexpected exception is one line with its location; JSM_DEBUG=1 adds the traceback."""
    code = (
        "import sys; from jetstream_sync.cli import main; "
        "main._invoke = lambda args, settings: 1 / 0; sys.argv[1:] = ['account', 'info']; "
        "from jetstream_sync.cli.__main__ import main; main()"
    )
    for debug, lines in (("", 1), ("1", 5)):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "JSM_DEBUG": debug},
            timeout=30,
            check=False,
        )
        assert done.returncode == 1
        text = done.stderr.decode()
        assert "ZeroDivisionError: division by zero" in text
        assert (text.count("\n") == 1) == (lines == 1)


@pytest.mark.parametrize(
    "how", [{"NO_COLOR": "1"}, {"JSM_COLOR": "never"}, {"TERM": "dumb"}], ids=str
)
def test_no_colours_for_who_wants_none(terminal, how):
    """On a terminal NO_COLOR, JSM_COLOR=never and TERM=dumb keep colours away."""
    child = terminal("errors", "ls", "consumer not found", **how)
    child.expect("10014")
    assert child.wait() == 0
    assert "\x1b[3" not in child.raw
    assert "\x1b[1;3" not in child.raw


ENVIRONMENT = {
    **os.environ,
    "XDG_CONFIG_HOME": NOWHERE,
    "PYTHONUNBUFFERED": "",
    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
}


def in_shell(jsm: Jsm, words: str, *, bash: bool = False) -> subprocess.CompletedProcess[bytes]:
    """Run ``jsm`` with arguments and redirections in a shell."""
    command = f"{sys.executable} -m jetstream_sync.cli {words}"
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"] if bash else ["sh", "-c", f"exec {command}"],
        check=False,
        env={**ENVIRONMENT, "NATS_URL": jsm.url},
        input=b"x",
        capture_output=True,
        timeout=60 * SCALE,
    )


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_command_whose_output_is_not_read(number, status):
    """As with a pager that shows its first page."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(writing, b"x" * 4096):
            pass
    os.set_blocking(writing, True)
    command = [sys.executable, "-m", "jetstream_sync.cli", "errors", "ls"]
    states: list[str] = []

    def is_waiting() -> bool:
        states.append(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0])
        return states[-20:] == ["S"] * 20

    with subprocess.Popen(command, env=ENVIRONMENT, stdout=writing) as process:
        os.close(writing)
        wait_until(is_waiting, 10)
        process.send_signal(number)
        assert process.wait(10 * SCALE) == status
    os.close(reading)


def test_standard_error_is_written_by_the_line(tmp_path):
    """Also to a file, as by any program of Python; a killed worker has written what its handlers printed."""
    (tmp_path / "printing.py").write_text(
        "import os, sys\nprint('seen', file=sys.stderr)\nprint('and this')\nos._exit(7)\n"
    )
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        command = [sys.executable, "-m", "jetstream_sync.cli", "worker", "run", "printing:worker"]
        environment = {**ENVIRONMENT, "PYTHONUNBUFFERED": "1"}
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, stdout=out, stderr=err, check=False
        )
    assert done.returncode == 7
    assert (tmp_path / "err").read_text() == "seen\n"
    assert (tmp_path / "out").read_text() == "and this\n"


@pytest.mark.matrix
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_not_used(jsm, closed):
    """No socket takes the place of a closed stream, and a result that cannot be written is an error."""
    jsm("stream", "add", "S", "--subjects", "s").ok()
    lost = int(">&-" in closed.split())
    for words, status in (("stream ls -n", lost), ("stream info NOPE", 3), ("pub s x -J", lost)):
        done = in_shell(jsm, f"{words} {closed}")
        assert done.returncode == status, done
        text = b"standard output: Bad file descriptor" if lost and status == 1 else b""
        assert text in done.stderr or "2>&-" in closed
        assert done.stderr.count(b"\n") == (status > 0 and "2>&-" not in closed)
    assert jsm("stream", "info", "S", "-j").json["state"]["messages"] == 1
    done = in_shell(jsm, f"pub s -J {closed}")
    assert done.returncode == (2 if "<&-" in closed else lost), done
    assert jsm("stream", "info", "S", "-j").json["state"]["messages"] == 2 - ("<&-" in closed)


@pytest.mark.parametrize("args", ["--version", "stream ls", "errors ls -j", "completion bash"])
def test_a_full_disk_is_an_error(jsm, args):
    """Output that cannot be written is one line and status 1, not the report of the interpreter."""
    done = in_shell(jsm, f"{args} > /dev/full")
    assert done.returncode == 1
    assert b"standard output: No space left on device" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_a_full_disk_is_named_for_unchanged_bytes(jsm):
    """Values and objects that are larger than the buffers are written past the text stream."""
    jsm("kv", "add", "K").ok()
    jsm("object", "add", "O").ok()
    value = b"x" * 100_000
    jsm("kv", "put", "K", "k", stdin=value).ok()
    jsm("object", "put", "O", "--name", "big", stdin=value).ok()
    for words in ("kv get K k --raw", "object get O big -O -"):
        done = in_shell(jsm, f"{words} > /dev/full")
        text = b"jsm: standard output: No space left on device\n"
        assert (done.returncode, done.stderr) == (1, text)


def test_two_failures_have_two_lines(jsm):
    """The error of a command comes first, and has the status; output that was lost is reported below it."""
    words = f"rtt --server {jsm.url},127.0.0.1:1"
    done = in_shell(jsm, f"{words} > /dev/full")
    said, lost = done.stderr.decode().splitlines()
    assert (done.returncode, said) == (5, "jsm: 1 of 2 servers answered")
    assert lost == "jsm: standard output: No space left on device"
    done = in_shell(jsm, f"{words} | true", bash=True)
    assert (done.returncode, done.stderr) == (5, b"jsm: 1 of 2 servers answered\n")


def test_lost_messages_of_the_program_change_nothing(jsm):
    """A full disk or a broken pipe behind standard error neither ends a command nor changes its status."""
    jsm("stream", "add", "S", "--subjects", "s").ok()
    for redirected in ("2> /dev/full", "2> >(true)"):
        assert in_shell(jsm, f"stream info NOPE {redirected}", bash=True).returncode == 3
        done = in_shell(jsm, f"stream rm -f S {redirected}", bash=True)
        assert done.returncode == 0, done
        jsm("stream", "add", "S", "--subjects", "s").ok()


@pytest.mark.matrix
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-16", "utf-8"])
def test_json_is_utf_8_whatever_the_locale_says(jsm, encoding):
    """JSON has one encoding; what is written for people has that of their terminal."""
    text = "Größe 日本 😀"
    jsm("stream", "add", "S", "--subjects", "s", "--description", text).ok()
    with jsm.spawn("stream", "info", "S", "-j", PYTHONIOENCODING=encoding) as child:
        out, _ = child.communicate(timeout=60 * SCALE)
    assert json.loads(out.decode())["config"]["description"] == text
    with jsm.spawn("stream", "info", "Größe", "-j", PYTHONIOENCODING=encoding) as child:
        _, err = child.communicate(timeout=60 * SCALE)
    assert "Größe" in json.loads(err.decode())["error"]["description"]
    with jsm.spawn("stream", "info", "S", PYTHONIOENCODING=encoding) as child:
        out, _ = child.communicate(timeout=60 * SCALE)
    assert "Description: Gr" in out.decode(encoding)


@pytest.mark.parametrize(
    ("subject", "said"),
    [
        ("$JS.API.STREAM.INFO.ORDERS", "stream ORDERS is unreachable"),
        ("$JS.API.CONSUMER.INFO.ORDERS.NEW", "consumer ORDERS > NEW is unreachable"),
        ("$JS.API.DIRECT.GET.ORDERS.a.b", "stream ORDERS is unreachable"),
        ("$JS.API.STREAM.DELETE.ORDERS", "stream ORDERS may have been deleted"),
        ("$JS.hub.API.STREAM.PURGE.ORDERS", "stream ORDERS may have been purged"),
        ("$JS.API.CONSUMER.CREATE.ORDERS.NEW.a", "consumer ORDERS > NEW may have been created"),
        ("$JS.API.CONSUMER.CREATE.ORDERS", "a consumer of stream ORDERS may have been created"),
        ("$JS.API.STREAM.NAMES", "it may have no meta leader"),
        ("JS.hub.API.STREAM.INFO.ORDERS", "stream ORDERS is unreachable"),
        ("JS.hub.API.STREAM.DELETE.ORDERS", "stream ORDERS may have been deleted"),
        ("JS.hub.API.STREAM.NAMES", "it may have no meta leader"),
        ("$JS.API.STREAM.INFO.KV_CONFIG", "bucket CONFIG is unreachable"),
        ("$JS.API.STREAM.CREATE.OBJ_FILES", "object store FILES may have been created"),
        ("$KV.CONFIG.a", "a stream may have stored the message"),
    ],
)
def test_a_silence_says_what_may_have_happened(subject, said):
    """A request without a reply may have been carried out; one that only reads says what is unreachable."""
    assert said in one_line(errors.RequestTimeoutError(subject))


def test_a_failed_call_is_repeated_for_three_timeouts():
    """A call whose replies do not come ends after a few timeouts, not after many calls."""
    calls = 0

    def fail() -> None:
        nonlocal calls
        calls += 1
        pause(0.05)
        raise errors.TimeoutError("no reply")

    with pytest.raises(errors.TimeoutError):
        failover(fail, 0.05)
    assert 2 <= calls <= 5


@pytest.mark.parametrize(
    ("error", "calls"),
    [
        (errors.ServiceUnavailableError(503, 10008, "no meta leader"), 2),
        (errors.NoStreamResponseError("a"), 2),
        (errors.ConnectionLostError("gone"), 2),
        (errors.JetStreamNotEnabledError(503, 10076, "disabled"), 1),
        (errors.NoRespondersError("$SYS.REQ"), 1),
        (errors.ConnectionClosedError("closed"), 1),
        (errors.StreamFullError(503, 10077, "maximum bytes exceeded"), 1),
    ],
)
def test_a_call_is_repeated_after_a_transient_error(error, calls, monkeypatch):
    """An election passes; a closed connection or an unknown service does not, and ends the command at once."""
    monkeypatch.setattr("jetstream_sync.cli.shared.long_running.pause", lambda _: None)
    made = []

    def fail_once() -> str:
        made.append(None)
        if len(made) == 1:
            raise error
        return "done"

    if calls == 2:
        assert failover(fail_once, 1.0) == "done"
    else:
        with pytest.raises(type(error)):
            failover(fail_once, 1.0)
    assert len(made) == calls


@pytest.mark.parametrize(
    "words",
    [
        ("worker", "ls"),
        ("service", "ping"),
        ("sub", "x", "--wait", "10s"),
        pytest.param(("trace", "x"), marks=pytest.mark.server(">=2.11")),
        ("stream", "ls", "-n"),
    ],
    ids="-".join,
)
def test_a_server_that_falls_silent_is_not_waited_for(words, monkeypatch):
    """A command ends after its timeout, also if only the end of the connection waits; nothing is not "none"."""
    with NatsServer() as server:

        def connect(*args: Any, **options: Any) -> jetstream_sync.Connection:
            nc = opened(*args, **options)
            server.pause()
            return nc

        opened = jetstream_sync.connect
        monkeypatch.setattr(jetstream_sync, "connect", connect)
        began = time.monotonic()
        result = run_jsm("-s", server.url, "--timeout", "1s", *words)
        assert time.monotonic() - began < 6
        server.resume()
    assert (result.status, result.out) == (4, "")
    assert "jsm: " in result.err
