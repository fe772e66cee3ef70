"""
JetStream in Flask applications: a connection per process, and workers with an application context.

Example::

    from flask import Flask
    from jetstream_sync.flask import JetStream

    app = Flask(__name__)
    app.config["JETSTREAM"] = {"servers": "nats://127.0.0.1:4222", "name": "shop"}
    js = JetStream(app, dead_letters="DEAD")


    @app.post("/orders/<number>")
    def take(number):
        ack = js.jetstream().publish("ORDERS.received", request.get_data(), msg_id=number)
        return {"seq": ack.seq}, 201


    @js.worker.handler(stream="ORDERS", consumer="BILLING", concurrency=4)
    def bill(order): ...

``flask jetstream worker`` runs the handlers, and ``flask jetstream check`` checks that it can.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import shared_connection
from ..version import needs_extra
from ..workers import Context, Worker
from ..workers.command import main, show_check
from ..workers.operations.heartbeat import supervisor_link

with needs_extra("flask"):
    import click
    from flask import Flask, current_app
    from flask.cli import AppGroup, ScriptInfo, with_appcontext

if TYPE_CHECKING:
    from .. import Connection
    from .. import JetStream as JetStreamContext

__all__ = ["JetStream"]

# The heartbeats of a worker process begin here, before the rest of the application is imported.
supervisor_link()


class JetStream:
    """
    The JetStream extension of Flask applications.

    The configuration value ``JETSTREAM`` is a dictionary with the arguments of
    `jetstream_sync.connect`. Without ``servers`` the local server is used.

    Args:
        app: the application; ``None``: call `init_app`.
        **options: options of `worker`, as for `jetstream_sync.workers.Worker`, except those of its
            connection.

    """

    worker: Worker
    """The worker. Each run of a handler has an application context, which is torn down afterwards as after
    a request."""

    def __init__(self, app: Flask | None = None, **options: Any) -> None:
        middleware = [self._in_app_context, *options.pop("middleware", ())]
        self.worker = Worker(middleware=middleware, **options)
        # Until `init_app`, the name is not known.
        self.worker.default_name = ""
        self.worker.name_example = 'app.config["JETSTREAM"] = {"name": "shop"}'
        self._app: Flask | None = None
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """
        Add the extension to an application; handlers run in the context of the last one.

        The worker gets the ``name`` of the configuration, also for tasks that are defined already; without
        one, its connection has the name of the application.

        Raises:
            InvalidOptionError: the worker has tasks or schedules, and the configuration has no name, or one that
                cannot be a token of their subjects.

        """
        options = dict(app.config.setdefault("JETSTREAM", {}))
        app.extensions["jetstream"] = self
        self._app = app
        self.worker.servers = options.pop("servers", None)
        self.worker.default_name = "" if options.get("name") else app.name
        self.worker.queues.rename(options.get("name") or app.name)
        self.worker.connection = options
        app.cli.add_command(_commands)

    def connection(self) -> Connection:
        """
        Return the connection of this process for the current application; open it if there is none.

        Call this wherever the connection is needed; a forked process gets its own. Workers have another
        connection. See `jetstream_sync.shared_connection`.

        Raises:
            RuntimeError: there is no application context.
            Error: as `jetstream_sync.connect`.

        """
        return shared_connection(**{"name": current_app.name, **current_app.config["JETSTREAM"]})

    def jetstream(self) -> JetStreamContext:
        """
        Return a JetStream context of `connection`.

        Raises:
            RuntimeError: there is no application context.
            Error: the connection cannot be opened.

        """
        return self.connection().jetstream()

    def _in_app_context(self, call: Callable[[], object], _ctx: Context) -> object:
        if self._app is None:
            raise RuntimeError("the extension has no application: call init_app first")
        with self._app.app_context():
            return call()


_commands = AppGroup("jetstream", help="Run the handlers of messages.")


def _current_worker() -> Worker:
    extension: JetStream = current_app.extensions["jetstream"]
    return extension.worker


def load_app() -> Flask:
    """
    Create the application in a process of a handler, as the ``flask`` command does.

    :meta private:
    """
    return ScriptInfo(os.environ.get("FLASK_APP")).load_app()


@_commands.command(
    "worker", context_settings={"ignore_unknown_options": True}, add_help_option=False
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
@with_appcontext
def _run(ctx: click.Context, arguments: tuple[str, ...]) -> None:
    """Handle messages until Ctrl-C or SIGTERM."""
    path = ctx.ensure_object(ScriptInfo).app_import_path
    worker = _current_worker()
    worker.process_setup = f"{__name__}:load_app"
    if path:
        os.environ["FLASK_APP"] = path  # for that function
    # Each process of several is the same command.
    command = [sys.executable, "-m", "flask", *(("--app", path) if path else ())]
    command += ["jetstream", "worker"]
    prog = "flask jetstream worker"
    sys.exit(main(arguments, prog=prog, worker=worker, command=command))


@_commands.command("check")
@with_appcontext
def _check() -> None:
    """Check that the worker can run. No message is read, and nothing is changed."""
    sys.exit(show_check(_current_worker(), click.echo, partial(click.echo, err=True)))
