"""Completion: the candidates that the shell receives when the tab key is pressed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from fixtures.jsm import Jsm, run_jsm
from fixtures.proxy import Listener
from fixtures.rawnats import RawClient
from fixtures.threads import wait_until, within
from fixtures.tmux import require


@pytest.fixture
def complete(jsm: Jsm, monkeypatch: pytest.MonkeyPatch):
    """Return the candidates for the last word of a line, by value."""

    def ask(*words: str, **variables: str) -> list[str]:
        # click reads these two from the process.
        monkeypatch.setenv("COMP_WORDS", " ".join(words))
        monkeypatch.setenv("COMP_CWORD", str(len(words) - (words[-1] != "")))
        result = jsm(_JSM_COMPLETE="bash_complete", **variables)
        assert result.err == "", result
        return [line.partition(",")[2] for line in result.out.splitlines() if line]

    return lambda line, **variables: ask(*line.split(" "), **variables)


@pytest.fixture
def orders(raw: RawClient) -> None:
    """Two streams, one of which has two consumers."""
    for name in ("ORDERS", "OTHER"):
        raw.api(f"STREAM.CREATE.{name}", name=name, subjects=[name], storage="memory")
    for name in ("NEW", "NEXT"):
        config = {"durable_name": name, "ack_policy": "explicit"}
        raw.api(f"CONSUMER.CREATE.ORDERS.{name}", stream_name="ORDERS", config=config)


def test_commands_and_options(complete):
    """Commands are completed at every level, and options."""
    assert complete("jsm acc") == ["account"]
    assert complete("jsm context sel") == ["select"]
    assert "--server" in complete("jsm account info --ser")
    assert set(complete("jsm s")) >= {"stream", "sub", "server"}


def test_names_that_a_shell_would_run_are_left_out(complete, raw):
    """A shell inserts a name without quotes: only names that are plain words are offered."""

    def ask(text: str) -> list[str]:
        return complete(f"jsm stream info {text}")

    names = ("ZED$(touch${IFS}pwned)", "ZED;id", "ZED`id`", "ZED'", "ZED|id", "-ZED", "ZED-1_a")
    for number, name in enumerate(names):
        made = raw.api(f"STREAM.CREATE.{name}", name=name, subjects=[f"zed{number}"])
        assert "error" not in made, made
    wait_until(lambda: ask("ZED") == ["ZED-1_a"])
    assert ask("-ZE") == []


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize("noun", ["stream", "ms", "str", "s"])
def test_streams_by_any_name_of_theirs(complete, noun):
    """Names of streams are completed, whichever alias of the command is used."""
    assert complete(f"jsm {noun} info O") == ["ORDERS", "OTHER"]
    assert complete(f"jsm {noun} info OT") == ["OTHER"]


@pytest.mark.usefixtures("orders")
def test_a_trace_is_for_commands_only(complete):
    """A variable that enables the trace writes nothing between the candidates."""
    assert complete("jsm stream info OT", JSM_TRACE="1") == ["OTHER"]


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize("noun", ["consumer", "obs", "con"])
def test_consumers_of_the_stream(complete, noun):
    """Names of consumers are those of the stream that was typed."""
    assert complete(f"jsm {noun} info ORDERS N") == ["NEW", "NEXT"]
    assert complete(f"jsm {noun} info OTHER N") == []


@pytest.mark.usefixtures("orders")
def test_the_login_on_the_line_counts(complete, nats_server):
    """Names come from the servers on the command line."""
    elsewhere = "nats://127.0.0.1:1"
    line = f"jsm -s {nats_server.url} stream info OR"
    assert complete(line, NATS_URL=elsewhere) == ["ORDERS"]


def test_errors_give_no_candidates(complete):
    """Without a server, or with an invalid context, there are no candidates and no errors."""
    assert complete("jsm stream info O", NATS_URL="nats://127.0.0.1:1") == []
    assert complete("jsm --context nowhere stream info O") == []
    assert complete("jsm nonsense info O") == []


def test_a_silent_server_ends_completion_soon(complete):
    """A silent server ends completion after a short timeout."""
    with Listener(lambda puppet: puppet.rest()) as listener, within(2.0):
        assert complete("jsm stream info O", NATS_URL=listener.url) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts(shell):
    """The script for a shell is printed like any other result."""
    script = run_jsm("completion", shell).ok().out
    assert f"_JSM_COMPLETE={shell}_complete" in script
    assert run_jsm("completion", shell, "-j").ok().json["script"] == script
    assert run_jsm("completion", "tcsh").status == 2


# For each shell: load the script, complete a line, and print the candidates.
_BASH = """
source <(jsm completion bash)
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_jsm_completion jsm
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
# zsh completes at a prompt only, where these functions are used; here they only print.
_ZSH = """
compdef() {{ }}
compadd() {{ : }}
_describe() {{ local name=$4; print -l -- ${{${{(P)name}}%%:*}} }}
source <(jsm completion zsh)
words=({words}); CURRENT=$#words
compadd() {{ while [[ $1 != -a ]]; do shift; done; print -l -- ${{(P)2}} }}
_jsm_completion
"""
_FISH = """
jsm completion fish | source
complete --do-complete "{line}"
"""


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize(
    ("line", "words"), [("ms info OR", "ORDERS"), ("stream add S --retention int", "interest")]
)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_real_shells(jsm, tmp_path, shell, line, words):
    """A shell that loaded the script completes stream names, and the values of an option."""
    require(shell)
    program = tmp_path / "jsm"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m jetstream_sync.cli "$@"\n')
    program.chmod(0o755)
    script = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}[shell]
    script = script.format(line=f"jsm {line}", words=f"jsm {line}")
    homes = dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"), str(tmp_path))
    variables = {**homes, "NATS_URL": jsm.url, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    plain = ["-f"] if shell == "zsh" else []
    done = subprocess.run(
        [shell, *plain, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.stdout.split()[:1], done.stderr) == ([words], "")


def test_buckets(jsm, complete):
    """Names of buckets are those of the kind that was typed."""
    jsm("kv", "add", "CONFIG").ok()
    jsm("object", "add", "FILES").ok()
    assert complete("jsm kv get ") == ["CONFIG"]
    assert complete("jsm object get F") == ["FILES"]
