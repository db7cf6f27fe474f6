"""Encryption keeps what jobs carry from everyone who can read the store or the service: operators of the database,
backups, dashboards. One value in plain text defeats it, and a value that cannot be decrypted must not lose a job.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.imports.apps import import_app
from tests.postgres_tables import empty_schema

from leaseway import AesGcm, App, BadCiphertext, BadValue, Fail, KeyConflict, UnknownEncryptionKey, UsageError
from leaseway.domain.encryption import Encryption, JobField, describe_encrypted, is_encrypted
from leaseway.domain.explain.reasons import explain
from leaseway.domain.ids import JobId
from leaseway.domain.inspection import JobFilter
from leaseway.domain.job import Job, NewJob, State
from leaseway.imports.domain.run_state import RunState
from leaseway.imports.run.assembly import load_import
from leaseway.imports.run.finish_run import finish_run
from leaseway.imports.run.plan import plan_with_history
from leaseway.imports.run.start import start_planned
from leaseway.system import wall_clock_us

OLD, NEW, OTHER = (AesGcm.new_key() for _ in range(3))
PLAIN = "the patient's name"
"""Must not be found in any store."""


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        server = request.getfixturevalue("server")
        await empty_schema(server.url, "encryption")
        return f"{server.url}?schema=encryption"
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/work.db"


@pytest.fixture
async def app(url: str) -> AsyncIterator[App]:
    async with App(url, codec=AesGcm({"new": NEW, "old": OLD})) as app:
        yield app


async def raw_texts(app: App, job: JobId) -> str:
    """Everything that the store has of a job."""
    store = await app.store()
    return f"{await store.reads.job(job)} {await store.reads.errors(job)}"


async def raw_job(app: App, job: JobId) -> Job:
    found = await (await app.store()).reads.job(job)
    assert found is not None
    return found


def new_app(app: App, codec: AesGcm | None) -> App:
    """Another process with the same store and other keys."""
    app._codec = codec
    app._world = app._world._replace(encryption=Encryption(codec))
    return app


async def test_the_store_never_sees_plain_text(app: App) -> None:
    """Arguments, cursor, progress, result and errors can all contain what the job is about."""

    @app.job(attempts=2, backoff=0)
    async def treat(ctx: Any, name: str) -> str:
        assert name == PLAIN
        assert ctx.cursor == (PLAIN if ctx.attempt == 1 else [PLAIN, 2])
        await ctx.checkpoint([PLAIN, 2])
        ctx.progress(1, 2, f"treating {name}")
        if ctx.attempt == 1:
            raise ValueError(f"{name} is not in")
        return f"{name} is well"

    job = await treat.options(cursor=PLAIN, key="once").submit(name=PLAIN)
    await app.run_worker(until_empty=True)
    stored = await raw_texts(app, job.id)
    assert "patient" not in stored
    found = await app.find(job)
    assert found is not None
    assert found.state is State.DONE
    assert [found.payload, found.cursor, found.result, found.progress] == [
        {"name": PLAIN}, [PLAIN, 2], f"{PLAIN} is well", {"done": 1, "total": 2, "message": f"treating {PLAIN}"},
    ]  # fmt: skip
    (error,) = app.world.encryption.open_errors(found, await (await app.store()).reads.errors(job.id))
    assert (error.code, error.message) == ("ValueError", f"{PLAIN} is not in")
    assert "Traceback" in error.traceback


async def test_files_and_backups_contain_no_plain_text(tmp_path: Path) -> None:
    """Pages of a database file keep deleted values for a long time."""
    async with App(f"sqlite:///{tmp_path}/work.db", codec=AesGcm({"k": NEW})) as app:

        @app.job(attempts=1)
        async def treat(ctx: Any, name: str) -> None:
            await ctx.checkpoint(name)
            raise Fail(name)

        await treat.submit(name=PLAIN)
        await app.run_worker(until_empty=True)
        assert b"patient" not in contents(tmp_path)


def contents(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


async def test_progress_without_a_key_still_has_its_numbers(app: App) -> None:
    """A dashboard without keys must show how far a job is."""

    @app.job
    async def count(ctx: Any) -> None:
        ctx.progress(3, 4, PLAIN)

    job = await count.submit()
    await app.run_worker(until_empty=True)
    told = json.loads((await raw_job(app, job.id)).progress or "")
    assert (told["done"], told["total"], told["message"]) == (3, 4, "encrypted (key new)")


async def test_every_way_of_submitting_encrypts(app: App) -> None:
    """One path that was forgotten would store plain text without an error."""

    @app.job
    async def child(name: str) -> None: ...

    @app.job
    async def parent(ctx: Any, name: str) -> str:
        return str(ctx.submit(child.bind(name=PLAIN)))

    @app.cron("* * * * *", missed="all")
    @app.job
    async def scheduled(name: str = PLAIN, fire_time: str = "") -> None: ...

    one = await parent.submit(name=PLAIN)
    many = await app.submit_many([parent.bind(name=PLAIN), child.bind(name=PLAIN)])
    await app.run_worker(until_empty=True)
    for job in (one, *many):
        assert "patient" not in await raw_texts(app, job.id)
    children = (await app.wait(one)).result
    assert is_encrypted((await raw_job(app, JobId(children))).payload)
    assert (await app.wait(children)).state is State.DONE


def test_submission_without_an_event_loop_encrypts(tmp_path: Path) -> None:
    """It has a path of its own to the store."""
    app = App(f"sqlite:///{tmp_path}/work.db", codec=AesGcm({"k": NEW}))

    @app.job
    async def treat(name: str) -> None: ...

    treat.submit_sync(name=PLAIN)
    treat.submit_many_sync([{"name": PLAIN}])
    app.close_sync()
    assert b"patient" not in contents(tmp_path)


MOVES: dict[str, Callable[[NewJob, Job, Job], NewJob]] = {
    "arguments of another job": lambda new, one, two: replace(new, payload=one.payload),
    "another field": lambda new, one, two: replace(new, payload=two.result or ""),
    "a cursor as arguments": lambda new, one, two: replace(new, payload=one.cursor or ""),
    "a changed byte": lambda new, one, two: replace(new, payload=changed(new.payload)),
    "no data": lambda new, one, two: replace(new, payload='{"$encrypted":"new","data":""}'),
    "no base64": lambda new, one, two: replace(new, payload='{"$encrypted":"new","data":"?"}'),
    "another tenant": lambda new, one, two: replace(new, tenant="other"),
    "any tenant": lambda new, one, two: replace(
        new, payload=new.payload.replace("}", ',"any_tenant":true}'), tenant="x"
    ),
    "a cursor of another job": lambda new, one, two: replace(new, cursor=one.cursor),
}


def changed(text: str) -> str:
    data = json.loads(text)["data"]
    return text.replace(data, f"{data[:20]}{'B' if data[20] == 'A' else 'A'}{data[21:]}")


def unbound(text: str) -> str:
    return text.replace("}", ',"any_tenant":true}')


@pytest.mark.parametrize("move", MOVES)
async def test_values_cannot_be_moved_between_jobs(app: App, move: str) -> None:
    """Someone who can write the store must not make a job run with the arguments of another one, although both are
    validly encrypted."""
    ran: list[str] = []

    @app.job
    async def treat(name: str) -> str:
        ran.append(name)
        return name

    store = await app.store()
    one, two = await treat.options(cursor=1).submit(name="one"), await treat.submit(name="two")
    await app.run_worker(until_empty=True)
    new = treat.options(cursor=3).bind(name="three").new(app.world.ids, encryption=app.world.encryption)
    moved = MOVES[move](new, await raw_job(app, one.id), await raw_job(app, two.id))
    await store.jobs.submit([moved])
    await app.run_worker(until_empty=True)
    record = await raw_job(app, new.id)
    assert (record.state, record.last_error_code, record.attempts) == (State.FAILED, "bad_ciphertext", 1)
    assert sorted(ran) == ["one", "two"]
    (error,) = await store.reads.errors(new.id)
    assert "cannot be" in error.message
    assert await store.operations.retry(JobFilter(ids=(new.id,)), 1) == [new.id], "a dead letter can be retried"


async def run_until(app: App, done: Callable[[], Any]) -> None:
    """Run a worker until the condition holds."""
    worker = app.worker()
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(worker.run())
        while not await done():  # noqa: ASYNC110 - the condition is in the store
            await asyncio.sleep(0.02)
        worker.drain()


@pytest.mark.parametrize("codec", [None, AesGcm({"other": OTHER})], ids=["no keys", "other keys"])
async def test_a_job_waits_for_its_key(app: App, codec: AesGcm | None) -> None:
    """During a rotation some workers do not have the newest key yet. Their attempts must not use up those of the job,
    and the error must name the key that is missing."""

    @app.job(attempts=1)
    async def treat(name: str) -> str:
        return name

    job = await treat.submit(name=PLAIN)
    new_app(app, codec)
    store = await app.store()
    await run_until(app, lambda: store.reads.errors(job.id))
    waiting = await raw_job(app, job.id)
    assert (waiting.state, waiting.attempts, waiting.last_error_code) == (State.PENDING, 0, "unknown_key")
    assert waiting.run_at > await store.reads.now() + 10_000_000
    (error,) = await store.reads.errors(job.id)
    assert "key 'new'" in error.message
    assert error.traceback == ""
    reason = explain(waiting, None, await store.reads.now())
    assert (reason.code, reason.until) == ("unknown_key", waiting.run_at)
    record = await app.find(job)
    assert record is not None
    assert record.payload["$encrypted"] == "new"


async def test_rotation(app: App) -> None:
    """Jobs that were encrypted with the old key must run while the new one is in use."""

    @app.job
    async def treat(name: str) -> str:
        return name

    new_app(app, AesGcm({"old": OLD}))
    first = await treat.submit(name=PLAIN)
    new_app(app, AesGcm({"new": NEW, "old": OLD}))
    second = await treat.submit(name=PLAIN)
    await app.run_worker(until_empty=True)
    stored = [await raw_job(app, job.id) for job in (first, second)]
    assert [describe_encrypted(job.payload) for job in stored] == ["encrypted (key old)", "encrypted (key new)"]
    assert {describe_encrypted(job.result or "") for job in stored} == {"encrypted (key new)"}
    assert [(await app.wait(job)).result for job in (first, second)] == [PLAIN] * 2


async def test_idempotency_keys_work_with_encryption(app: App) -> None:
    """The same arguments give another ciphertext each time, and a plain hash of them could be guessed."""

    @app.job
    async def treat(name: str) -> None: ...

    new_app(app, AesGcm({"old": OLD}))
    first = await treat.options(key="once").submit(name=PLAIN)
    assert (await treat.options(key="once").submit(name=PLAIN)).id == first.id
    with pytest.raises(KeyConflict):
        await treat.options(key="once").submit(name="another")
    new_app(app, AesGcm({"new": NEW, "old": OLD}))
    again = await treat.options(key="once").submit(name=PLAIN)
    assert (again.id, again.replayed) == (first.id, True), "a new key must not make it a conflict"
    new_app(app, AesGcm({"new": NEW}, fingerprint_key=OLD))
    assert (await treat.options(key="once").submit(name=PLAIN)).replayed
    bound = treat.options(key="k").bind(name=PLAIN)
    sealed = bound.new(app.world.ids, encryption=app.world.encryption)
    assert sealed.fingerprint not in ("", treat.kind.fingerprint(bound.payload))


async def test_values_that_are_too_large_once_encrypted(app: App) -> None:
    """The store's bound holds for what is stored. A result that exceeds it must not be lost in an endless retry."""

    @app.job(attempts=3)
    async def grow(size: int, text: str = "") -> str:
        return "x" * size

    with pytest.raises(BadValue, match=r"payload: is 2[\d,]+ bytes once it is encrypted"):
        await grow.submit(size=1, text="x" * 220_000)
    job = await grow.submit(size=220_000)
    await app.run_worker(until_empty=True)
    record = await raw_job(app, job.id)
    assert (record.state, record.last_error_code, record.attempts) == (State.FAILED, "bad_result", 1)


class Broken(AesGcm):
    """A codec of a user, whose service is down."""

    def encrypt(self, plain: bytes, bound: bytes) -> tuple[str, bytes]:
        raise OSError(f"no connection, {PLAIN}")

    def decrypt(self, key: str, sealed: bytes, bound: bytes) -> bytes:
        raise OSError(f"no connection, {PLAIN}")


async def test_a_codec_that_fails_does_not_stop_the_worker(app: App) -> None:
    """Nothing may be stored in plain text instead, and other jobs must run."""

    @app.job(attempts=1)
    async def treat(ctx: Any, name: str) -> str:
        ctx.progress(1, 2, PLAIN)
        return PLAIN

    class Half(Broken):
        decrypt = AesGcm.decrypt

    good = app._codec
    jobs = [await treat.submit(name=PLAIN) for _ in range(2)]
    new_app(app, Half({"new": NEW}))
    await app.run_worker(until_empty=True)
    new_app(app, good)  # type: ignore[arg-type]
    jobs.append(await treat.submit(name=PLAIN))
    new_app(app, Broken({"new": NEW}))
    await app.run_worker(until_empty=True)
    codes = [(await raw_job(app, job.id)).last_error_code for job in jobs]
    assert codes == ["encryption_failed", "encryption_failed", "decryption_failed"]
    for job in jobs:
        assert "patient" not in await raw_texts(app, job.id)


async def test_jobs_from_before_encryption_still_run(app: App) -> None:
    """Encryption is turned on while jobs are waiting."""

    @app.job
    async def treat(name: str) -> str:
        return name

    new_app(app, None)
    job = await treat.submit(name=PLAIN)
    new_app(app, AesGcm({"new": NEW}))
    await app.run_worker(until_empty=True)
    assert (await app.wait(job)).result == PLAIN


SPEC = """
version = 1
[source]
name = "things"
file = "things.jsonl"
[resource]
key = "id"
page = {{ cursor = "none", limit = 100 }}
[sink]
url = "sqlite:///{}/data.db"
table = "things"
"""


async def test_an_import_works_with_encryption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its shard jobs are read by commands that have no keys; their errors and results are encrypted."""
    monkeypatch.setenv("LEASEWAY_ENCRYPTION_KEYS", f"new={NEW}")
    (tmp_path / "things.toml").write_text(SPEC.format(tmp_path))
    (tmp_path / "things.jsonl").write_text('{"id": 1}\n')
    parts = load_import(tmp_path / "things.toml")
    await parts.sink.open()
    app, handle = import_app(parts, f"sqlite:///{tmp_path}/jobs.db")
    async with app:
        await start_planned(parts, handle, "run", await plan_with_history(parts), wall_clock_us())
        await app.run_worker(queues=[parts.queue], until_empty=True)
        assert await finish_run(parts, "run") is RunState.COMPLETE
        (job,) = await (await app.store()).reads.jobs(JobFilter())
        assert (json.loads(job.payload)["run"], describe_encrypted(job.result or "")) == ("run", "encrypted (key new)")
    await parts.sink.close()


# -- keys -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({}, "keys: must contain at least one key"),
        ({"a b": NEW}, "keys: an id has 1 to 64 letters"),
        ({"k": "not base64!"}, r"keys\.k: must be 32 bytes, as base64"),
        ({"k": b"short"}, r"keys\.k: must have 32 bytes \(has 5\)"),
    ],
)
def test_wrong_keys_are_refused_at_once(keys: dict[str, Any], problem: str) -> None:
    """Otherwise the first job would fail, or be encrypted with a key that is not the intended one."""
    with pytest.raises(BadValue, match=problem) as caught:
        AesGcm(keys)
    assert "short" not in str(caught.value)


def test_keys_of_the_environment() -> None:
    """Services and commands that have no app get their keys there."""
    assert AesGcm.from_environment({}) is None
    codec = AesGcm.from_environment({"LEASEWAY_ENCRYPTION_KEYS": f" new={NEW}, old={OLD}"})
    assert repr(codec) == "AesGcm(new, old)"
    with pytest.raises(UsageError, match=r"LEASEWAY_ENCRYPTION_KEYS: keys\.k: must have 32 bytes") as caught:
        AesGcm.from_environment({"LEASEWAY_ENCRYPTION_KEYS": "k=c2hvcnQ="})
    assert "c2hvcnQ" not in str(caught.value)


def test_the_same_value_is_never_encrypted_alike() -> None:
    """Equal ciphertexts would show which jobs have equal arguments."""
    codec, bound = AesGcm({"k": NEW}), b"bound"
    sealed = {codec.encrypt(b"same", bound)[1] for _ in range(100)}
    assert len(sealed) == 100
    assert {codec.decrypt("k", each, bound) for each in sealed} == {b"same"}


def test_what_the_key_opens() -> None:
    """Each refusal has an error of its own, because only a missing key can be waited for."""
    codec, bound = AesGcm({"k": NEW}), b"bound"
    key, sealed = codec.encrypt(b"text", bound)
    for wrong in (sealed[:-1], sealed[:5], b"", bytes([sealed[0] ^ 1]) + sealed[1:]):
        with pytest.raises(BadCiphertext):
            codec.decrypt(key, wrong, bound)
    with pytest.raises(BadCiphertext):
        codec.decrypt(key, sealed, b"other")
    with pytest.raises(BadCiphertext, match="another key has the same id"):
        AesGcm({"k": OTHER}).decrypt(key, sealed, bound)
    with pytest.raises(UnknownEncryptionKey, match="key 'k', and the keys of this process are: z"):
        AesGcm({"z": NEW}).decrypt(key, sealed, bound)


def test_an_encrypted_value_belongs_to_one_field() -> None:
    """Fields must not run into each other: tenant "a" and job "bc" is not tenant "ab" and job "c"."""
    fields = [JobField("a", JobId("bc"), "f"), JobField("ab", JobId("c"), "f"), JobField("a", JobId("b"), "cf")]
    assert len({field.bound() for field in fields} | {fields[0].bound(any_tenant=True)}) == 4
