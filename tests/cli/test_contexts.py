"""``jsm context``: files that the ``nats`` command could have written, and can read."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from fixtures.jsm import Result, run_jsm

from jetstream_sync.cli.shared.context_store import Contexts
from jetstream_sync.server import NatsServer

#: The keys of ADR-21, which are all in every file.
ADR_21 = [
    "description",
    "url",
    "token",
    "user",
    "password",
    "creds",
    "nkey",
    "cert",
    "key",
    "ca",
    "nsc",
    "jetstream_domain",
    "jetstream_api_prefix",
    "jetstream_event_prefix",
    "inbox_prefix",
    "user_jwt",
    "tls_first",
    "windows_cert_store",
    "windows_cert_match_by",
    "windows_cert_match",
    "windows_ca_certs_match",
]


class Home:
    """A configuration directory and the ``jsm context`` commands that use it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, *args: str, **more: Any) -> Result:
        return run_jsm("context", *args, XDG_CONFIG_HOME=str(self.path), **more)

    def file(self, name: str) -> Path:
        return self.path / "nats" / "context" / f"{name}.json"

    def fields(self, name: str) -> Any:
        return json.loads(self.file(name).read_text())

    @property
    def selected(self) -> str | None:
        path = self.path / "nats" / "context.txt"
        return path.read_text().strip() if path.exists() else None


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home without contexts."""
    return Home(tmp_path)


def test_a_context_is_a_file_as_adr_21_has_it(home):
    """A context that is saved has all keys, also those that are empty."""
    home(
        *("add", "prod", "--description", "the real one", "--user", "me", "--password", "geheim"),
        *("-s", "nats://a:4222", "-s", "nats://b:4222", "--js-domain", "hub", "--tlsca", "ca.pem"),
        "--tlsfirst",
    ).ok()
    fields = home.fields("prod")
    assert set(ADR_21) <= set(fields)
    assert {key: value for key, value in fields.items() if value} == {
        "description": "the real one",
        "url": "nats://a:4222,nats://b:4222",
        "user": "me",
        "password": "geheim",
        "ca": str(Path("ca.pem").absolute()),
        "jetstream_domain": "hub",
        "tls_first": True,
    }


def test_a_password_may_be_read(home, tmp_path):
    """The password of a context can be read from a file."""
    (tmp_path / "password").write_text("geheim\n")
    home("add", "a", "--password-file", str(tmp_path / "password")).ok()
    assert home.fields("a")["password"] == "geheim"


def test_paths_are_found_from_everywhere(home):
    """A file is saved with its whole path, unless it begins with ~ or a variable."""
    home("add", "a", "--creds", "a.creds", "--tlsca", "~/ca.pem", "--nkey", "$KEYS/a").ok()
    fields = home.fields("a")
    assert fields["creds"] == str(Path("a.creds").absolute())
    assert (fields["ca"], fields["nkey"]) == ("~/ca.pem", "$KEYS/a")


def test_files_are_for_their_owner_alone(home):
    """Only the owner can read a context and its directory."""
    home("add", "prod", "--token", "geheim").ok()
    assert stat.S_IMODE(home.file("prod").stat().st_mode) == 0o600
    for directory in (home.file("prod").parent, home.path / "nats"):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    home("save", "prod", "--description", "x").ok()
    assert stat.S_IMODE(home.file("prod").stat().st_mode) == 0o600
    assert [path.name for path in home.file("prod").parent.iterdir()] == ["prod.json"]


def test_saving_again_keeps_what_is_not_said(home):
    """A change keeps other values and unknown keys."""
    home("add", "prod", "--user", "me").ok()
    home.file("prod").write_text(json.dumps({**home.fields("prod"), "added_in_2030": [1]}))
    home("save", "prod", "--description", "new").ok()
    fields = home.fields("prod")
    assert (fields["user"], fields["description"]) == ("me", "new")
    assert fields["added_in_2030"] == [1]


def test_a_linked_file_is_changed_where_it_is(home, tmp_path):
    """A context that a symbolic link points to has no second copy with an old login."""
    home("add", "prod", "--password", "old").ok()
    elsewhere = home.file("prod").rename(tmp_path / "shared.json")
    home.file("prod").symlink_to(elsewhere)
    home("save", "prod", "--password", "new").ok()
    assert home.file("prod").readlink() == elsewhere
    assert json.loads(elsewhere.read_text())["password"] == "new"
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o600


def test_listing(home):
    """The list marks the selected one, and shows no secrets."""
    assert home("ls").ok().out == "No contexts defined\n"
    assert home("ls", "-j").ok().json == []
    home("add", "b", "-s", "nats://me:geheim@b").ok()
    home("add", "a", "--select").ok()
    assert home("ls", "-n").ok().out == "a\nb\n"
    assert home("ls", "-n", "-j").ok().json == ["a", "b"]
    listed = home("ls")
    assert "a*" in listed.out
    assert "geheim" not in listed.out
    assert [(item["name"], item["selected"]) for item in home("ls", "-j").ok().json] == [
        ("a", True),
        ("b", False),
    ]


def test_info_hides_secrets(home):
    """Passwords, tokens, JWTs and seeds are shown on request only."""
    home("add", "a", "-s", "nats://u:secret1@a", "--user", "me", "--password", "secret2").ok()
    home("add", "a", "--token", "secret3", "--jwt", "secret4", "--seed", "secret5").ok()
    for args in ((), ("-j",)):
        assert "secret" not in home("info", "a", *args).ok().out
    shown = home("info", "a", "-j", "--show-secrets").ok().json
    assert shown == home.fields("a")
    more = {"key_of_2030": "secret6", "socks_proxy": "socks5://u:secret7@p:1", "flag_of_2030": True}
    home.file("a").write_text(json.dumps({**home.fields("a"), **more}))
    shown = home("info", "a", "-j").ok()
    assert "secret" not in shown.out
    assert (shown.json["flag_of_2030"], shown.json["socks_proxy"][-4:]) == (True, "@p:1")
    home.file("a").write_text(json.dumps({**home.fields("a"), "socks_proxy": ""}))
    everything = home("info", "-j", NATS_CONTEXT="a", NATS_PASSWORD="secret6", NATS_USER="me").ok()
    assert "secret" not in everything.out


def test_info_without_a_name_says_where_values_are_from(home):
    """The effective values are shown with their sources."""
    home("add", "a", "-s", "nats://a", "--creds", "x.creds", "--select").ok()
    out = home("info", "--timeout", "1s", NATS_URL="nats://a:4222", NATS_USER="").ok().out
    assert out.startswith("Context a\n")
    assert "url: nats://a:4222 (NATS_URL)" in out
    assert f"creds: {Path('x.creds').absolute()} (context a)" in out
    elsewhere = home("info", NATS_URL="nats://b").ok().out
    assert elsewhere == "No context\n\n  url: nats://b (NATS_URL)\n"


def test_selecting(home):
    """Contexts can be selected, unselected and restored to the previous one."""
    for name in "ab":
        home("add", name).ok()
    assert home("previous").status == 3
    home("select", "a").ok()
    assert home.selected == "a"
    home("select", "b").ok()
    assert home("-").ok().out == "Context a is selected\n"
    assert home.selected == "a"
    home("previous").ok()
    assert home.selected == "b"
    assert home("unselect", "-j").ok().json == {"selected": None, "previous": "b"}
    assert home.selected is None


def test_deleting(home):
    """Several can be deleted, also the selected one, with --force or an answer."""
    for name in "abc":
        home("add", name, "--select").ok()
    assert home("rm", "a").status == 2
    assert home("ls", "-n").out == "a\nb\nc\n"
    home("rm", "a", "-f").ok()
    gone = home("rm", "b", "c", "-f", "-j").ok()
    assert gone.json == {"deleted": ["b", "c"]}
    assert home.selected is None
    assert home("ls", "-n").out == ""


def test_a_deletion_that_fails_names_what_is_deleted(home, monkeypatch):
    """The contexts before the failed one are deleted, and the output says so."""
    for name in "abc":
        home("add", name).ok()
    remove = Contexts.remove

    def fail_at_b(store: Contexts, name: str) -> None:
        if name == "b":
            raise PermissionError(13, "Permission denied", "b.json")
        remove(store, name)

    monkeypatch.setattr(Contexts, "remove", fail_at_b)
    result = home("rm", "a", "b", "c", "-f", "-j")
    assert (result.status, result.json) == (1, {"deleted": ["a"]})
    assert home("ls", "-n").out == "b\nc\n"


@pytest.mark.parametrize(
    ("args", "status"),
    [
        (("info", "prd"), 3),
        (("select", "prd"), 3),
        (("rm", "prod", "prd", "-f"), 3),
        (("add", "a/b"), 2),
        (("add", "../x"), 2),
        (("info", ".."), 2),
    ],
)
def test_names_that_are_not_there_or_can_not_be(home, args, status):
    """Missing and invalid names have different errors, and nothing changes."""
    home("add", "prod").ok()
    before = home.file("prod").read_text()
    result = home(*args)
    assert (result.status, result.out) == (status, "")
    if status == 3:
        assert "did you mean prod?" in result.err
    assert home.file("prod").read_text() == before
    assert not list(home.path.rglob("x.json"))


def test_a_broken_file_hides_no_others(home):
    """An invalid file is a warning in the list, and can be deleted."""
    home("add", "prod", "-s", "nats://prod:4222").ok()
    home("add", "test").ok()
    home.file("test").write_text("{")
    result = home("ls", "-j").ok()
    assert [item["name"] for item in result.json] == ["prod"]
    assert "warning: " in result.err
    assert "test.json" in result.err
    home("rm", "test", "-f").ok()
    assert not home.file("test").exists()
    assert home("rm", "test", "-f").status == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "a.json"),
        ('{"url": 5}', "url: expected text, not 5"),
        ('{"creds": ["x"]}', "creds: expected text, not list"),
        ('{"password": 1234}', "password: expected text, not int"),
        ('{"tls_first": 1.5}', "tls_first: expected true or false, not 1.5"),
        ("[]", "expected a JSON object"),
    ],
)
def test_an_invalid_file_is_told(home, text, said):
    """A file that is no context is reported by every command, and not changed."""
    home("add", "a", "-s", "nats://a").ok()
    path = home.file("a")
    path.write_text(text)
    for command in (("info", "a"), ("select", "a"), ("add", "a", "--user", "me")):
        refused = home(*command)
        assert (refused.status, refused.err.count("\n")) == (2, 1), refused
        assert said in refused.err
    assert home("ls", "-j").ok().json == []
    assert path.read_text() == text


def test_other_files_hide_no_contexts(home):
    """Hidden copies, dangling links and directories are not listed as contexts."""
    home("add", "a", "-s", "nats://a").ok()
    folder = home.file("a").parent
    (folder / ".a.json").write_text("{}")
    (folder / "gone.json").symlink_to(folder / "nothing")
    assert home("ls", "-n", "-j").ok().json == ["a"]
    assert home("ls").ok().err == ""


def test_who_has_no_home_has_no_contexts(nats_server, monkeypatch):
    """Without a home directory, as in a container, the command connects without contexts."""

    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", unknown)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    variables = {"XDG_CONFIG_HOME": "", "XDG_CACHE_HOME": ""}
    run_jsm("-s", nats_server.url, "rtt", "-n", "1", **variables).ok()
    assert run_jsm("context", "ls", "-j", **variables).ok().json == []
    assert run_jsm("context", "add", "a", "-s", "nats://a", **variables).status == 1
    monkeypatch.setenv("COMP_WORDS", "jsm stream info ")
    monkeypatch.setenv("COMP_CWORD", "3")
    variables.update(_JSM_COMPLETE="bash_complete", NATS_URL=nats_server.url)
    assert run_jsm(**variables).err == ""


def test_editing(home, tmp_path):
    """An editor gets all keys; what it saves is checked."""
    home("add", "prod").ok()
    script = tmp_path / "editor.py"
    script.write_text(
        "import json, sys; from pathlib import Path\n"
        "path = Path(sys.argv[1]); fields = json.loads(path.read_text())\n"
        "assert 'nkey' in fields; fields['url'] = 'nats://edited'\n"
        "path.write_text(json.dumps(fields))\n"
    )
    editor = {"VISUAL": f"{sys.executable} {script}", "PATH": ""}
    assert home("edit", "prod", "-j", **editor).ok().json["changed"] is True
    assert home.fields("prod")["url"] == "nats://edited"
    assert home("edit", "prod", "-j", VISUAL="true", PATH="/usr/bin:/bin").ok().json == {
        "context": "prod",
        "changed": False,
    }


def test_a_context_that_no_command_could_use_is_not_saved(tmp_path):
    """``context add`` refuses what later commands would, and keeps the context that was there."""
    home = {"XDG_CONFIG_HOME": str(tmp_path)}
    refused = run_jsm("context", "add", "mine", "-s", "nats://h:99999", **home)
    assert (refused.status, "was not saved" in refused.err) == (2, True), refused
    assert run_jsm("context", "ls", "-j", **home).json == []
    run_jsm("context", "add", "mine", "-s", "nats://h:4222", **home).ok()
    assert run_jsm("context", "add", "mine", "-s", "nats://h:99999", **home).status == 2
    assert "nats://h:4222" in run_jsm("context", "info", "mine", **home).ok().out


def test_a_name_may_have_spaces(home, nats_server):
    """A context of another tool whose name has spaces is listed, selected and used."""
    home("add", "my lab", "-s", nats_server.url).ok()
    home("select", "my lab").ok()
    assert home("ls", "-n").ok().out == "my lab\n"
    run_jsm("--context", "my lab", "rtt", "-n", "1", XDG_CONFIG_HOME=str(home.path)).ok()
    run_jsm("rtt", "-n", "1", XDG_CONFIG_HOME=str(home.path)).ok()
    assert home("add", " ").status == 2


#: Values with a secret for each key, and references, which may be shown.
PLANTED = {
    "user": "me",
    "password": "GEHEIM1",
    "token": "data:;base64,R0VIRUlNMg==",
    "creds": "data:;base64,R0VIRUlNMw==",
    "nkey": "SUAGEHEIM4AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    "user_jwt": "eyJGEHEIM5",
    "user_seed": "vault://GEHEIM6",
    "url": "nats://u:GEHEIM7@127.0.0.1:1,nats://GEHEIM8@127.0.0.1:2",
}


@pytest.mark.parametrize(
    "args",
    [
        ("context", "info", "a"),
        ("context", "info", "a", "-j"),
        ("context", "info"),
        ("context", "info", "-j"),
        ("context", "ls"),
        ("context", "ls", "-j"),
        ("--context", "a", "stream", "ls"),
        ("--context", "a", "stream", "ls", "-j", "--trace"),
        ("--context", "a", "rtt", "-n", "1"),
        ("--context", "a", "server", "check", "connection"),
        ("--context", "a", "-s", "nats://127.0.0.1:3", "stream", "ls"),
        ("-s", "nats://127.0.0.1:3", "stream", "ls"),
    ],
)
@pytest.mark.parametrize("dropped", ["", "user", "creds", "nkey", "user_jwt"])
def test_no_output_has_a_secret(home, args, dropped):
    """Nothing that a command writes has a planted secret or its encoded form, whatever method logs in."""
    methods = ["user", "creds", "nkey", "user_jwt"]
    fields = {
        k: v for k, v in PLANTED.items() if k not in methods[: methods.index(dropped or "user")]
    }
    if args[:2] == ("context", "ls"):
        fields["url"] += ",nats://u:GEHEIM9,x@h"
    home("add", "a", "--select").ok()
    home.file("a").write_text(json.dumps(fields))
    result = run_jsm(*args, "--timeout", "0.5s", XDG_CONFIG_HOME=str(home.path))
    shown = result.out + result.err
    assert "GEHEIM" not in shown
    assert "R0VIRUlN" not in shown
    assert result.status != 70


def test_a_reference_to_a_secret_is_kept_and_shown(home):
    """``context add`` saves references as they are, and ``context info`` shows them without reading them."""
    home("add", "a", "--user", "me", "--password", "env://NOT_SET", "--creds", "op://v/i/f").ok()
    home("add", "a", "--nkey", "file:///k", "--token", "nsc://o/a/u").ok()
    fields = home.fields("a")
    assert (fields["creds"], fields["nkey"]) == ("op://v/i/f", "file:///k")
    shown = home("info", "a", "-j").ok().json
    for key in ("password", "creds", "nkey", "token"):
        assert shown[key] == fields[key]


def test_contexts_are_validated_by_themselves(home, tmp_path):
    """A missing file and a wrong address are named; no other login is sent to the server of a context."""
    with (
        NatsServer(config="authorization { user: me, password: right }") as server,
        NatsServer() as other,
    ):
        home("add", "good", "-s", server.url, "--user", "me", "--password", "right").ok()
        home("add", "bad", "-s", server.url, "--user", "me", "--password", "wrong").ok()
        home("add", "lost", "--creds", str(tmp_path / "lost.creds")).ok()
        assert home("validate", "good", "--connect").ok().out == "good: valid\n"
        found = home("validate", "-j")
        faults = {item["context"]: item.get("error", "") for item in found.json}
        assert found.status == 1
        assert faults["good"] == faults["bad"] == ""
        assert "lost.creds" in faults["lost"]
        login = {"NATS_USER": "me", "NATS_PASSWORD": "right", "NATS_URL": other.url}
        refused = home("validate", "bad", "--connect", **login)
        assert refused.status == 1
        assert "bad: valid" not in refused.out
    assert home("validate", "nope").status == 3
