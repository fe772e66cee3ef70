"""Secrets do not appear in plans, progress, logs, event logs, checkpoints, local files or errors."""

from __future__ import annotations

import base64
import json
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fixtures.jwt import Account, Operator, User
from fixtures.spark import Driver, need_java

import jetstream_sync
from jetstream_sync.server import NatsServer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

#: Part of every password and token here and of nothing else, so it is found in any output.
CANARY = f"canary{secrets.token_hex(8)}"
RIGHT, WRONG = f"{CANARY}right", f"{CANARY}wrong"
USER, STRANGER = User(), User()


@dataclass(frozen=True)
class Way:
    """A way to log in, once with the right secret and once with a wrong one."""

    right: dict[str, str]
    wrong: dict[str, str]
    #: Whether the server refuses the wrong secret, instead of this package.
    refused: bool = True


@pytest.fixture
def words_server() -> Iterator[NatsServer]:
    """Yield a server with a user that has a password, and one that has an NKey."""
    users = f"users: [{{user: u, password: {RIGHT}}}, {{nkey: {USER.public}}}]"
    with NatsServer(name="words", config=f"authorization {{ {users} }}") as server:
        prepare(server, user="u", password=RIGHT)
        yield server


@pytest.fixture
def token_server() -> Iterator[NatsServer]:
    """Yield a server that requires a token."""
    with NatsServer(name="token", config=f"authorization {{ token: {RIGHT} }}") as server:
        prepare(server, token=RIGHT)
        yield server


@pytest.fixture
def creds_server(operator: Operator, tmp_path: Path) -> Iterator[NatsServer]:
    """Yield a server in operator mode."""
    with NatsServer(name="creds", config=operator.config()) as server:
        prepare(server, user_credentials=operator.creds(tmp_path))
        yield server


def prepare(server: NatsServer, **login: object) -> None:
    """Create a stream with messages, and one to write to."""
    with jetstream_sync.connect(server.url, **login) as nc:
        js = nc.jetstream()
        js.create_stream(name="S", subjects=["s.>"], storage="memory", allow_direct=True)
        js.create_stream(name="T", subjects=["t.>"], storage="memory", duplicate_window=3600)
        for number in range(3):
            js.publish(f"s.{number}", b"data")


def file(folder: Path, content: str) -> str:
    path = folder / f"file-{len(list(folder.iterdir()))}"
    path.write_text(content + "\n")
    return str(path)


def ways(
    given: Path, words: NatsServer, token: NatsServer, creds: NatsServer, operator: Operator
) -> dict[str, Way]:
    """Return all ways to give a secret; the driver has variables named ``SECRET_x`` with the secrets."""

    def both(server: NatsServer, option: str, right: str, wrong: str, **more: str) -> Way:
        common = {"servers": server.url, **more}
        return Way({**common, option: right}, {**common, option: wrong})

    user = User()
    good_creds = user.creds(operator.account.user(user))
    bad_creds = STRANGER.creds(Account().user(STRANGER))
    bare = words.url.removeprefix("nats://")
    bare_token = token.url.removeprefix("nats://")
    return {
        "password": both(words, "password", RIGHT, WRONG, user="u"),
        "passwordEnv": both(words, "passwordEnv", "SECRET_RIGHT", "SECRET_WRONG", user="u"),
        "passwordFile": both(
            words, "passwordFile", file(given, RIGHT), file(given, WRONG), user="u"
        ),
        "url": Way(
            {"servers": f"nats://u:{RIGHT}@{bare}"}, {"servers": f"nats://u:{WRONG}@{bare}"}
        ),
        "url with a token": Way(
            {"servers": f"{RIGHT}@{bare_token}"}, {"servers": f"nats://{WRONG}@{bare_token}"}
        ),
        "token": both(token, "token", RIGHT, WRONG),
        "tokenEnv": both(token, "tokenEnv", "SECRET_RIGHT", "SECRET_WRONG"),
        "tokenFile": both(token, "tokenFile", file(given, RIGHT), file(given, WRONG)),
        "nkeySeed": both(words, "nkeySeed", USER.seed, STRANGER.seed),
        "nkeySeedFile": both(
            words, "nkeySeedFile", file(given, USER.seed), file(given, STRANGER.seed)
        ),
        "creds": both(creds, "creds", good_creds, bad_creds),
        "credsFile": both(creds, "credsFile", file(given, good_creds), file(given, bad_creds)),
        # Malformed secrets, which are refused before anything is sent.
        "nkeySeed of words": both(words, "nkeySeed", USER.seed, WRONG),
        "creds of words": both(creds, "creds", good_creds, f"{WRONG}\n{WRONG}"),
        "misspelled": both(words, "password", RIGHT, WRONG, user="u"),
    }


#: The ways that are also tried in streaming queries and in functions on executors.
MORE = ("password", "url", "creds")
#: The ways that are tried in a session without redaction, with the option names that Spark redacts.
SAFE = {"password": "password", "nkeySeed": "nkeySeedSecret", "creds": "credsSecret"}

PROGRAM = """
import json, os, time, traceback
home = SparkHome(home.folder / "files", "info")
spark = session(home, **{
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.app.name": "control-in-names",
})
from jetstream_sync.spark import publish_partition
every = json.loads(Path(os.environ["WAYS"]).read_text())

def read(options):
    return spark.read.format("jetstream").options(stream="S", **options).load()

def write(options):
    return (spark.createDataFrame([("x",)], ["data"]).write.format("jetstream")
            .options(stream="T", subject="t.batch", jobId="job", **options).mode("append").save())

def stream(options, name):
    query = (spark.readStream.format("jetstream")
             .options(stream="S", startingOffsets="earliest", **options).load()
             .select("data").writeStream.format("jetstream")
             .options(stream="T", subject="t.stream", **options)
             .option("checkpointLocation", str(home.folder.parent / "checkpoints" / name))
             .trigger(availableNow=True).start())
    try:
        query.awaitTermination()
    finally:
        print(query.id, query.status, query.recentProgress, query.exception())
        query.explain(True)

def in_executors(options):
    wanted = dict(options, stream="T", subject="t.partition")
    def publish(rows):
        publish_partition([row.data for row in rows], wanted)
    spark.createDataFrame([(b"x",)], ["data"]).foreachPartition(publish)

def failing(what, *args):
    try:
        what(*args)
    except Exception as error:
        print("FAILED", what.__name__, type(error).__name__, repr(error))
        traceback.print_exc()
        for part in ("getMessageParameters", "getQueryContext", "desc", "stackTrace", "getCondition"):
            try:
                value = getattr(error, part)
                print(part, value() if callable(value) else value)
            except Exception as other:
                print(other)
    else:
        print("WENT WELL", what.__name__)

for name, (right, wrong) in every.items():
    print("WAY", name)
    frame = read(right)
    assert frame.count() == 3, name
    for mode in ("simple", "extended", "codegen", "cost", "formatted"):
        frame.explain(mode=mode)
    print(frame, frame._jdf.queryExecution().toString(), frame._jdf.logicalPlan().toJSON())
    frame.createOrReplaceTempView("messages")
    spark.sql("EXPLAIN EXTENDED SELECT * FROM messages").show(truncate=False)
    write(right)
    failing(lambda: read(wrong).count())
    failing(write, wrong)
    if name in os.environ["MORE"].split():
        stream(right, name)
        in_executors(right)
        failing(stream, wrong, name + "-wrong")
        failing(in_executors, wrong)
spark.conf.unset("spark.sql.redaction.options.regex")
assert "creds" not in spark.conf.get("spark.sql.redaction.options.regex")
for name, safe in json.loads(os.environ["SAFE"]).items():
    right = every[name][0]
    right[safe] = right.pop(name)
    read(right).createOrReplaceTempView("messages")
    assert spark.sql("SELECT * FROM messages").count() == 3
print("DONE", flush=True)
time.sleep(600)
"""


@pytest.mark.full
def test_secrets_show_nowhere(words_server, token_server, creds_server, operator, tmp_path):
    """Nothing that can be read later contains a secret, for each way to give it and also if the login fails."""
    need_java()
    given, work = tmp_path / "given", tmp_path / "work"
    given.mkdir()
    work.mkdir()
    every = ways(given, words_server, token_server, creds_server, operator)
    # The error names a misspelled option, but does not show its value.
    every["misspelled"].wrong["passwrd"] = every["misspelled"].wrong.pop("password")
    (given / "ways").write_text(
        json.dumps({name: (way.right, way.wrong) for name, way in every.items()})
    )
    variables = {
        "WAYS": str(given / "ways"),
        "MORE": " ".join(MORE),
        "SAFE": json.dumps(SAFE),
        "SECRET_RIGHT": RIGHT,
        "SECRET_WRONG": WRONG,
    }
    program = 'Path(home.folder / "files").mkdir()\n' + PROGRAM
    with Driver(program, work, variables=variables) as driver:
        driver.wait_for("DONE", 330)
        said = driver.output
        # Every login that should fail has failed.
        assert len(re.findall("^FAILED ", said, re.MULTILINE)) == 2 * len(every) + 2 * len(MORE)
        assert "WENT WELL" not in said
        assert "AuthorizationError" in said
        found = list(leaks(work, forms_of_secrets(given)))
        assert not found, "\n".join(found)
        # The search works: it finds known texts in the output, the log and the event log.
        control = {name.split(":")[0] for name in leaks(work, [b"control-in-names"])}
        assert any("/events/" in name for name in control), control
        assert any(name.endswith("spark.log") for name in control), control
        assert any("checkpoints" in name for name in map(str, work.rglob("offsets/0")))


def forms_of_secrets(given: Path) -> list[bytes]:
    """Return the texts that must not appear; for keys and JWTs a part is already a leak."""
    texts = [CANARY, CANARY.upper(), USER.seed[4:24], STRANGER.seed[4:24]]
    for path in given.glob("file-*"):
        for line in path.read_text().splitlines():
            if len(line) > 40 and "-----" not in line and "***" not in line and " " not in line:
                texts += [line[4:24], line[-40:]]
    forms = [text.encode() for text in texts]
    forms += [base64.b64encode(CANARY.encode())[:-4], CANARY.encode().hex().encode()]
    return forms


def leaks(folder: Path, forms: list[bytes]) -> Iterator[str]:
    """Yield each file that contains one of the texts, with the text around it."""
    for path in sorted(folder.rglob("*")):
        # The program contains the names of the variables and files with the secrets.
        if not path.is_file() or path.name.startswith("driver-"):
            continue
        content = path.read_bytes()
        for form in forms:
            at = content.find(form)
            if at >= 0:
                yield f"{path.relative_to(folder)}: ...{content[max(0, at - 200) : at + 100]!r}"
