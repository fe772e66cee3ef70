"""The application of docs/howto/flask, under gunicorn with --preload and several workers."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fixtures.apps import Program, copied, free_port, http, run
from fixtures.rawnats import RawClient
from fixtures.threads import wait_until
from fixtures.worker import is_settled, running

import jetstream_sync
from jetstream_sync import InvalidOptionError
from jetstream_sync.server import NatsServer

# Other programs take some time to start and to stop.
pytestmark = [pytest.mark.apps, pytest.mark.timeout(110)]


class Site:
    """The application, as seen by its clients."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self.workers: set[int] = set()

    def order(self, number: int) -> None:
        """Send an order, repeatedly until it is accepted."""

        def taken() -> bool:
            status, response = http("POST", f"{self._url}/orders/{number}", b"order %d" % number)
            if status == 201:
                self.workers.add(response["worker"])
            return status == 201

        wait_until(taken, 30)

    def price(self, article: str) -> tuple[int, object]:
        status, response = http("GET", f"{self._url}/prices/{article}")
        return status, response.get("price")


@pytest.fixture
def gunicorn(fresh_server: NatsServer, tmp_path: Path) -> Iterator[tuple[Program, Site]]:
    port = free_port()
    command = ["-m", "gunicorn", "--bind", f"127.0.0.1:{port}", "orders:app"]
    with Program(command, fresh_server.url, copied("flask", tmp_path)) as program:
        program.wait_for("Listening at")
        site = Site(port)
        wait_until(lambda: len(workers_of(program)) == 3)
        yield program, site


def workers_of(program: Program) -> set[int]:
    """Return the process ids of the current workers."""
    children = Path(f"/proc/{program.process.pid}/task/{program.process.pid}/children")
    return set(map(int, children.read_text().split()))


def messages(server: NatsServer) -> list[str]:
    """Return every message of the stream, read by an independent client."""
    with RawClient(server.port) as raw:
        last = raw.api("STREAM.INFO.ORDERS")["state"]["last_seq"]
    with jetstream_sync.connect(server.url) as nc:
        stream = nc.jetstream().get_stream("ORDERS")
        return [stream.get_msg(seq).data.decode() for seq in range(1, last + 1)]


def orders(count: int, start: int = 0) -> list[str]:
    return sorted(f"order {number}" for number in range(start, start + count))


def test_every_order_is_in_the_stream_once(gunicorn, fresh_server):
    """Many clients at a time are served by all workers, and no order is lost or repeated."""
    program, site = gunicorn
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(site.order, range(300)))
    assert sorted(messages(fresh_server)) == orders(300)
    assert len(site.workers) > 1
    assert site.workers <= workers_of(program)
    site.order(7)
    assert len(messages(fresh_server)) == 300, "an order that is sent again is stored once"
    program.signal(signal.SIGTERM)
    assert program.ended() == 0


def test_a_view_that_asks_a_service(gunicorn, fresh_server):
    """A view returns the reply of a service, and 503 if there is none."""
    _, site = gunicorn
    assert site.price("apples") == (503, None)
    with jetstream_sync.connect(fresh_server.url) as nc:
        nc.subscribe("prices.*", cb=lambda msg: msg.respond(msg.subject[7:].encode() + b": 3"))
        nc.flush()
        with ThreadPoolExecutor(8) as pool:
            responses = list(pool.map(site.price, [f"a{n}" for n in range(50)]))
    assert responses == [(200, f"a{n}: 3") for n in range(50)]


def test_the_worker_handles_orders_in_the_application_context(fresh_server, tmp_path):
    """The worker beside the application bills each order, and stops on SIGTERM."""
    command = ["-m", "flask", "--app", "orders", "jetstream"]
    folder = copied("flask", tmp_path)
    assert "consumer BILLING of stream ORDERS" in run([*command, "check"], fresh_server.url, folder)
    with Program([*command, "worker", "--processes", "2"], fresh_server.url, folder) as worker:
        wait_until(lambda: worker.output.count("is ready") == 2, 20)
        with RawClient(fresh_server.port) as raw:
            assert b'"seq"' in raw.request("ORDERS.received", b"two teas")
        worker.wait_for("billed two teas")
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0
        with RawClient(fresh_server.port) as raw:
            assert raw.api("CONSUMER.INFO.ORDERS.BILLING")["num_ack_pending"] == 0


def test_the_worker_runs_the_task_that_a_view_calls(fresh_server, tmp_path):
    """The view of tasks.py stores the call while no worker runs, and the worker runs it."""
    folder = copied("flask", tmp_path)
    call = (
        "from tasks import app; client = app.test_client(); "
        "response = client.post('/contact', data={'address': 'ada@example.com', 'text': 'tea'}); "
        "print(response.status_code)"
    )
    assert run(["-c", call], fresh_server.url, folder).split() == ["202"]
    command = ["-m", "flask", "--app", "tasks", "jetstream", "worker"]
    with Program(command, fresh_server.url, folder) as worker:
        worker.wait_for("mail to ada@example.com: tea")
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0


_FLOWS = """
import os
from flask import Flask, jsonify
from jetstream_sync.flask import JetStream
from jetstream_sync.workers import chain, group

app = Flask(__name__)
app.logger.setLevel("INFO")
app.config["JETSTREAM"] = {"servers": os.environ["NATS_URL"], "name": "flows"}
js = JetStream(app)


@js.worker.task(results="R")
def double(number: int) -> int:
    return number * 2


@js.worker.task(results="R")
def total(numbers: list[int]) -> int:
    app.logger.info("total %s", sum(numbers))
    return sum(numbers)


@js.worker.task(results="R")
def show(number: int) -> None:
    app.logger.info("shown %s", number)


@app.post("/numbers/<int:count>")
def numbers(count):
    group([double.call(number) for number in range(count)], then=total.call()).delay()
    return jsonify(call=chain(double.call(21), show.call()).delay().id), 202
"""


def test_a_view_begins_a_flow_that_a_worker_ends(fresh_server, tmp_path):
    """A view sends a group with a callback, and a chain; a worker that starts later runs all of them."""
    (tmp_path / "flows.py").write_text(_FLOWS, encoding="utf-8")
    call = "from flows import app; print(app.test_client().post('/numbers/5').status_code)"
    assert run(["-c", call], fresh_server.url, tmp_path).split() == ["202"]
    command = ["-m", "flask", "--app", "flows", "jetstream", "worker"]
    with Program(command, fresh_server.url, tmp_path) as worker:
        worker.wait_for("total 20")
        worker.wait_for("shown 42")
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0
    with RawClient(fresh_server.port) as raw:
        assert raw.api("STREAM.INFO.TASKS")["state"]["messages"] == 0


def test_the_context_of_a_handler_is_torn_down(nats_server, js, stream):
    """After each run, also a failed one, functions for the teardown are called with the error."""
    from flask import Flask, current_app, g

    from jetstream_sync.flask import JetStream

    extension = JetStream(dead_letters="DEAD")  # an application factory: the app is created later
    seen: list[object] = []

    @extension.worker.handler(stream=stream.name, consumer="C", decode="text", retry_on=())
    def handle(text: str) -> None:
        assert "text" not in g
        g.text = text
        assert extension.jetstream().publish(f"{stream.name}.other", b"x").stream == stream.name
        if text == "bad":
            raise ZeroDivisionError
        seen.append(current_app.name)

    app = Flask("shop")
    app.config["JETSTREAM"] = {"servers": nats_server.url, "max_reconnect_attempts": 7}
    extension.init_app(app)

    @app.teardown_appcontext
    def close(error: BaseException | None) -> None:
        seen.append((g.pop("text", None), type(error)))

    stream.create_consumer(durable_name="C", filter_subject=f"{stream.name}.x")
    for text in (b"good", b"bad"):
        js.publish(f"{stream.name}.x", text)
    with running(extension.worker):
        wait_until(lambda: len(seen) == 3)
        wait_until(lambda: is_settled(stream, "C"))
    assert seen == ["shop", ("good", type(None)), ("bad", ZeroDivisionError)]
    with app.app_context():
        assert extension.connection() is extension.connection()
        extension.connection().close()


def test_tasks_of_an_application_factory_have_its_name(nats_server, js):
    """Tasks and their schedules that are defined before init_app belong to the application."""
    from flask import Flask, current_app

    from jetstream_sync.flask import JetStream

    extension = JetStream()

    @extension.worker.task(name="double", results="RESULTS")
    def double(number: int) -> tuple[str, int]:
        return current_app.name, 2 * number

    extension.worker.schedule(double, every=3600, args=[1])
    app = Flask("shop")
    app.config["JETSTREAM"] = {"servers": nats_server.url, "name": "shop"}
    extension.init_app(app)

    @extension.worker.task(queue="default", name="later")
    def later() -> None: ...

    call = double.delay(4)
    assert js.get_stream("TASKS").get_msg(1).subject == f"tasks.shop.default.double.{call.id}"
    assert [item.subject for item in extension.worker.schedules] == [
        "tasks.shop.default.double.double"
    ]
    assert later.queue.consumer == "tasks-shop-default"
    with running(extension.worker):
        assert call.get(20) == ["shop", 8]
    (consumer,) = js.get_stream("TASKS").list_consumers()
    assert (consumer.name, consumer.config.filter_subject) == (
        "tasks-shop-default",
        "tasks.shop.default.*.*",
    )


def test_a_name_that_is_no_token_is_refused_for_tasks():
    """Its dots would be levels of the subjects of the calls."""
    from flask import Flask

    from jetstream_sync.flask import JetStream

    extension = JetStream()
    extension.worker.task(name="double")(lambda: None)
    app = Flask("shop")
    app.config["JETSTREAM"] = {"name": "shop.web"}
    with pytest.raises(InvalidOptionError, match="must be a token of a subject"):
        extension.init_app(app)


@pytest.mark.parametrize("define", ["task", "schedule"])
def test_an_application_with_tasks_needs_a_name(define):
    """The name of the application, such as ``app``, may be that of another one."""
    from flask import Flask

    from jetstream_sync.flask import JetStream

    extension = JetStream()
    if define == "task":
        extension.worker.task(name="double")(lambda: None)
    else:
        extension.worker.schedule("daily", subject="a.b", every=60)(bytes)
    with pytest.raises(InvalidOptionError, match=r'app.config\["JETSTREAM"\] = \{"name": "shop"\}'):
        extension.init_app(Flask("app"))
    extension = JetStream(Flask("app"))
    with pytest.raises(InvalidOptionError, match="no other program"):
        extension.worker.task(name="double")(lambda: None)


@pytest.mark.parametrize("define", ["handler", "task"])
def test_processes_of_handlers_have_the_application(fresh_server, tmp_path, define):
    """Also that of a factory: a process of a handler creates it before it handles messages."""
    decorators = {
        "handler": 'js.worker.handler(stream="S", consumer="C", pool="processes", decode="text")',
        "task": 'js.worker.task(name="show", queue="other")',
    }
    (tmp_path / "jobs.py").write_text(
        f"""
from flask import current_app
from jetstream_sync.flask import JetStream

js = JetStream()
js.worker.queue("other", pool="processes")


@{decorators[define]}
def show(text: str) -> None:
    print("handled", text, "for", current_app.name, flush=True)
"""
    )
    (tmp_path / "shop.py").write_text(
        """
import os
from flask import Flask


def create_app():
    from jobs import js
    app = Flask("shop")
    app.config["JETSTREAM"] = {"servers": os.environ["NATS_URL"], "name": "shop"}
    js.init_app(app)
    return app
"""
    )
    command = ["-m", "flask", "--app", "shop:create_app", "jetstream", "worker"]
    with jetstream_sync.connect(fresh_server.url) as nc:
        js = nc.jetstream()
        if define == "handler":
            js.create_stream(name="S", subjects=["s"])
        with Program(command, fresh_server.url, tmp_path) as worker:
            worker.wait_for("is ready")
            if define == "handler":
                js.publish("s", b"it")
            else:
                js.publish("tasks.shop.other.show.1", b'{"args": ["it"]}')
            worker.wait_for("handled it for shop")
            worker.signal(signal.SIGTERM)
            assert worker.ended() == 0
