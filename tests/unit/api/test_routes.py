"""API subjects, with a domain or prefix."""

from __future__ import annotations

import inspect

import pytest

from jetstream_sync.api.routes import Routes
from jetstream_sync.errors import InvalidOptionError

# As in nats-server/server/jetstream_api.go, with its wildcards filled in.
SUBJECTS = {
    "account_info": "$JS.API.INFO",
    "stream_create": "$JS.API.STREAM.CREATE.S",
    "stream_update": "$JS.API.STREAM.UPDATE.S",
    "stream_info": "$JS.API.STREAM.INFO.S",
    "stream_delete": "$JS.API.STREAM.DELETE.S",
    "stream_purge": "$JS.API.STREAM.PURGE.S",
    "stream_snapshot": "$JS.API.STREAM.SNAPSHOT.S",
    "stream_restore": "$JS.API.STREAM.RESTORE.S",
    "stream_step_down": "$JS.API.STREAM.LEADER.STEPDOWN.S",
    "stream_remove_peer": "$JS.API.STREAM.PEER.REMOVE.S",
    "consumer_step_down": "$JS.API.CONSUMER.LEADER.STEPDOWN.S.C",
    "stream_names": "$JS.API.STREAM.NAMES",
    "stream_list": "$JS.API.STREAM.LIST",
    "msg_get": "$JS.API.STREAM.MSG.GET.S",
    "msg_delete": "$JS.API.STREAM.MSG.DELETE.S",
    "direct_get": "$JS.API.DIRECT.GET.S",
    "direct_get_last": "$JS.API.DIRECT.GET.S.a.b",
    "consumer_create": "$JS.API.CONSUMER.CREATE.S.C.a.b",
    "consumer_info": "$JS.API.CONSUMER.INFO.S.C",
    "consumer_delete": "$JS.API.CONSUMER.DELETE.S.C",
    "consumer_pause": "$JS.API.CONSUMER.PAUSE.S.C",
    "consumer_reset": "$JS.API.CONSUMER.RESET.S.C",
    "consumer_unpin": "$JS.API.CONSUMER.UNPIN.S.C",
    "consumer_names": "$JS.API.CONSUMER.NAMES.S",
    "consumer_list": "$JS.API.CONSUMER.LIST.S",
    "next_msg": "$JS.API.CONSUMER.MSG.NEXT.S.C",
}
ARGUMENTS = {"stream": "S", "consumer": "C", "subject": "a.b", "filter_subject": "a.b"}


def route(routes: Routes, name: str) -> str:
    method = getattr(routes, name)
    subject: str = method(
        **{each: ARGUMENTS[each] for each in inspect.signature(method).parameters}
    )
    return subject


def test_every_route_is_in_the_table() -> None:
    """No route is left out of the tests below."""
    named = {
        name
        for name, member in vars(Routes).items()
        if inspect.isfunction(member) and not name.startswith(("_", "is_"))
    }
    assert named == set(SUBJECTS)


@pytest.mark.parametrize("name", SUBJECTS)
@pytest.mark.parametrize(
    ("routes", "start"),
    [
        (Routes.of(), "$JS.API"),
        (Routes.of(domain="hub"), "$JS.hub.API"),  # ADR-19
        (Routes.of(prefix="from.acme"), "from.acme"),
    ],
)
def test_a_route_is_the_servers_subject(routes: Routes, start: str, name: str) -> None:
    """A route is the subject that the server listens to, with a domain or prefix in its place."""
    assert route(routes, name) == start + SUBJECTS[name].removeprefix("$JS.API")


@pytest.mark.parametrize("filter_subject", [None, ""])
def test_a_consumer_without_a_single_filter_has_no_filter_in_its_route(
    filter_subject: str | None,
) -> None:
    """Without a filter and with several filters, the route has no filter."""
    created = Routes.of().consumer_create("S", "C", filter_subject)
    assert created == "$JS.API.CONSUMER.CREATE.S.C"


def test_a_domain_and_a_prefix_exclude_each_other() -> None:
    """A domain together with a prefix is rejected."""
    with pytest.raises(InvalidOptionError) as caught:
        Routes.of(domain="hub", prefix="from.acme")
    assert caught.value.option == "prefix"


@pytest.mark.parametrize("domain", ["", "a.b", "a b", "*", ">", "a\r\n", "a/b"])
def test_a_domain_is_one_token(domain: str) -> None:
    """A domain with a dot, a wildcard or white space is rejected."""
    with pytest.raises(InvalidOptionError) as caught:
        Routes.of(domain=domain)
    assert caught.value.option == "domain"


@pytest.mark.parametrize("prefix", ["", ".", "a..b", "a.*", "a.>", "a b", "a\r\nPUB x 0"])
def test_a_prefix_is_a_subject_without_wildcards(prefix: str) -> None:
    """A prefix that cannot be published to is rejected before a request is sent."""
    with pytest.raises(InvalidOptionError) as caught:
        Routes.of(prefix=prefix)
    assert caught.value.option == "prefix"
