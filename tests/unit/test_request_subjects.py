"""API subjects, with a domain or prefix."""

from __future__ import annotations

import pytest

from jetstream_sync.errors import InvalidOptionError
from jetstream_sync.subjects import Routes


@pytest.mark.parametrize(
    ("routes", "prefix"),
    [
        (Routes.of(), "$JS.API"),
        (Routes.of(domain="hub"), "$JS.hub.API"),  # ADR-19
        (Routes.of(prefix="from.acme"), "from.acme"),
    ],
)
def test_a_route_is_the_subject_of_the_server_below_the_prefix(routes, prefix):
    """Routes are as in nats-server's jetstream_api.go, with the prefix of a domain or an import."""
    assert routes.to("INFO") == f"{prefix}.INFO"
    assert routes.to("CONSUMER.INFO", "S", "C") == f"{prefix}.CONSUMER.INFO.S.C"
    assert routes.direct_get_last("S", "a.b") == f"{prefix}.DIRECT.GET.S.a.b"
    assert routes.consumer_create("S", "C", "a.b") == f"{prefix}.CONSUMER.CREATE.S.C.a.b"


@pytest.mark.parametrize("filter_subject", [None, ""])
def test_a_consumer_without_a_single_filter_has_no_filter_in_its_route(filter_subject):
    """Without a filter and with several filters, the route has no filter."""
    created = Routes.of().consumer_create("S", "C", filter_subject)
    assert created == "$JS.API.CONSUMER.CREATE.S.C"


NO_DOMAINS = ["", "a.b", "a b", "*", ">", "a\r\n", "a/b"]
NO_PREFIXES = ["", ".", "a..b", "a.*", "a.>", "a b", "a\r\nPUB x 0"]


@pytest.mark.parametrize(
    ("option", "given"),
    [
        *(("domain", {"domain": wrong}) for wrong in NO_DOMAINS),
        *(("prefix", {"prefix": wrong}) for wrong in NO_PREFIXES),
        ("prefix", {"domain": "hub", "prefix": "from.acme"}),
    ],
)
def test_a_domain_is_one_token_and_a_prefix_a_subject(option, given):
    """Wildcards and white space are refused before a request is sent, and so are both together."""
    with pytest.raises(InvalidOptionError) as caught:
        Routes.of(**given)
    assert caught.value.option == option
