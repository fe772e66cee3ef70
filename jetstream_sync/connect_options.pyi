# Types of the keyword arguments of `connect()`. Made by tests/make_config_fields.py from
# `jetstream_sync.options.ConnectionOptions`. There is no such module at run time.

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from ssl import SSLContext
from typing import TypedDict

from .address import Secret
from .options import Dialer, ErrorCallback, EventCallback, FilePath, ReconnectTo, TLSOptions

class ConnectOptions(TypedDict, total=False):
    name: str | None
    """Name of the connection in the server's monitoring and logs."""
    user: Secret | None
    """User name; credentials in a server's URL take precedence. This and the other secrets may be a
    function, which is called on every connect and reconnect."""
    password: Secret | None
    """Password of the user."""
    token: Secret | None
    """Authentication token, instead of a user and password."""
    user_credentials: FilePath | tuple[FilePath, FilePath] | Callable[[], str | bytes] | None
    """A ``.creds`` file, a pair of a JWT file and an nkey seed file, or a function that returns the
    content of a ``.creds`` file; read or called on every connect and reconnect. This option and the next
    two require the ``nkeys`` extra."""
    nkeys_seed: FilePath | None
    """A file with an nkey seed; read on every connect and reconnect."""
    nkeys_seed_str: Secret | None
    """An nkey seed."""
    nkey: str | None
    """The public nkey of the user; requires a ``signature_cb``, which signs with its seed."""
    user_jwt_cb: Callable[[], str | bytes] | None
    """Returns the user's JWT; requires a ``signature_cb``, unless the JWT is a bearer token. Called on
    every connect and reconnect."""
    signature_cb: Callable[[str], str | bytes] | None
    """Signs the server's nonce: receives the nonce as text and returns the signature, in base64 or as 64
    raw bytes. Called if the server sent a nonce."""
    tls: bool | SSLContext | TLSOptions | None
    """Whether to require TLS, and its settings; default: TLS if the server requires it, verified with
    the trust store of the system."""
    tls_hostname: str | None
    """Expected host name in the server's certificate; default: the host of its URL."""
    tls_handshake_first: bool
    """Start with the TLS handshake instead of waiting for the server's INFO; default false."""
    tls_allow_downgrade: bool
    """Allow a reconnect to a server without TLS after TLS was used; default false: once a connection
    used TLS, every later server has to offer it. For connections without ``tls``."""
    ws_connection_headers: Mapping[str, str | Sequence[str]] | None
    """HTTP headers of the WebSocket upgrade request, such as a proxy login."""
    connect_timeout: float | timedelta
    """Timeout for TCP connect, TLS handshake and login with one server; default 2."""
    dialer: Dialer | None
    """Opens the socket, for proxies and in-process servers. Called on each connect and reconnect with the
    host, the port and the remaining seconds of ``connect_timeout``; returns a connected, plain socket,
    which the connection then owns. TLS and WebSocket run on top of it. The dialer resolves host names
    itself; an `OSError` means that the server is unreachable. Default: TCP."""
    allow_reconnect: bool
    """Reconnect when the connection is lost; default true."""
    retry_on_failed_connect: bool
    """Return from `connect()` when no server can be reached, and keep trying in the background, as in a
    reconnect; default false."""
    max_reconnect_attempts: int
    """Consecutive failures after which a server is removed from the pool; -1: never; default 60."""
    reconnect_time_wait: float | timedelta
    """Wait between two rounds of connection attempts to all servers; default 2. With 0, rounds are 10 to
    50 milliseconds apart, and ``max_reconnect_attempts`` is reached quickly."""
    reconnect_jitter: float | timedelta | None
    """Upper limit of the random time added to this wait, so that the clients of a restarted server do not
    reconnect all at once. ``None``: 0.1, or 1 with TLS; doubled, up to 60, with each round in which a
    server sent its INFO but did not finish the handshake in time. Ignored with ``reconnect_time_wait=0``."""
    reconnect_delay_cb: Callable[[int], float | timedelta] | None
    """Returns the wait before the next round, instead of ``reconnect_time_wait`` and its jitter. Called
    with the number of rounds since the connection was lost."""
    reconnect_to_cb: ReconnectTo | None
    """Chooses the server of each attempt to reconnect: called with the servers of `Connection.server_pool`,
    it returns one of them and the wait before the attempt, in seconds. ``None``, an error or another
    server: the next one of the pool at once, as without this option."""
    ignore_auth_error_abort: bool
    """Keep trying a server that refused the login twice with the same error; default false."""
    ignore_discovered_servers: bool
    """Use only the configured servers, not those that a cluster announces; default false."""
    fail_requests_on_disconnect: bool
    """Fail pending requests with `ConnectionLostError` as soon as the connection is lost, instead of
    waiting for a reply after the reconnect until they time out; default false."""
    ping_interval: float | timedelta
    """Interval between pings; default 120."""
    max_outstanding_pings: int
    """Number of unanswered pings after which the connection is considered lost; default 2."""
    dont_randomize: bool
    """Try the servers in the given order; default false."""
    no_echo: bool
    """Do not receive messages published by this connection; default false."""
    verbose: bool
    """Make the server acknowledge each command with ``+OK``; default false."""
    pedantic: bool
    """Enable the strict checks of the server; default false."""
    inbox_prefix: str
    """Subject prefix of reply inboxes; default ``_INBOX``."""
    drain_timeout: float | timedelta
    """Timeout of `Connection.drain`; default 30."""
    pending_size: int
    """Maximum number of bytes buffered while disconnected; default 2 MiB."""
    error_cb: ErrorCallback | None
    """Called with each asynchronous error; default: the error is logged. Callbacks run one at a time on a
    dedicated thread. The callbacks below receive a `ConnectionEvent` if they have a parameter."""
    disconnected_cb: EventCallback | None
    """Called when the connection is lost."""
    reconnected_cb: EventCallback | None
    """Called after a reconnect; also after the first connect with ``retry_on_failed_connect``."""
    closed_cb: EventCallback | None
    """Called when the connection is closed, before `Connection.close` or `Connection.drain` returns."""
    discovered_server_cb: EventCallback | None
    """Called when the cluster announces a new server."""
    reconnect_error_cb: EventCallback | None
    """Called after each failed attempt to reconnect, with the server and the error."""
    lame_duck_mode_cb: EventCallback | None
    """Called when the server enters lame duck mode and will shut down soon."""
    trace_cb: Callable[[str], object] | None
    """Called with each protocol line, on a dedicated thread, with secrets masked; sent lines begin with
    ``>``, received lines with ``<``. Default: no tracing, without any overhead."""
