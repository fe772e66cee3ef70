"""The error classes: documented, with base classes per kind, and picklable."""

from __future__ import annotations

import builtins
import copy
import inspect
import pickle
import re
from pathlib import Path

import pytest

import jetstream_sync
from jetstream_sync import errors

REFERENCE = (Path(__file__).parents[2] / "docs/reference/errors.rst").read_text("utf-8")
CLASSES = [getattr(errors, name) for name in errors.__all__]

# The classes of err_codes, with the code and the err_codes in nats-server's errors.json.
REFUSALS = [
    ("AccountFullError", 400, {10002}),
    ("NoLeaderError", 503, {10008}),
    ("ConsumerNameInUseError", 400, {10013, 10105}),
    ("ConsumerNotFoundError", 404, {10014}),
    ("MaxConsumersError", 400, {10026}),
    ("MessageNotFoundError", 404, {10037}),
    ("JetStreamNotEnabledForAccountError", 503, {10039}),
    ("MessageNotFoundError", 400, {10043}),
    ("ValueTooLargeError", 400, {10054}),
    ("StreamNameInUseError", 400, {10058}),
    ("StreamNotFoundError", 404, {10059}),
    ("WrongStreamError", 400, {10060}),
    ("RestoreFailedError", 500, {10062, 10072}),
    ("SnapshotFailedError", 500, {10064}),
    ("StreamSubjectOverlapError", 400, {10065}),
    ("WrongLastMsgIDError", 400, {10070}),
    ("WrongLastSequenceError", 400, {10071, 10164}),
    ("JetStreamNotEnabledError", 503, {10076}),
    ("ServerFullError", 503, {10023}),
    ("StreamFullError", 503, {10077}),
    ("RestoreNameInUseError", 400, {10130}),
    ("ConsumerExistsError", 400, {10148}),
    ("ConsumerDoesNotExistError", 400, {10149}),
    ("MessageTTLDisabledError", 400, {10166}),
    ("CounterError", 400, {10168, 10169, 10170, 10171, 10172}),
    ("BatchNotEnabledError", 400, {10174, 10205}),
    ("BatchIncompleteError", 400, {10176}),
    ("ScheduleError", 400, {10186, 10187, 10188, 10189, 10190, 10191, 10192, 10203, 10212, 10223}),
    ("BatchTooLargeError", 400, {10199}),
    ("BatchDuplicateError", 400, {10201}),
    ("ConsumerInvalidResetError", 400, {10204}),
    ("TooManyRequestsError", 429, {10167}),
    ("TooManyBatchesError", 429, {10210, 10211}),
]
SERVER_CODES = {
    err_code: (code, name) for name, code, err_codes in REFUSALS for err_code in err_codes
}


def example(cls):
    """Create an error with a distinct value for each field, or with a text."""
    own = inspect.signature(cls.__init__).parameters.values()
    parameters = [item for item in own if item.name != "self" and item.kind == 1]
    if not parameters:
        return cls("what went wrong")
    by_type = {"int": 7, "float": 2.5, "bytes": b"\xff\r\n", "object": 1.5}
    by_type["tuple[str, ...]"] = ()
    by_type["tuple[tuple[str, str], ...]"] = (("nats://a:1", "refused"), ("nats://b:2", "no"))
    return cls(
        *(by_type.get(parameter.annotation, f"the {parameter.name}") for parameter in parameters)
    )


def fields(error):
    return {name: value for name, value in vars(error).items() if not name.startswith("__")}


def drawn():
    """Read the trees of the reference: each class and its base."""
    path = []
    for line in REFERENCE.splitlines():
        if root := re.match(r" {4}(\w*Error)\b", line):
            path = [root[1]]
            yield root[1], None
        elif branch := re.match(r" {4}[ │]*([├└]── )?(?=\w*Error)", line):
            depth = len(branch[0]) // 4 - 1
            classes = re.sub(r"\(also .*?\)", "", line[branch.end() :]).split("  ")[0]
            for name in re.findall(r"\w*Error\b", classes):
                path[depth:] = [name]
                yield name, path[depth - 1]


@pytest.mark.parametrize("cls", CLASSES)
def test_every_error_survives_copies(cls):
    """
    Errors keep class, fields and text when they are copied or pickled.

    Spark and multiprocessing pickle them, and one error that ends several waits is raised as a copy in
    each of them.
    """
    error = example(cls)
    pickled = [pickle.dumps(error, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    for again in (copy.copy(error), copy.deepcopy(error), *map(pickle.loads, pickled)):
        assert type(again) is cls
        assert again is not error
        assert again.args == error.args
        assert fields(again) == fields(error)
        assert str(again) == str(error)


@pytest.mark.parametrize("cls", [cls for cls in CLASSES if cls is not errors.PermissionsError])
def test_every_text_contains_the_fields(cls):
    """The text of an error contains all of its fields; that of a `PermissionsError` is the server's."""
    error = example(cls)
    text = str(error)
    assert text
    for value in fields(error).values():
        for part in value if isinstance(value, tuple) else [value]:
            for word in part if isinstance(part, tuple) else [part]:
                assert str(word) in text


def test_errors_with_optional_fields_have_a_text_without_them():
    """Unknown values are left out of the text."""
    assert str(errors.NoServersError()) == "no servers to connect to"
    assert str(errors.ProtocolError("bad")) == "bad"
    assert str(errors.PullError(412, "")) == "412"


def test_the_tree_in_the_reference_is_the_tree():
    """Every class is in the tree exactly once, below its base class."""
    tree = list(drawn())
    names = [name for name, _ in tree]
    # The second tree begins at APIError, which is in the first one.
    assert names.count("APIError") == 2
    names.remove("APIError")
    assert sorted(names) == sorted(errors.__all__)
    for name, parent in tree:
        if parent is not None:
            assert getattr(errors, name).__mro__[1].__name__ == parent, name
    assert [name for name, parent in tree if parent is None] == ["Error", "APIError"]


def test_the_tree_names_the_built_in_bases():
    """`except ValueError`, `KeyError` and the like work where the tree says so."""
    said = dict(re.findall(r"(\w+) \(also (?:the built-in )?(\w+)\)", REFERENCE))
    assert set(said.values()) == {"ValueError", "TimeoutError", "ConnectionError", "KeyError"}
    for cls in CLASSES:
        also = [base.__name__ for base in cls.__bases__ if not issubclass(base, errors.Error)]
        expected = [said[cls.__name__]] if cls.__name__ in said else []
        assert also == expected or cls is errors.Error, cls
    for name, also in said.items():
        assert issubclass(getattr(errors, name), getattr(builtins, also))


# --- what the server refuses --------------------------------------------------------------------


def test_the_codes_are_nats_servers():
    """Every err_code with a class is one of the server's, and no class has another one."""
    assert set(errors.APIError.by_err_code) == set(SERVER_CODES)
    for err_code, (_, name) in SERVER_CODES.items():
        assert errors.APIError.by_err_code[err_code].__name__ == name


@pytest.mark.parametrize("err_code", SERVER_CODES)
def test_a_known_err_code_has_its_class(err_code):
    """The err_code selects the class, which derives from the one for the server's code."""
    code, name = SERVER_CODES[err_code]
    text = f"{getattr(jetstream_sync, name).description_prefix}text"
    error = errors.APIError.from_response({"code": code, "err_code": err_code, "description": text})
    assert type(error) is getattr(jetstream_sync, name)
    assert (error.code, error.err_code, error.description) == (code, err_code, text)
    # "sequence 7 not found" has the code 400, and is still a missing message.
    assert isinstance(
        error,
        errors.NotFoundError
        if err_code == 10043
        else errors.APIError.by_code.get(code, errors.APIError),
    )


def test_an_error_found_by_the_client_has_the_codes_of_the_server():
    """The codes are those of the class, or of its base."""
    error = errors.BucketNotFoundError.found_here("no such bucket")
    assert error.args == (404, 10059, "no such bucket")
    assert errors.ConsumerGroupNotFoundError.found_here("gone").args == (404, 10037, "gone")


def test_another_meaning_of_a_known_err_code():
    """An err_code with several meanings has its class only with the right description."""
    refusal = {"code": 503, "err_code": 10077, "description": "file system is read-only"}
    assert type(errors.APIError.from_response(refusal)) is errors.ServiceUnavailableError


@pytest.mark.parametrize(
    ("code", "cls"),
    [
        (400, errors.BadRequestError),
        (404, errors.NotFoundError),
        (500, errors.ServerError),
        (503, errors.ServiceUnavailableError),
        (429, errors.APIError),
        (0, errors.APIError),
    ],
)
def test_an_unknown_err_code_has_the_class_of_its_code(code, cls):
    """An unknown err_code still has the class for bad requests, not found, or server errors."""
    error = errors.APIError.from_response({"code": code, "err_code": 19999, "description": "new"})
    assert type(error) is cls
    assert error.err_code == 19999


@pytest.mark.parametrize(
    ("response", "cls", "fields_"),
    [
        ({}, errors.APIError, (0, 0, "")),
        ({"code": 404}, errors.NotFoundError, (404, 0, "")),
        ({"err_code": 10059}, errors.StreamNotFoundError, (0, 10059, "")),
        ({"err_code": 10014, "more": [1]}, errors.ConsumerNotFoundError, (0, 10014, "")),
        ({"code": None, "err_code": None}, errors.APIError, (0, 0, "")),
        ({"code": "x", "err_code": []}, errors.APIError, (0, 0, "")),
    ],
)
def test_missing_fields_of_an_error_are_zero_or_empty(response, cls, fields_):
    """An error object with missing or wrong fields still gives an error."""
    error = errors.APIError.from_response(response)
    assert type(error) is cls
    assert error.args == fields_


def test_a_class_can_be_added_for_an_err_code(monkeypatch):
    """A subclass registers itself, and is used from then on."""
    monkeypatch.setattr(errors.APIError, "by_err_code", dict(errors.APIError.by_err_code))

    class OwnError(errors.BadRequestError, err_codes=(19998,)):
        pass

    assert type(errors.APIError.from_response({"code": 400, "err_code": 19998})) is OwnError


# --- which errors are transient -----------------------------------------------------------------


def refusal(code: int, err_code: int, text: str = "no") -> errors.APIError:
    return errors.APIError.from_response({"code": code, "err_code": err_code, "description": text})


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (errors.RequestTimeoutError("a"), True),
        (errors.ConnectionLostError("gone"), True),
        (errors.StaleConnectionError("silent"), True),
        (errors.ProtocolError("garbage"), True),
        (errors.ConnectionClosedError("closed"), False),
        (errors.ConnectionDrainingError("drains"), False),
        (errors.NoServersError(), True),
        (errors.NoRespondersError("a"), True),
        (errors.NoStreamResponseError("a"), True),
        (errors.LeadershipChangeError(409, "Leadership Change"), True),
        (errors.SnapshotBrokenError("S", 408, "no acks"), True),
        (errors.AuthenticationExpiredError("no"), False),
        (errors.CertificateError("no"), False),
        (errors.ForkedConnectionError("no"), False),
        (errors.InvalidOptionError("a", 1, "no"), False),
        (errors.BatchUncertainError("id", "silence"), False),
        (refusal(503, 10008), True),
        (refusal(500, 10009), True),
        (refusal(503, 10023), True),
        (refusal(503, 10077, "store is closed"), True),
        (refusal(503, 10077, "maximum bytes exceeded"), False),
        (refusal(503, 10076), False),
        (refusal(503, 10039), False),
        (refusal(429, 10167), True),
        (refusal(429, 10210), True),
        (refusal(400, 10071), False),
        (refusal(404, 10059), False),
    ],
    ids=repr,
)
def test_the_errors_that_may_pass_are_transient(error, transient):
    """A lost connection, an election and load pass; a limit, a login and a wrong argument do not."""
    assert error.transient is transient


@pytest.mark.parametrize(("code", "err_code"), [(409, 10158), (503, 10163), (400, 10164)])
def test_a_message_in_process_is_transient(code, err_code):
    """The server decides when the earlier message is stored."""
    assert refusal(code, err_code).in_process
    assert refusal(code, err_code).transient
    assert not refusal(503, 10008).in_process


def test_long_texts_are_cut():
    """The text of an error is bounded; the attribute holds everything."""
    long = "x" * 100_000
    for error in (
        errors.APIError(400, 1, long),
        errors.NoRespondersError(long),
        errors.ServiceError(400, long),
        errors.PullError(409, long),
    ):
        assert len(str(error)) < 3000
        assert long in error.args


def test_a_number_without_a_text_is_left_out():
    """Python converts no int of thousands of digits; the text of an error does not raise."""
    assert str(errors.InvalidOptionError("limit", 10**5000, "rule")) == "limit: rule"


def test_a_recreated_stream_is_described_with_times():
    """The creation times are readable, and exact."""
    error = errors.StreamRecreatedError("S", 1_700_000_000_000_000_001, 1_700_000_000_500_000_000)
    assert "created 2023-11-14T22:13:20.000000001Z, found 2023-11-14T22:13:20.500000000Z" in str(
        error
    )
