"""The selection of the applications' tests, and their databases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fixtures.django import clear, configure, postgres_server

from jetstream_sync.server import NatsServer


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """
    Deselect tests marked ``apps``, unless ``-m`` names that marker.

    If it does, no test is skipped: an application whose packages are missing fails.
    """
    if "apps" in (config.getoption("-m") or ""):
        return
    left_out = [item for item in items if item.get_closest_marker("apps")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("apps")]


@pytest.fixture(scope="session")
def postgres() -> Iterator[dict[str, str]]:
    """A PostgreSQL server: the environment variables for its clients."""
    with postgres_server() as variables:
        yield variables


@pytest.fixture(scope="session")
def django_project(postgres: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Django in this process, with the databases ``default`` (SQLite) and ``postgres``."""
    configure(tmp_path_factory.mktemp("django"), postgres)


@pytest.fixture(params=["default", "postgres"], ids=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, nats_server: NatsServer) -> Iterator[str]:
    """The name of an empty database; ``JETSTREAM`` has the shared server."""
    request.getfixturevalue("django_project")
    from django.test import override_settings

    alias: str = request.param
    setting = {"servers": nats_server.url, "dead_letters": "DEAD", "outbox": [alias]}
    with override_settings(JETSTREAM=setting):
        yield alias
        from jetstream_sync.django import connection

        connection().close()
    clear(alias)


@pytest.fixture
def postgres_database(postgres: dict[str, str]) -> Iterator[dict[str, str]]:
    """An empty database on the PostgreSQL server: its environment variables."""
    import psycopg

    where = {"host": postgres["PGHOST"], "user": postgres["PGUSER"], "dbname": "postgres"}
    with psycopg.connect(**where, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS shop WITH (FORCE)")
        connection.execute("CREATE DATABASE shop")
        yield postgres | {"PGDATABASE": "shop"}
        connection.execute("DROP DATABASE shop WITH (FORCE)")
