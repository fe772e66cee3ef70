"""The small project of docs/howto/django, with everything that a Django team needs on its first day."""

from __future__ import annotations

import re
import urllib.request
from http.cookiejar import CookieJar
from urllib.parse import urlencode

import pytest
from fixtures.apps import APPS, Program, copied, free_port, http, run
from fixtures.threads import wait_until
from fixtures.top_web import Shown, Web

from jetstream_sync import connect

pytestmark = [pytest.mark.apps, pytest.mark.timeout(110), pytest.mark.server(">=2.14")]


def test_the_project_is_short():
    """All of its files together have at most 71 lines, without empty ones."""
    files = (APPS / "django_shop").rglob("*.py")
    lines = [line for file in files for line in file.read_text().splitlines() if line.strip()]
    assert len(lines) <= 71


def test_the_project_runs(fresh_server, tmp_path, postgres_database, monkeypatch):
    """From empty servers: its tests, setup, an order, its receipt, the report, the admin site, the dashboard."""
    for name, value in postgres_database.items():
        monkeypatch.setenv(name, value)
    folder, url = copied("django_shop", tmp_path), fresh_server.url
    assert "Ran 1 test" in run(["manage.py", "test"], "nats://127.0.0.1:1", folder)
    run(["manage.py", "migrate", "--verbosity", "0"], url, folder)
    monkeypatch.setenv("DJANGO_SUPERUSER_PASSWORD", "secret")
    admin = ["--username", "admin", "--email", "admin@example.com", "--no-input"]
    run(["manage.py", "createsuperuser", *admin], url, folder)
    setup = ["manage.py", "jetstream_setup"]
    for command in (setup, ["manage.py", "jetstream_check"]):
        with Program(command, "nats://127.0.0.1:1", folder) as program:
            assert program.ended() == 5
    assert "is created at start" in run(["manage.py", "jetstream_check"], url, folder)
    with Program([*setup, "--check"], url, folder) as program:
        assert program.ended() == 1
        assert "create stream 'SHOP'" in program.output
    with connect(url) as nc:
        assert nc.jetstream().stream_names() == []
    run(setup, url, folder)
    assert "Nothing to do" in run([*setup, "--check"], url, folder)
    site, metrics = free_port(), free_port()
    options = ("--threads", "2", "--bind", f"127.0.0.1:{site}")
    with (
        Program(["-m", "gunicorn", *options, "manage:application"], url, folder) as web,
        Program(
            ["manage.py", "jetstream_worker", "--http", f"127.0.0.1:{metrics}"], url, folder
        ) as worker,
        connect(url) as nc,
    ):
        web.wait_for("Listening at")
        worker.wait_for("is ready")
        for number in (17, 18, 17):
            assert http("GET", f"http://127.0.0.1:{site}/orders/{number}")[0] == 200
        assert "Dead letters" in admin_page(f"http://127.0.0.1:{site}")
        receipts = nc.jetstream().key_value("RECEIPTS")
        wait_until(lambda: [b"SUCCESSFUL" in value for value in values(receipts)] == [True] * 2, 30)
        wait_until(lambda: http("GET", f"http://127.0.0.1:{site}/report")[1] == {"last": 18}, 30)
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics") as response:
            text = response.read().decode()
        dashboard = ["-m", "jetstream_sync.cli", "top", "--web"]
        with Program([*dashboard, "--listen", f"127.0.0.1:{free_port()}"], url, folder) as top:
            top.wait_for("?token=")
            (link,) = re.findall(r"http\S+", top.output)
            page = Web(link, top)
            with page.socket(page.log_in(), page.origin) as socket:
                Shown(socket).expect("SHOP > BILLING")
    assert 'handler="shop-workers-send_receipt"' in text
    assert "outbox_messages" in text


def admin_page(site: str) -> str:
    """Return the page of dead letters, after a login."""
    cookies = CookieJar()
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(cookies))
    with opener.open(f"{site}/admin/login/"):
        token = next(cookie.value for cookie in cookies if cookie.name == "csrftoken")
    fields = {"username": "admin", "password": "secret", "csrfmiddlewaretoken": token}
    data = urlencode({**fields, "next": "/admin/jetstream/deadletter/"}).encode()
    with opener.open(f"{site}/admin/login/", data) as page:
        return page.read().decode()


def values(bucket: object) -> list[bytes]:
    """Return the values of a bucket."""
    return [bucket[key] for key in bucket]
