"""Connection options: every invalid value is refused by name, and no secret is quoted."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from datetime import timedelta
from functools import partial
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_sync.address import ServerAddress, left_out, parse_servers
from jetstream_sync.errors import InvalidOptionError
from jetstream_sync.options import ConnectionOptions, ConnectOptions, TLSOptions

SERVERS = (ServerAddress("h", 4222),)
NAN, INF = float("nan"), float("inf")
TIMES = ["connect_timeout", "reconnect_time_wait", "ping_interval", "drain_timeout"]
SWITCHES = [field.name for field in dataclasses.fields(ConnectionOptions) if field.type == "bool"]
TEXTS = ["name", "nkey", "tls_hostname"]
SECRETS = ["user", "password", "token", "nkeys_seed_str"]
CALLBACKS = [
    "dialer",
    *(field.name for field in dataclasses.fields(ConnectionOptions) if field.name.endswith("_cb")),
]

NOT_TIMES = [True, False, None, "2", NAN, b"2", 1j, []]
NOT_COUNTS = [True, False, None, "2", 2.0, NAN, []]
BAD = {
    **{key: [*NOT_TIMES, -1, -0.001, -INF, timedelta(seconds=-1)] for key in TIMES},
    **{key: [None, 0, 1, "false", "no", ""] for key in SWITCHES},
    **{key: [5, b"x", True, ["x"]] for key in TEXTS},
    **{key: [5, b"x", True, ["x"]] for key in SECRETS},
    **{key: [5, "print", True] for key in CALLBACKS},
    "user_credentials": [5, b"x", "", ["a", "b"], ("a",), ("a", "b", "c"), ("a", 5), True],
    "nkeys_seed": [5, b"x", "", ("a", "b"), True],
    "tls": ["yes", 1, object(), {}],
    "ws_connection_headers": [
        "X: y",
        5,
        {"X": 5},
        {5: "x"},
        {"X": "a\r\nb"},
        {"X\n": "a"},
        {"X": [5]},
    ],
    "reconnect_jitter": [True, "2", NAN, b"2", 1j, [], -1, timedelta(seconds=-1)],
    "max_reconnect_attempts": [*NOT_COUNTS, -2],
    "max_outstanding_pings": [*NOT_COUNTS, 0, -1],
    "pending_size": [*NOT_COUNTS, -1],
    "inbox_prefix": [None, 5, "", "a b", "a.*", ">", "a.", ".a", "a..b", "a\r\nPUB x 0"],
}
for positive in ("connect_timeout", "ping_interval", "drain_timeout"):
    BAD[positive] = [*BAD[positive], 0, 0.0, timedelta(0)]


def made(**options):
    return ConnectionOptions.of(SERVERS, options)


# --- options ------------------------------------------------------------------------------------


def test_every_option_has_bad_values():
    """Every option has invalid values in the tests below, and `connect()` names each one."""
    options = {field.name for field in dataclasses.fields(ConnectionOptions)} - {"servers"}
    assert options == set(BAD)
    assert options == ConnectOptions.__annotations__.keys()


@pytest.mark.parametrize(("option", "value"), [(o, v) for o, values in BAD.items() for v in values])
def test_bad_values_are_refused_by_name(option, value):
    """The error names the option."""
    with pytest.raises(InvalidOptionError) as caught:
        made(user="u", **{option: value}) if option == "password" else made(**{option: value})
    assert caught.value.option == option
    assert str(caught.value).startswith(f"{option}=")


@pytest.mark.parametrize("option", TIMES)
@pytest.mark.parametrize("value", [1, 1.0, timedelta(seconds=1)])
def test_a_time_is_seconds_or_a_timedelta(option, value):
    """The record has seconds, whether seconds or a timedelta were given."""
    seconds = getattr(made(**{option: value}), option)
    assert seconds == 1.0
    assert type(seconds) is float


@pytest.mark.parametrize("option", TIMES)
@pytest.mark.parametrize("value", [INF, timedelta.max, 1e300])
def test_a_time_has_a_maximum(option, value):
    """The maximum is the longest wait of a lock, nearly 300 years."""
    assert 200 * 365 * 86400 < getattr(made(**{option: value}), option) < 2**63 / 1e9


@pytest.mark.parametrize(
    "options",
    [
        {"reconnect_time_wait": 0},
        {"max_reconnect_attempts": -1},
        {"max_reconnect_attempts": 0},
        {"pending_size": 0},
        {"max_outstanding_pings": 1},
        {"inbox_prefix": "_INBOX.me"},
        {"user": "u"},
        {"user": "u", "password": ""},
        {"token": "t"},
        {"token": "t", "user_credentials": "file"},
        {"user": "u", "password": "p", "nkeys_seed": "file"},
        {"name": ""},
        {"error_cb": print, "closed_cb": None},
    ],
)
def test_limits_of_ranges_are_accepted(options):
    """The limits of the valid ranges are accepted unchanged."""
    got = made(**options)
    for option, value in options.items():
        assert getattr(got, option) == value


@pytest.mark.parametrize(
    ("options", "blamed"),
    [
        ({"token": "s3cret", "user": "u"}, "token"),
        ({"token": "s3cret", "user": "u", "password": "s3cret"}, "token"),
        ({"password": "s3cret"}, "password"),
        ({"password": "s3cret", "token": "s3cret"}, "password"),
        ({"nkeys_seed": "file", "nkeys_seed_str": "s3cret"}, "nkeys_seed_str"),
        ({"user_credentials": "file", "nkeys_seed": "file"}, "nkeys_seed"),
        ({"nkey": "UABC"}, "nkey"),
        ({"signature_cb": print}, "signature_cb"),
        ({"tls": False, "tls_handshake_first": True}, "tls_handshake_first"),
        ({"tls": True, "tls_allow_downgrade": True}, "tls_allow_downgrade"),
    ],
)
def test_logins_that_exclude_each_other(options, blamed):
    """A token excludes a user, a password needs one; the secret is not quoted."""
    with pytest.raises(InvalidOptionError) as caught:
        made(**options)
    assert caught.value.option == blamed
    assert "s3cret" not in repr(caught.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("pasword", "password"), ("ping_intervall", "ping_interval"), ("servers", None), ("q", None)],
)
def test_unknown_options_are_refused_with_a_hint(name, hint):
    """An unknown option is refused with a suggestion, and its value, maybe a secret, not quoted."""
    with pytest.raises(InvalidOptionError) as caught:
        ConnectionOptions.of(SERVERS, {name: "s3cret"})
    assert caught.value.option == name
    assert ("did you mean" in str(caught.value)) == (hint is not None)
    assert hint is None or f"did you mean {hint}?" in str(caught.value)
    assert "s3cret" not in str(caught.value) + repr(caught.value)


def test_no_secret_shows():
    """Neither options nor addresses show a login, or a function that may contain one."""
    options = ConnectionOptions.of(
        parse_servers("nats://s3cret1:s3cret2@a,s3cret3@b"),
        {"user": "s3cret4", "password": "s3cret5"},
    )
    shown = [options, *options.servers, made(token="s3cret")]
    secret = partial(str, "s3cret")
    functions = ("user", "token", "user_credentials", "user_jwt_cb", "nkeys_seed_str")
    shown += [made(**{option: secret}) for option in functions]
    assert "s3cret" not in "".join(f"{item!r} {item}" for item in shown)
    assert [server.url for server in options.servers] == ["nats://a:4222", "nats://b:4222"]
    assert ServerAddress("::1", 4222, user="u", password="p").url == "nats://[::1]:4222"


async def coroutine(error):
    """Do nothing."""


SEED = "SUAAAAAAAA" + "A" * 48
JWT = "eyJ0eXAiOiJKV1QifQ.eyJqdGki.c2ln"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("nkeys_seed", SEED),
        ("nkeys_seed", f" {SEED}\n"),
        ("nkeys_seed", Path(SEED)),
        ("user_credentials", SEED),
        ("user_credentials", JWT),
        (
            "user_credentials",
            f"-----BEGIN NATS USER JWT-----\n{JWT}\n------END NATS USER JWT------",
        ),
        ("user_credentials", (JWT, "seed.nk")),
        ("user_credentials", ("user.jwt", SEED)),
        ("nkey", SEED),
        ("user_jwt_cb", JWT),
        ("signature_cb", SEED),
        ("error_cb", SEED),
        ("error_cb", coroutine),  # it would never be awaited
    ],
)
def test_a_secret_in_the_wrong_place_is_refused_and_not_repeated(option, value):
    """A seed or JWT in place of a path or a function is refused, and not quoted."""
    needs = {"signature_cb": {"nkey": "UABC"}}.get(option, {})
    with pytest.raises(InvalidOptionError) as caught:
        made(**{option: value}, **needs)
    assert caught.value.option == option
    shown = f"{caught.value} {caught.value!r} {caught.value.args}"
    assert SEED not in shown
    assert JWT not in shown


@pytest.mark.parametrize(
    "value", ["SUPER", "SECRETS.creds", "~/user.creds", "./" + SEED, "eyJ", Path("a b.creds")]
)
def test_ordinary_paths_are_paths(value):
    """A path may begin with S, and a file in a folder may have any name."""
    assert made(nkeys_seed=value).nkeys_seed == value
    assert made(user_credentials=value).user_credentials == value


def test_options_do_not_change():
    """Options are immutable: they can be shared and copied."""
    options = made(user="u", password="p", ping_interval=1, tls=TLSOptions())
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.user = "v"
    for item in (options, options.servers[0], options.tls):
        assert copy.copy(item) == item == copy.deepcopy(item)


# --- what is pickled, and what is not -----------------------------------------------------------


def a_secret():
    """Return a secret; a function that can be imported."""
    return "s3cret"


def seconds_to_wait(walks):
    """Return a delay."""
    return walks


PICKLED = [
    {},
    {"name": "n", "user": "u", "ping_interval": 1, "no_echo": True, "pending_size": 0},
    {"user": a_secret, "password": a_secret},
    {"token": a_secret},
    {"user_credentials": "/run/user.creds"},
    {"user_credentials": ("/run/user.jwt", Path("/run/user.nk"))},
    {"user_credentials": a_secret},
    {"nkeys_seed": "/run/user.nk"},
    {"nkeys_seed_str": a_secret},
    {"nkey": "UABC", "signature_cb": a_secret},
    {"user_jwt_cb": a_secret, "signature_cb": a_secret},
    {"reconnect_delay_cb": seconds_to_wait, "error_cb": print, "closed_cb": a_secret},
    {"tls": True, "tls_hostname": "h", "reconnect_jitter": 0.5},
    {"tls": TLSOptions(ca_file="ca", cert_file="c", key_file=Path("k"), key_password=a_secret)},
    {"tls": TLSOptions()},
]


@pytest.mark.parametrize("options", PICKLED)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_options_without_inline_secrets_survive_pickle(options, protocol):
    """Paths and importable functions survive pickle; the result is equal."""
    before = made(**options)
    after = pickle.loads(pickle.dumps(before, protocol))
    assert after == before
    after.check_secrets()


LOGIN = parse_servers("nats://u:s3cret@h:1,tls://s3cret@h")
LOST = [
    ({"servers": LOGIN}, "servers"),
    ({"user": "u", "password": "s3cret"}, "password"),
    ({"token": "s3cret"}, "token"),
    ({"nkeys_seed_str": "s3cret"}, "nkeys_seed_str"),
    ({"tls": TLSOptions(cert_file="c", key_password="s3cret")}, "key_password"),
    ({"ws_connection_headers": {"Authorization": "Bearer s3cret"}}, "ws_connection_headers"),
]


@pytest.mark.parametrize(("options", "lost"), LOST)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_contains_no_secret(options, lost, protocol):
    """A secret is removed and marked, everything else is pickled."""
    before = ConnectionOptions(**{"servers": SERVERS, "name": "n", **options})
    before.check_secrets()
    pickled = pickle.dumps(before, protocol)
    assert b"s3cret" not in pickled
    after = pickle.loads(pickled)
    assert (after.name, after.user) == ("n", before.user)
    assert [(server.url, server.user) for server in after.servers] == [
        (server.url, server.user) for server in before.servers
    ]
    holder = after.tls if lost == "key_password" else after
    assert lost == "servers" or getattr(holder, lost) is left_out
    with pytest.raises(InvalidOptionError, match="secrets are not pickled") as caught:
        after.check_secrets()
    assert caught.value.option == lost
    assert pickle.loads(pickle.dumps(after, protocol)) == after


def test_the_mark_of_a_removed_secret_is_a_singleton():
    """The mark is a singleton, also after pickling; using it as the secret is an error."""
    assert pickle.loads(pickle.dumps(left_out)) is left_out
    with pytest.raises(InvalidOptionError, match="functions that can be imported"):
        left_out()


@pytest.mark.parametrize("option", CALLBACKS)
def test_an_unimportable_callable_is_not_pickled(option):
    """The error is pickle's own."""
    needs = {"signature_cb": {"nkey": "UABC"}}.get(option, {})
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(made(**{option: lambda *_: None}, **needs))


# --- servers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("h", ServerAddress("h", 4222)),
        ("h:1", ServerAddress("h", 1)),
        ("h:", ServerAddress("h", 4222)),
        ("nats://h:65535", ServerAddress("h", 65535)),
        ("NATS://Host.Example:1/", ServerAddress("host.example", 1)),
        ("ws://h", ServerAddress("h", 80, scheme="ws")),
        ("wss://h/", ServerAddress("h", 443, scheme="wss")),
        (
            "wss://u:p@h:1/nats",
            ServerAddress("h", 1, scheme="wss", path="/nats", user="u", password="p"),
        ),
        ("nats://[::1]:1", ServerAddress("::1", 1)),
        ("[fe80::1]", ServerAddress("fe80::1", 4222)),
        ("nats://u:p@h", ServerAddress("h", 4222, user="u", password="p")),
        ("u:p@h:1", ServerAddress("h", 1, user="u", password="p")),
        ("nats://u:@h", ServerAddress("h", 4222, user="u", password="")),
        ("t@[::1]:1", ServerAddress("::1", 1, token="t")),
        ("nats://@h", ServerAddress("h", 4222)),
        ("nats://a%40b:p%3A%2F%20@h", ServerAddress("h", 4222, user="a@b", password="p:/ ")),
        ("nats://%C3%A4:%2C@h", ServerAddress("h", 4222, user="ä", password=",")),
    ],
)
def test_urls(text, address):
    """A URL is a host, with or without a scheme, a login and a port."""
    assert ServerAddress.parse(text) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "nats://",
        "nats://:4222",
        ":4222",
        "h:0",
        "h:65536",
        "h:1_0",
        "h:x",
        "http://h",
        "nats:h",
        "nats://[::1",
        "a b",
        "a\r\nb",
        "nats://h:1/path",
        "nats://h:1?query=1",
        "nats://:p@h",
        None,
        5,
        b"nats://h",
    ],
)
def test_an_invalid_url_is_refused(text):
    """The error names the option in every case."""
    with pytest.raises(InvalidOptionError) as caught:
        ServerAddress.parse(text)
    assert caught.value.option == "servers"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("nats://u:s3cret@host:99999", "nats://...@host:99999"),
        ("nats://u:s3cret@host:port", "nats://...@host:port"),
        ("ftp://s3cret@host:4222", "ftp://...@host:4222"),
        ("nats:/host", "nats:/host"),
        ("nats://host:1/path", "nats://host:1/path"),
        ("nats://host:1?token=s3cret", "nats://host:1..."),
        ("host:42x2", "host:42x2"),
        ("::1:4222", "::1:4222"),
        ("[::1", "[::1"),
        # The host is missing, so this may be a login.
        ("nats://u:s3cret", "nats://u:..."),
    ],
)
def test_errors_show_the_wrong_part_of_a_url(text, shown):
    """A port, a path and a scheme are shown; a login, and what may be one, is not."""
    with pytest.raises(InvalidOptionError) as caught:
        ServerAddress.parse(text)
    assert caught.value.value == shown


PIECES = st.lists(st.sampled_from([*":/?#[ x1", "\u2100", "port"]), max_size=3).map("".join)
ENDS = st.tuples(PIECES, st.sampled_from(["", ","]), PIECES).map("".join)


@given(st.sampled_from(["nats://", "http://", ""]), ENDS, ENDS, PIECES)
def test_errors_do_not_repeat_a_login(scheme, before, after, tail):
    """No error quotes what may be a password, however a URL is invalid."""
    text = f"{scheme}u:{before}s3cret{after}@h{tail}"
    for given_url in (text, [text], text.encode(errors="replace")):
        shown = ""
        try:
            parse_servers(given_url)
        except InvalidOptionError as error:
            shown = f"{error} {error!r} {error.__cause__}"
        assert "3cret" not in shown


@given(st.text(min_size=1, max_size=8), st.text(max_size=8))
def test_a_percent_encoded_login_is_decoded(user, password):
    """Any user, password or token can be in a URL, percent-encoded."""
    quoted = quote(user, safe=""), quote(password, safe="")
    address = ServerAddress.parse(f"nats://{quoted[0]}:{quoted[1]}@h")
    assert (address.user, address.password, address.token) == (user, password, None)
    address = ServerAddress.parse(f"nats://{quoted[0]}@h")
    assert (address.user, address.password, address.token) == (None, None, user)


@given(st.text(st.characters(), max_size=12) | st.text("na:/@[]%.,1 ", max_size=12))
def test_any_text_is_an_address_or_refused(text):
    """An invalid URL raises the documented error only; a valid one can be parsed again."""
    try:
        address = ServerAddress.parse(text)
    except InvalidOptionError:
        return
    assert 1 <= address.port <= 65535
    assert address.host
    again = ServerAddress.parse(address.url)
    assert (again.host, again.port, again.tls) == (address.host, address.port, address.tls)


@pytest.mark.parametrize(
    ("servers", "hosts"),
    [
        ("a", ["a"]),
        ("a,b", ["a", "b"]),
        ("nats://a:1, tls://b:2 ,c", ["a", "b", "c"]),
        (["a", "b"], ["a", "b"]),
        (("a",), ["a"]),
        (iter(["b", " a "]), ["b", "a"]),
    ],
)
def test_several_servers(servers, hosts):
    """One URL, several with commas between them, or any iterable; in order."""
    assert [server.host for server in parse_servers(servers)] == hosts


@pytest.mark.parametrize("servers", ["", [], (), "a,", "a,,b", [""], ["a", None], None, 5, [5]])
def test_bad_lists_of_servers(servers):
    """An empty list, and an empty address, are refused."""
    with pytest.raises(InvalidOptionError) as caught:
        parse_servers(servers)
    assert caught.value.option == "servers"
