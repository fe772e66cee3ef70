"""How ``jsm`` connects: every way to log in, TLS, and which of several words counts."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures.jsm import Result, run_jsm
from fixtures.jwt import User
from fixtures.proxy import Listener

from jetstream_sync import connect, errors
from jetstream_sync.cli.shared.env import Environment
from jetstream_sync.cli.shared.settings import Settings
from jetstream_sync.server import NatsServer

NKEY_USER = User()


@pytest.fixture(scope="module")
def guarded() -> Iterator[NatsServer]:
    """A server that lets in one user with a password, and the holder of one nkey."""
    config = f"""authorization {{ users: [
        {{ nkey: {NKEY_USER.public} }}, {{ user: "me", password: "open sesame" }}
    ] }}"""
    with NatsServer(name="guarded", config=config) as server:
        yield server


def info(server: NatsServer, *args: str, **more: Any) -> Result:
    """Run ``jsm account info -j`` against a server."""
    return run_jsm("-s", server.url, "account", "info", "-j", *args, **more)


def save(home: Path, name: str, **fields: Any) -> None:
    """Write a context by hand."""
    path = home / "nats" / "context" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(fields))


def effective(*args: str, **variables: str) -> Any:
    """Return how jsm would connect."""
    return run_jsm(*args, "context", "info", "-j", **variables).ok().json["settings"]


# --- logging in ---------------------------------------------------------------------------------


def test_a_password_by_option_file_or_variable(guarded, tmp_path):
    """The password may be an option, in a file, or in the environment."""
    file = tmp_path / "password"
    file.write_text("open sesame\n")
    user = ("--user", "me")
    info(guarded, *user, "--password", "open sesame").ok()
    info(guarded, *user, "--password-file", str(file)).ok()
    info(guarded, *user, NATS_PASSWORD="open sesame").ok()
    info(guarded, NATS_USER="me", NATS_PASSWORD="open sesame").ok()


def test_a_password_in_a_pipe_is_for_all_servers(guarded):
    """The file is read once, however many servers are connected to."""
    reader, writer = os.pipe()
    os.write(writer, b"open sesame\n")
    os.close(writer)
    login = ("--user", "me", "--password-file", f"/dev/fd/{reader}")
    result = run_jsm("rtt", "-n", "1", "-s", f"{guarded.url},{guarded.url}", *login)
    os.close(reader)
    assert result.ok().out.count(guarded.url) == 2


def test_a_home_that_nobody_has_is_wrong_usage(guarded):
    """A file in the home directory of an unknown user is a usage error in one line."""
    for option in ("--creds", "--password-file"):
        result = info(guarded, "--user", "me", option, "~no-user-has-this-name/x")
        assert result.status == 2
        assert "the home directory does not exist" in result.error["description"]


def test_a_wrong_login_is_status_5_and_says_what_to_do(guarded):
    """A rejected login has exit status 5 and a hint, and the password is never shown."""
    result = run_jsm("-s", guarded.url, "account", "info", "--user", "me", "--password", "geheim")
    assert result.status == 5
    assert "--creds" in result.err
    assert "geheim" not in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    "args",
    [
        ("--password", "x"),
        ("--user", "me", "--password", "x", "--password-file", "/dev/null"),
        ("--user", "me", "--password-file", "/nonexistent/file"),
        ("--creds", "/nonexistent/file"),
        ("--tlskey", "/nonexistent/file"),
        ("--server", "nats://x,"),
        ("--server", "ftp://x"),
        ("--timeout", "soon"),
        ("--timeout", "0"),
    ],
)
def test_logins_that_can_not_be(guarded, args):
    """Contradicting login options and missing files are usage errors in one line."""
    result = run_jsm("-s", guarded.url, "account", "info", *args)
    assert (result.status, result.out) == (2, "")
    assert result.err.count("\n") == 1


def test_an_nkey(guarded, tmp_path):
    """A file with a seed logs in, by option, variable or context."""
    file = tmp_path / "seed"
    file.write_text(NKEY_USER.seed)
    info(guarded, "--nkey", str(file)).ok()
    info(guarded, NATS_NKEY=str(file)).ok()
    save(tmp_path, "c", nkey="$SEED_DIR/seed")
    os.environ["SEED_DIR"] = str(tmp_path)
    try:
        info(guarded, "--context", "c", XDG_CONFIG_HOME=str(tmp_path)).ok()
    finally:
        del os.environ["SEED_DIR"]


def test_a_token():
    """A token logs in."""
    with NatsServer(config='authorization { token: "open sesame" }') as server:
        info(server, "--token", "open sesame").ok()
        info(server, NATS_TOKEN="open sesame").ok()
        assert info(server).status == 5


def test_credentials(jwt_server, operator, tmp_path):
    """A credentials file logs in, and so do a JWT and a seed."""
    file = operator.creds(tmp_path)
    info(jwt_server, "--creds", str(file)).ok()
    info(jwt_server, NATS_CREDS=str(file)).ok()
    user = User()
    jwt = operator.account.user(user)
    info(jwt_server, NATS_JWT=jwt, NATS_SEED=user.seed).ok()
    save(tmp_path, "c", user_jwt=jwt, user_seed=user.seed)
    info(jwt_server, "--context", "c", XDG_CONFIG_HOME=str(tmp_path)).ok()


def test_tls_with_certificates_of_both_sides(certificates):
    """--tlsca, --tlscert and --tlskey prove who both are; without them there is no connection."""
    own = str(certificates.path("client"))
    files = ("--tlsca", str(certificates.path("ca")), "--tlscert", own, "--tlskey", own)
    with NatsServer(config=certificates.verifying()) as server:
        assert info(server, *files).ok().json["connection"]["tls"] is True
        variables = {"NATS_CA": str(certificates.path("ca")), "NATS_CERT": own, "NATS_KEY": own}
        info(server, **variables).ok()
        assert info(server, *files[:2]).status == 5
        assert info(server).status == 5


def test_tls_first(certificates):
    """--tlsfirst starts TLS before INFO."""
    with NatsServer(config=certificates.server(more="handshake_first: true")) as server:
        info(server, "--tlsca", str(certificates.path("ca")), "--tlsfirst").ok()


# --- which word counts --------------------------------------------------------------------------


def test_where_the_server_is_from(tmp_path):
    """An option counts before NATS_URL, that before the context, that before SERVERS, then the default."""
    save(tmp_path, "c", url="nats://context:1,nats://context:2")
    everything = {
        "NATS_URL": "nats://variable:1",
        "SERVERS": "old:1",
        "NATS_CONTEXT": "c",
        "XDG_CONFIG_HOME": str(tmp_path),
    }
    flag = effective("-s", "nats://flag:1", "-s", "a:1, b:2", **everything)["url"]
    assert flag == {"value": ["nats://flag:1", "a:1", "b:2"], "source": "--server"}
    assert effective(**everything)["url"]["value"] == ["nats://variable:1"]
    del everything["NATS_URL"]
    in_context = effective(**everything)["url"]
    assert in_context["value"] == ["nats://context:1", "nats://context:2"]
    assert in_context["source"] == "context c"
    del everything["NATS_CONTEXT"]
    assert effective(**everything)["url"] == {"value": ["old:1"], "source": "SERVERS"}
    del everything["SERVERS"]
    default = {"value": ["nats://127.0.0.1:4222"], "source": "default"}
    assert effective(**everything)["url"] == default


def test_a_login_by_option_leaves_no_login_of_the_context(guarded, tmp_path):
    """A login method with higher precedence replaces those of other sources."""
    save(tmp_path, "t", token="other")
    login = ("--user", "me", "--password", "open sesame", "--context", "t")
    info(guarded, *login, NATS_TOKEN="third", XDG_CONFIG_HOME=str(tmp_path)).ok()
    save(tmp_path, "c", user="other", password="theirs", creds="x.creds")
    home = str(tmp_path)
    said = effective("--context", "c", "--token", "mine", XDG_CONFIG_HOME=home)
    assert set(said) == {"url", "token"}
    said = effective("--context", "c", "--user", "me", XDG_CONFIG_HOME=home)
    assert set(said) == {"url", "user"}, "the context's password is for its own user"


def test_no_context_means_none(tmp_path):
    """--no-context leaves out the selected one, too."""
    save(tmp_path, "c", url="nats://context:1")
    (tmp_path / "nats" / "context.txt").write_text("c")
    home = str(tmp_path)
    assert effective(XDG_CONFIG_HOME=home)["url"]["source"] == "context c"
    assert effective("--no-context", XDG_CONFIG_HOME=home)["url"]["source"] == "default"


def test_an_option_at_the_command_counts_before_one_at_the_root(jsm):
    """Common options may stand anywhere; the one next to the command counts."""
    jsm("-s", "nats://127.0.0.1:1", "account", "info", "-s", jsm.url).ok()
    jsm("account", "-s", jsm.url, "-j", "info", NATS_URL="nats://127.0.0.1:1").ok()


@pytest.mark.parametrize("key", ["nsc", "socks_proxy", "windows_cert_store"])
def test_what_jsm_can_not_do_is_said(tmp_path, key):
    """A context with unsupported keys is rejected instead of ignored."""
    save(tmp_path, "c", **{key: "something"})
    result = run_jsm("--context", "c", "account", "info", XDG_CONFIG_HOME=str(tmp_path))
    assert result.status == 2
    assert key in result.err


# --- the rest -----------------------------------------------------------------------------------


def test_names_and_inboxes_are_told_to_the_server():
    """The connection has a name, and replies come below the prefix that was given."""
    said: list[Any] = []

    def serve(peer: Any) -> None:
        said.append(peer.handshake())
        said.append(peer.line())
        peer.rest()

    with Listener(serve) as listener:
        args = ("--connection-name", "nightly", "--inbox-prefix", "_INBOX_me", "--timeout", "200ms")
        result = run_jsm("-s", listener.url, "account", "info", *args)
    assert result.status in (4, 5)
    assert said[0]["name"] == "nightly"
    assert "_INBOX_me" in str(said[1])


def test_the_domain_and_the_prefix():
    """--js-domain and --js-api-prefix choose the JetStream that is spoken to."""
    with NatsServer(config="jetstream { domain: hub }") as server:
        assert info(server, "--js-domain", "hub").ok().json["jetstream"]["domain"] == "hub"
        info(server, "--js-api-prefix", "$JS.hub.API").ok()
        missing = run_jsm("-s", server.url, "account", "info", "--js-domain", "leaf")
        assert missing.status == 5
        assert "--js-domain" in missing.err


def test_jetstream_may_be_off():
    """A server without JetStream has exit status 5 and a hint."""
    with NatsServer(jetstream=False) as server:
        result = run_jsm("-s", server.url, "account", "info")
        assert result.status == 5
        assert "-js" in result.err
        assert info(server).error["exit_status"] == 5


def test_no_server_is_status_5():
    """An unreachable server is named in the error, with a hint."""
    result = run_jsm("-s", "nats://127.0.0.1:1", "account", "info")
    assert result.status == 5
    assert "127.0.0.1:1" in result.err
    assert "jsm server run" in result.err


def test_the_trace_has_requests_and_replies(jsm, raw):
    """JSM_TRACE=1 traces requests and replies to stderr, and leaves stdout unchanged."""
    plain = jsm("account", "info", "-j").ok()
    for traced in (
        jsm("account", "info", "-j", JSM_TRACE="1").ok(),
        jsm("account", "info", "-j", "--trace").ok(),
    ):
        assert set(traced.json) == set(plain.json)
        shown = re.fullmatch(
            r">>> \$JS\.API\.INFO:\nnil\n---\n<<<\n(\{\n.*\n\})\n---\n", traced.err, re.DOTALL
        )
        assert shown, traced.err
        assert json.loads(shown[1])["limits"] == raw.api("INFO")["limits"]
    assert jsm("account", "info", JSM_TRACE="0").ok().err == ""


def test_the_trace_has_what_a_server_says_in_headers(jsm, raw):
    """A status without a body is in the trace, and what has no reply on an inbox has its subject."""
    raw.api("STREAM.CREATE.A", name="A", subjects=["a"], storage="memory")
    config = {"durable_name": "C", "ack_policy": "explicit"}
    raw.api("CONSUMER.CREATE.A.C", stream_name="A", config=config)
    err = jsm("consumer", "next", "A", "C", "--no-wait", "--trace").err
    assert ">>> $JS.API.CONSUMER.MSG.NEXT.A.C:\n{\n" in err
    assert "404 No Messages" in err


def test_the_trace_has_no_logins(guarded):
    """Credentials are never in the trace."""
    result = info(guarded, "--user", "me", "--password", "open sesame", "--trace").ok()
    assert "open sesame" not in result.err
    assert "CONNECT" not in result.err


def test_the_timeout_is_kept():
    """The timeout of an option or variable limits every wait."""
    with Listener(lambda peer: (peer.handshake(), peer.rest())) as listener:
        result = run_jsm("-s", listener.url, "account", "info", JSM_TIMEOUT="1s")
        assert result.status == 4
    bad = run_jsm("account", "info", NATS_TIMEOUT="soon")
    assert (bad.status, "NATS_TIMEOUT" in bad.err) == (2, True)


@pytest.mark.parametrize(
    ("words", "variables", "said"),
    [
        ("--nkey nowhere.nk account info", {}, "--nkey 'nowhere.nk': "),
        ("--creds=nowhere.creds account info", {}, "--creds 'nowhere.creds': "),
        ("account info", {"NATS_NKEY": "nowhere.nk"}, "NATS_NKEY 'nowhere.nk': "),
        ("-s x://y account info", {}, "--server 'x://y': "),
        ("account info", {"NATS_URL": "x://y"}, "NATS_URL 'x://y': "),
        ("account info", {"NATS_URL": " , "}, "NATS_URL: the server address is empty"),
        ("--js-domain a.b account info", {}, "--js-domain 'a.b': "),
        ("--token secret --user me account info", {}, "--token: "),
        ("consumer add S C --heartbeat 1ms", {}, "--heartbeat '1ms': "),
        ("consumer add S C --backoff=1s,2s --max-deliver 1", {}, "--backoff '1s,2s': "),
        ("consumer add S C --pause soon", {}, "'--pause': invalid duration 'soon'"),
        ("stream add T --subjects t --first-sequence -4", {}, "--first-sequence '-4': "),
        ("stream add T --subjects t --first-seq=-4", {}, "--first-seq '-4': "),
        ("pub t x -J --ttl 1ms", {}, "'--ttl': "),
    ],
)
def test_an_error_names_the_option_as_it_was_typed(jsm, words, variables, said):
    """What the library says of its own options is said of the option or variable of the user."""
    jsm("stream", "add", "S", "--subjects", "s").ok()
    refused = jsm(*words.split(), **variables)
    assert (refused.status, refused.out) == (2, "")
    assert said in refused.err


def test_an_error_in_a_file_names_its_field(jsm, tmp_path):
    """An error in a value from a file names the field as the file spells it, and the context."""
    config = tmp_path / "config.json"
    config.write_text('{"subjects": ["t"], "first_seq": -4}')
    refused = jsm("stream", "add", "T", "--config", str(config))
    assert (refused.status, "first_seq=-4: " in refused.err) == (2, True)
    home = {"XDG_CONFIG_HOME": str(tmp_path)}
    jsm("context", "add", "prod", "--nkey", "nowhere.nk", **home).ok()
    refused = jsm("--context", "prod", "account", "info", **home)
    assert (refused.status, "context prod, nkey '" in refused.err) == (2, True)


def test_a_lost_connection_is_not_a_missing_meta_leader():
    """The error of a connection that reconnects says how long the connection has been lost."""
    with NatsServer(name="gone") as server:
        with connect(server.url) as nc:
            nc.jetstream().create_stream(name="S", subjects=["s"])
        settings = Settings(
            env=Environment.of_process(), given={"servers": (server.url,), "timeout": 1.0}
        )
        with (
            pytest.raises(errors.RequestTimeoutError) as raised,
            settings.connection(allow_reconnect=True) as nc,
        ):
            server.kill()
            settings.jetstream_on(nc).get_stream("S")
    assert "no connection to a server for" in str(raised.value)
