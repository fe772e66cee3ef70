"""The text, the remedy and the exit status of errors."""

from __future__ import annotations

import click
import pytest

from jetstream_sync import errors
from jetstream_sync.cli.shared.status import (
    CommandError,
    document_of,
    exit_status,
    hint_of,
    one_line,
)
from jetstream_sync.exit_status import ExitStatus

OUTAGE = "see 'jsm stream ls' and 'jsm server report health'"


@pytest.mark.parametrize(
    ("error", "text", "hint"),
    [
        (
            errors.APIError(503, 10008, "JetStream system temporarily unavailable"),
            "JetStream has no meta leader, so this request changed nothing",
            "see 'jsm server report health'",
        ),
        (
            errors.APIError(500, 10118, "stream is offline"),
            "the stream is unreachable: its servers are offline",
            OUTAGE,
        ),
        (
            errors.APIError(500, 10119, "consumer is offline"),
            "the consumer is unreachable: its servers are offline",
            OUTAGE,
        ),
        (
            errors.NoStreamResponseError("orders.new"),
            "no stream stores 'orders.new': no response; does a stream with this subject exist?",
            OUTAGE,
        ),
        (
            errors.RequestTimeoutError("$JS.API.STREAM.INFO.ORDERS"),
            "stream ORDERS is unreachable: its servers do not answer",
            OUTAGE,
        ),
        (
            errors.RequestTimeoutError("$JS.API.CONSUMER.DELETE.ORDERS.NEW"),
            "the servers did not confirm in time; consumer ORDERS > NEW may have been deleted",
            OUTAGE,
        ),
        (
            errors.APIError(400, 10052, "invalid subject"),
            "invalid subject (code 400, err_code 10052)",
            "see 'jsm errors lookup 10052'",
        ),
        (CommandError("no\nmessage.", hint="wait"), "no message", "wait"),
        (
            click.NoSuchOption("--nope", possibilities=["--node"]),
            "No such option '--nope'; did you mean '--node'?",
            "",
        ),
        (click.NoSuchOption("-x"), "No such option '-x'", ""),
        (
            click.BadParameter("invalid size 'x'", param=click.Option(["-s", "--size"])),
            "'-s' / '--size': invalid size 'x'",
            "",
        ),
        (
            click.BadParameter("name 'a.b' is invalid", param=click.Argument(["name"])),
            "name 'a.b' is invalid",
            "",
        ),
        (
            click.BadParameter("0 is not in the range", param_hint="'--limit'"),
            "Invalid value for '--limit': 0 is not in the range",
            "",
        ),
    ],
)
def test_an_error_has_one_line_and_a_remedy(error, text, hint):
    """An outage says what is unreachable, and where it is shown; an error of click says its parameter."""
    assert (one_line(error), hint_of(error)) == (text, hint)


def test_the_document_of_a_command_has_the_codes_of_its_cause():
    """The codes of the server are fields, not part of the text."""
    cause = errors.APIError.from_response({"code": 404, "err_code": 10059, "description": "none"})
    error = CommandError("stream A not found", ExitStatus.NOT_FOUND, cause=cause)
    assert document_of(error)["error"] == {
        "exit_status": 3,
        "description": "stream A not found",
        "code": 404,
        "err_code": 10059,
    }
    assert exit_status(error) is ExitStatus.NOT_FOUND
