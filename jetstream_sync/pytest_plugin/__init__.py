"""
Fixtures for pytest: a real nats-server, and workers that run during a test.

The plugin is not loaded by itself. Name it in the ``conftest.py`` at the root of the tests::

    pytest_plugins = ["jetstream_sync.pytest_plugin"]

It needs the ``server`` extra, or a nats-server in the ``PATH``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final

import pytest

from .. import connect, errors
from ..net.clock import Deadline
from ..server import NatsServer

if TYPE_CHECKING:
    from .. import JetStream
    from ..workers import Worker
    from ..workers.source import Source

__all__ = ["RunningWorker", "jetstream", "jetstream_server", "jetstream_worker"]

#: Interval of the checks of a consumer, in seconds.
_POLL_S: Final = 0.01


@pytest.fixture(scope="session")
def jetstream_server() -> Iterator[NatsServer]:
    """A nats-server with JetStream for all tests of a session, or of a process of pytest-xdist."""
    with NatsServer() as server:
        yield server


@pytest.fixture
def jetstream(jetstream_server: NatsServer) -> Iterator[JetStream]:
    """JetStream on the server of the session; all streams are deleted after the test."""
    with connect(jetstream_server.url) as nc:
        js = nc.jetstream()
        yield js
        for name in js.stream_names():
            with suppress(errors.StreamNotFoundError):  # a worker of the test may be ending
                js.delete_stream(name)


@pytest.fixture
def jetstream_worker(
    jetstream_server: NatsServer, jetstream: JetStream
) -> Iterator[Callable[[Worker], RunningWorker]]:
    """
    A function that runs a worker in a thread until the end of the test, on the server of the session.

    The streams of its handlers must exist; all streams are deleted after the test. The test fails if the
    worker ends with a status other than 0.
    """
    with ExitStack() as stack:

        def start(worker: Worker) -> RunningWorker:
            running = RunningWorker(worker, jetstream_server.url, jetstream)
            stack.callback(running.stop)
            return running

        yield start


@pytest.fixture
def jetstream_eager() -> Iterator[Callable[[Worker], None]]:
    """
    A function that has the calls of a worker's tasks run at once until the end of the test.

    No server is needed; see `Worker.eager`.
    """
    with ExitStack() as stack:

        def start(worker: Worker) -> None:
            stack.enter_context(worker.eager())

        yield start


class RunningWorker:
    """
    A worker that runs in a thread; the fixture `jetstream_worker` returns it.

    Args:
        worker: the worker; its servers are replaced while it runs, and it uses no context.
        url: the server.
        js: a JetStream context of the test.

    """

    def __init__(self, worker: Worker, url: str, js: JetStream) -> None:
        self.worker = worker
        #: The exit status; ``None``: the worker runs.
        self.status: int | None = None
        self._js = js
        self._settings = worker.servers, worker.connection
        worker.servers = url
        # The login of a context is for its own servers.
        worker.connection = {k: v for k, v in worker.connection.items() if k != "context"}
        self._thread = threading.Thread(target=self._run, name="jetstream-worker", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.status = self.worker.run()

    def wait_idle(self, timeout: float = 10.0) -> None:
        """
        Wait until every message is acknowledged or terminated, by the server's account.

        A message that waits for its retry counts. The test fails if that takes longer than ``timeout``
        seconds, or if the worker ends.
        """
        deadline = Deadline(timeout)
        before: list[int] = []
        while True:
            left, delivered = "", []
            for handler in self.worker.handlers:
                unsettled, count = self._unsettled(handler)
                left = left or (unsettled and f"handler {handler.name} has {unsettled}")
                delivered.append(count)
            # A handler that was idle may have got a message of one that was asked later.
            if not left and delivered == before:
                return
            if left and not self._thread.is_alive():
                pytest.fail(f"the worker has ended with status {self.status}; see its log")
            if (left or before) and deadline.expired():
                pytest.fail(f"after {timeout:g} s, {left or 'the handlers receive messages'}")
            before = delivered
            time.sleep(_POLL_S)

    def _unsettled(self, source: Source) -> tuple[str, int]:
        """Return what is left to do for a handler, empty: nothing; and the number of its deliveries."""
        try:
            info = self._js.consumer_info(source.stream, source.consumer)
        except errors.NotFoundError:
            return "no stream or consumer", 0
        left = ""
        if info.num_pending or info.num_ack_pending:
            left = f"{info.num_pending} messages to receive and {info.num_ack_pending} to settle"
        return left, info.delivered.consumer_seq

    def stop(self, timeout: float = 30.0) -> int:
        """
        Stop the worker as SIGTERM does, and return its status; a second call only returns it.

        The test fails if the status is not 0, or if the worker does not end within ``timeout`` seconds.
        """
        if self._thread.is_alive():
            self.worker.stop()
            self._thread.join(timeout)
        self.worker.servers, self.worker.connection = self._settings
        if self.status is None:
            pytest.fail(f"the worker did not end within {timeout:g} s, or has crashed")
        if self.status:
            pytest.fail(f"the worker has ended with status {self.status}; see its log")
        return self.status
