"""Refresh tokens that work once, shared by all workers of a machine, or through the job store."""

import asyncio
import fcntl
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from tests.imports.test_requests_by_spec import ALL, Api, Request, api, source_at
from tests.imports.test_sources_hostile import Reply
from tests.provider_http.fake_admission import Place

from leaseway import App
from leaseway.aes_gcm import AesGcm
from leaseway.aiohttp_transport import AiohttpTransport
from leaseway.domain.errors import UsageError
from leaseway.imports.domain.run_state import RunState
from leaseway.imports.run.assembly import load_import
from leaseway.imports.run.finish_run import finish_run
from leaseway.imports.run.plan import plan_with_history
from leaseway.imports.run.shard_jobs import register_jobs
from leaseway.imports.run.start import start_planned
from leaseway.imports.sources.http_json import JsonSource
from leaseway.imports.sources.port import SourceRefused
from leaseway.imports.spec.reader import BadSpec
from leaseway.system import wall_clock_us
from leaseway.worker.provider_http import Http

WORKERS = 8


@pytest.fixture
async def http() -> AsyncIterator[Http]:
    place = Place(AiohttpTransport(verify=False))
    yield place.http()
    await place.wire.close()


class Provider:
    """Replaces the refresh token with every use, and refuses old ones; a refresh ends the last access token."""

    def __init__(self) -> None:
        self.refreshes = 0
        self.refused = 0

    def __call__(self, request: Request) -> Reply:
        if request.path != "/token":
            is_valid = request.headers["authorization"] == f"Bearer access-{self.refreshes}"
            return Reply([]) if is_valid else Reply("expired", 401)
        form = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
        if form != {"grant_type": "refresh_token", "refresh_token": f"refresh-{self.refreshes}", "client_id": "me"}:
            self.refused += 1
            return Reply({"error": "invalid_grant"}, 400)
        self.refreshes += 1
        access, refresh = f"access-{self.refreshes}", f"refresh-{self.refreshes}"
        return Reply({"access_token": access, "expires_in": 3600, "refresh_token": refresh})


def source(it: Api, file: Path) -> JsonSource:
    auth = f'auth = {{ token_url = "{it.url}/token", client_id = "me", refresh_file = "{file}" }}'
    return source_at(it.url, "", auth)


def token_file(folder: Path, text: str = '{"refresh_token": "refresh-0", "note": "mine"}') -> Path:
    path = folder / "token.json"
    path.write_text(text, "utf-8")
    return path


async def test_workers_that_start_together_refresh_once(tmp_path: Path, http: Http) -> None:
    """The second worker would use a refresh token that the first one has replaced, and the import would be refused."""
    provider, file = Provider(), token_file(tmp_path)
    async with api(provider) as it:
        workers = [source(it, file) for _ in range(WORKERS)]
        await asyncio.gather(*(worker.fetch(ALL, None, 10, http) for worker in workers))
        assert (provider.refreshes, provider.refused) == (1, 0)
        await workers[0].fetch(ALL, None, 10, http)
        assert provider.refreshes == 1
    kept = json.loads(file.read_text("utf-8"))
    assert (kept["refresh_token"], kept["note"]) == ("refresh-1", "mine")
    assert file.stat().st_mode & 0o077 == 0


async def test_a_revoked_token_is_replaced_once_for_all(tmp_path: Path, http: Http) -> None:
    """All workers learn of a revoked token at the same time, and each would refresh away the token of another."""
    provider, file = Provider(), token_file(tmp_path)
    async with api(provider) as it:
        workers = [source(it, file) for _ in range(WORKERS)]
        await asyncio.gather(*(worker.fetch(ALL, None, 10, http) for worker in workers))
        stored = json.loads(file.read_text("utf-8"))
        provider.refreshes = 5  # the provider has ended the token, and its owner has signed in again
        file.write_text(json.dumps({**stored, "refresh_token": "refresh-5"}), "utf-8")
        await asyncio.gather(*(worker.fetch(ALL, None, 10, http) for worker in workers))
    assert (provider.refreshes, provider.refused) == (6, 0)


async def test_a_worker_waits_while_another_one_refreshes(tmp_path: Path, http: Http) -> None:
    """Until the new token is on the disk, the old one may be worthless."""
    provider, file = Provider(), token_file(tmp_path)
    async with api(provider) as it:
        with (tmp_path / "token.json.lock").open("w") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            fetching = asyncio.ensure_future(source(it, file).fetch(ALL, None, 10, http))
            done, _ = await asyncio.wait({fetching}, timeout=0.3)
            assert not done
            assert it.asked == []
            stored = {"refresh_token": "refresh-1", "access_token": "access-1", "until_us": 2**62}
            file.write_text(json.dumps(stored), "utf-8")
            provider.refreshes = 1
        await fetching
    assert [request.path for request in it.asked] == ["/"]


async def test_a_refresh_token_that_is_refused_stops_the_run(tmp_path: Path, http: Http) -> None:
    """Another try with the same token cannot succeed; some providers block a client that tries."""
    async with api(Provider()) as it:
        with pytest.raises(SourceRefused, match="the refresh token"):
            await source(it, token_file(tmp_path, '{"refresh_token": "stolen"}')).fetch(ALL, None, 10, http)
        assert len(it.asked) == 1


@pytest.mark.parametrize("text", ["", "[]", '{"refresh_token": ""}', '{"access_token": "a"}'])
async def test_a_file_without_a_token_is_named(tmp_path: Path, http: Http, text: str) -> None:
    """The user has to sign in, and must know where the result belongs."""
    async with api(Provider()) as it:
        with pytest.raises(UsageError, match=r"source\.auth\.refresh_file"):
            await source(it, token_file(tmp_path, text)).fetch(ALL, None, 10, http)


# -- in the job store: see tests/stores/test_leased_tokens.py for the token itself ---------------------------------

SHARED = """
version = 1
[source]
name = "things"
base_url = "URL"
auth = { token_url = "URL/token", client_id = "me", refresh_env = "SHOP_REFRESH" }
[resource]
path = "/"
key = "id"
page = { cursor = "none" }
[sink]
url = "sqlite:///FOLDER/data.db"
table = "things"
"""


async def import_shared(
    folder: Path, it: Api, seed: str, planned: Callable[[], object] = lambda: None
) -> tuple[RunState, str]:
    """The state of the run, and why. `planned` is called before its jobs run."""
    path = folder / "spec.toml"
    path.write_text(SHARED.replace("URL", it.url).replace("FOLDER", str(folder)), "utf-8")
    parts = load_import(path, {"SHOP_REFRESH": seed})
    await parts.sink.open()
    async with App(f"sqlite:///{folder}/jobs.db", codec=AesGcm({"k": AesGcm.new_key()})) as app:
        handle = register_jobs(app, parts)
        await start_planned(parts, handle, "run", await plan_with_history(parts), wall_clock_us())
        planned()
        await app.run_worker(queues=[parts.queue], until_empty=True)
        state, row = await finish_run(parts, "run"), await parts.sink.runs.find("run")
    await parts.sink.close()
    assert row is not None
    return state, row.why or ""


async def test_an_import_keeps_its_refresh_token_in_the_job_store(tmp_path: Path) -> None:
    """Nothing but the environment has the token in plain text."""
    async with api(Provider()) as it:
        assert await import_shared(tmp_path, it, "refresh-0") == (RunState.COMPLETE, "")
        assert [request.path for request in it.asked[:2]] == ["/token", "/"]
    for name in ("jobs.db", "data.db"):
        content = (tmp_path / name).read_bytes()
        assert not any(secret in content for secret in (b"refresh-0", b"refresh-1", b"access-1")), name


async def test_a_token_that_is_refused_during_a_run_ends_it_with_the_way_out(tmp_path: Path) -> None:
    """Fifty attempts of every shard would ask a provider that has refused once, and say nothing to the user."""
    provider = Provider()

    def revoke() -> None:
        provider.refreshes = 5

    async with api(provider) as it:
        state, why = await import_shared(tmp_path, it, "refresh-0", revoke)
        assert state is RunState.FAILED
        assert "refuses the refresh token (invalid_grant); sign in again" in why
        assert "SHOP_REFRESH" in why
        assert "refresh-1" not in why
        assert provider.refused == 1


async def test_a_plan_names_a_refused_token(tmp_path: Path) -> None:
    """It costs one request, and no run is left behind."""
    async with api(Provider()) as it:
        with pytest.raises(UsageError, match=r"invalid_grant\); sign in again"):
            await import_shared(tmp_path, it, "stolen")
        assert len(it.asked) == 1


async def test_a_token_of_the_store_is_not_refreshed_where_there_is_no_store(tmp_path: Path, http: Http) -> None:
    """A command without the job store would use the token up, and the fleet could not go on."""
    async with api(Provider()) as it:
        auth = f'auth = {{ token_url = "{it.url}/token", client_id = "me", refresh_env = "SHOP_REFRESH" }}'
        with pytest.raises(UsageError, match="kept in the job store, which is not open here"):
            await source_at(it.url, "", auth, SHOP_REFRESH="refresh-0").fetch(ALL, None, 10, http)
        assert it.asked == []


@pytest.mark.parametrize(
    ("auth", "field"),
    [
        ('refresh_env = "A", header = "X-Key", env = "KEY"', "source.auth.refresh_env"),
        ('refresh_env = "A", refresh_file = "b", token_url = "https://a.example", client_id = "me"', "source.auth"),
    ],
)
def test_a_contradictory_refresh_token_is_named(auth: str, field: str) -> None:
    """Two places for one token would replace each other's."""
    with pytest.raises(BadSpec, match=field):
        source_at("https://a.example", "", f"auth = {{ {auth} }}", A="a", KEY="k")


@pytest.mark.parametrize("value", ["", "two\nlines", "ü"])
def test_a_variable_without_a_token_is_named(value: str) -> None:
    """The first request would fail with a riddle of the provider."""
    auth = 'auth = { token_url = "https://a.example", client_id = "me", refresh_env = "SHOP_REFRESH" }'
    with pytest.raises(UsageError, match=r"source\.auth\.refresh_env: .*SHOP_REFRESH"):
        source_at("https://a.example", "", auth, SHOP_REFRESH=value)
