"""A refresh token that works once, leased in the job store: a whole fleet uses it, and one worker renews it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from itertools import count
from typing import Any
from urllib.parse import parse_qs

import pytest
from tests.imports.test_requests_by_spec import ALL, Api, Request, api, source_at
from tests.imports.test_sources_hostile import Reply
from tests.provider_http.fake_admission import Place

from leaseway.aes_gcm import AesGcm
from leaseway.aiohttp_transport import AiohttpTransport
from leaseway.domain.encryption import NO_KEYS, Encryption
from leaseway.domain.errors import TransientError
from leaseway.domain.inspection import JobFilter
from leaseway.domain.job import State
from leaseway.imports.sources.http_json import JsonSource
from leaseway.imports.sources.leased_token import LEASE_SECONDS, TokenHost
from leaseway.imports.sources.port import SourceBusy, SourceRefused
from leaseway.ports.store import Store
from leaseway.system import SystemClock, SystemIds
from leaseway.testing.clock import FakeClock
from leaseway.worker.provider_http import Http

WORKERS = 6
KEYS = Encryption(AesGcm({"2026": AesGcm.new_key()}))
AUTH = 'auth = {{ token_url = "{url}/token", client_id = "me", refresh_env = "SHOP_REFRESH" }}'


@pytest.fixture
async def http() -> AsyncIterator[Http]:
    place = Place(AiohttpTransport(verify=False))
    yield place.http()
    await place.wire.close()


class Provider:
    """Replaces the refresh token with every use. A refresh ends the last access token."""

    def __init__(self, *, has_grace: bool = False) -> None:
        self.has_grace = has_grace
        """It accepts the last refresh token once more, as many providers do for lost replies."""
        self.refreshes = self.refused = 0
        self.before: Callable[[], object] = lambda: None
        self.after: Callable[[], object] = lambda: None
        self.on_page: Callable[[], object] = lambda: None
        """Called before and after a refresh, and for a page."""

    def __call__(self, request: Request) -> Reply:
        if request.path != "/token":
            self.on_page()
            is_valid = request.headers["authorization"] == f"Bearer access-{self.refreshes}"
            return Reply([]) if is_valid else Reply("expired", 401)
        if self.before():
            return Reply("gone", 503)
        (token,) = parse_qs(request.body.decode())["refresh_token"]
        accepted = {f"refresh-{self.refreshes}", *([f"refresh-{self.refreshes - 1}"] if self.has_grace else [])}
        if token not in accepted:
            self.refused += 1
            return Reply({"error": "invalid_grant"}, 400)
        self.refreshes += 1
        self.after()
        access, refresh = f"access-{self.refreshes}", f"refresh-{self.refreshes}"
        return Reply({"access_token": access, "expires_in": 3600, "refresh_token": refresh})


class Fleet:
    """Workers that share a store. A killed one reaches it no more."""

    def __init__(self, store: Store, it: Api, http: Http, encryption: Encryption = KEYS) -> None:
        self._store, self._it, self._http, self._encryption = store, it, http, encryption
        self.killed: set[str] = set()
        self.overtaken: str | None = None
        """This worker reads the record, and another one refreshes before it claims it."""

    def source(self, name: str = "a", seed: str = "refresh-0") -> JsonSource:
        calls = count()

        async def reach() -> Store:
            if name in self.killed:
                raise TransientError("the worker is dead")
            if name == self.overtaken and next(calls) == 1:
                await self.fetch(self.source("faster"))
            return self._store

        source = source_at(self._it.url, "", AUTH.format(url=self._it.url), SHOP_REFRESH=seed)
        source.share_tokens(TokenHost(reach, self._encryption, SystemIds(), SystemClock()))
        return source

    async def fetch(self, source: JsonSource) -> None:
        await source.fetch(ALL, None, 10, self._http)

    async def fetch_and_die(self, name: str) -> None:
        with pytest.raises((TransientError, SourceBusy, SourceRefused)):
            await self.fetch(self.source(name))

    async def record(self) -> str:
        (job,) = await self._store.reads.jobs(JobFilter(kind="import:token"), limit=10)
        return job.cursor or ""


async def test_workers_that_start_together_refresh_once(store: Store, http: Http) -> None:
    """The second worker would use a refresh token that the first one has replaced, and the import would be refused."""
    provider = Provider()
    async with api(provider) as it:
        fleet = Fleet(store, it, http)
        workers = [fleet.source(str(number)) for number in range(WORKERS)]
        await asyncio.gather(*map(fleet.fetch, workers))
        await fleet.fetch(fleet.source("late"))
    assert (provider.refreshes, provider.refused) == (1, 0)
    (job,) = await store.reads.jobs(JobFilter(kind="import:token"), limit=10)
    assert (job.state, job.attempts, job.lease_owner) == (State.PENDING, 0, None)


async def test_a_worker_that_was_overtaken_does_not_refresh_again(store: Store, http: Http) -> None:
    """It looked before the other one wrote, and claimed after that. A second refresh would end the first token."""
    provider = Provider()
    async with api(provider) as it:
        fleet = Fleet(store, it, http)
        fleet.overtaken = "slow"
        await fleet.fetch(fleet.source("slow"))
    assert [request.path for request in it.asked] == ["/token", "/", "/"]


async def test_a_revoked_access_token_is_replaced_once_for_all(store: Store, http: Http) -> None:
    """All workers learn of it at the same time, and each would refresh away the token of another."""
    provider = Provider()
    async with api(provider) as it:
        fleet = Fleet(store, it, http)
        workers = [fleet.source(str(number)) for number in range(WORKERS)]
        await asyncio.gather(*map(fleet.fetch, workers))
        await fleet.fetch(workers[0])
        provider.refreshes += 1  # somebody else has refreshed, and the provider sends the same new refresh token
        provider.has_grace = True
        await asyncio.gather(*map(fleet.fetch, workers))
    assert (provider.refreshes, provider.refused) == (3, 0)


async def test_the_store_has_no_token_in_plain_text(store: Store, http: Http) -> None:
    """Backups, dashboards and everybody who may read jobs would have the key to the user's account. Commands that
    decrypt the cursors of jobs must not show it either."""
    async with api(Provider()) as it:
        await Fleet(store, it, http).fetch(Fleet(store, it, http).source())
    (job,) = await store.reads.jobs(JobFilter(kind="import:token"), limit=10)
    for text in (str(job), str(KEYS.open_job(job))):
        assert '"$encrypted"' in text
        assert not any(secret in text for secret in ("refresh-0", "refresh-1", "access-1"))


async def test_without_keys_nothing_is_asked_or_stored(store: Store, http: Http) -> None:
    """A token in plain text in the database is worse than an import that does not start."""
    async with api(Provider()) as it:
        fleet = Fleet(store, it, http, NO_KEYS)
        with pytest.raises(SourceRefused, match="set LEASEWAY_ENCRYPTION_KEYS"):
            await fleet.fetch(fleet.source())
        assert it.asked == []
    assert await store.reads.jobs(JobFilter(kind="import:token"), limit=10) == []


# -- crashes -----------------------------------------------------------------------------------------------------------


async def test_a_worker_that_dies_before_the_provider_acts_costs_a_lease(
    store: Store, clock: FakeClock, http: Http
) -> None:
    """It had claimed the token and sent the request, which did not arrive."""
    provider = Provider()
    async with api(provider) as it:
        fleet = Fleet(store, it, http)

        def lose_request() -> bool:
            fleet.killed.add("first")
            return True

        provider.before = lose_request
        with pytest.raises(Exception, match=r"503|dead"):
            await fleet.fetch(fleet.source("first"))
        provider.before = lambda: None
        clock.advance(LEASE_SECONDS + 1)
        await fleet.fetch(fleet.source("second"))
    assert (provider.refreshes, provider.refused) == (1, 0)


@pytest.mark.parametrize("has_grace", [True, False])
async def test_a_worker_that_dies_with_the_new_token(
    store: Store, clock: FakeClock, http: Http, has_grace: bool
) -> None:
    """The new token is lost, and the store has the old one. Providers that accept it once more give another; for the
    others somebody has to sign in, and is told why."""
    provider = Provider(has_grace=has_grace)
    async with api(provider) as it:
        fleet = Fleet(store, it, http)
        provider.after = lambda: fleet.killed.add("first")
        await fleet.fetch_and_die("first")
        clock.advance(LEASE_SECONDS + 1)
        provider.after = lambda: None
        if has_grace:
            await fleet.fetch(fleet.source("second"))
            return
        with pytest.raises(
            SourceRefused, match=r"a worker ended after it had sent the token.*SHOP_REFRESH, and resume"
        ):
            await fleet.fetch(fleet.source("second"))


async def test_a_worker_that_dies_after_the_token_was_stored_costs_nothing(
    store: Store, clock: FakeClock, http: Http
) -> None:
    """The token is in the store before it is used, so the others use it."""
    provider = Provider()
    async with api(provider) as it:
        fleet = Fleet(store, it, http)
        provider.on_page = lambda: fleet.killed.add("first")
        await fleet.fetch(fleet.source("first"))
        await fleet.fetch(fleet.source("second"))
    assert (provider.refreshes, provider.refused) == (1, 0)


async def test_a_late_worker_does_not_overwrite_the_token_of_its_successor(
    store: Store, clock: FakeClock, http: Http
) -> None:
    """It was frozen with an answer in its hands. Its token is older than the one in the store, which all others use."""
    provider, arrived, go_on = Provider(has_grace=True), asyncio.Event(), asyncio.Event()
    async with api(provider) as it:
        fleet = Fleet(store, it, http)
        late = fleet.source("late")
        hold = FrozenHttp(http, arrived, go_on)
        fetching = asyncio.ensure_future(late.fetch(ALL, None, 10, hold))
        await arrived.wait()
        clock.advance(LEASE_SECONDS + 1)
        await fleet.fetch(fleet.source("successor"))
        before = await fleet.record()
        go_on.set()
        with pytest.raises(SourceBusy, match="taken over"):
            await fetching
        assert await fleet.record() == before
        await fleet.fetch(late)
    assert provider.refused == 0


class FrozenHttp(Http):
    """Keeps the answer of the token endpoint back."""

    def __init__(self, http: Http, arrived: asyncio.Event, go_on: asyncio.Event) -> None:
        self._http, self._arrived, self._go_on = http, arrived, go_on

    async def request(self, method: str, url: str, **options: Any) -> Any:
        reply = await self._http.request(method, url, **options)
        if url.endswith("/token"):
            self._arrived.set()
            await self._go_on.wait()
        return reply


# -- refusals ---------------------------------------------------------------------------------------------------------


async def test_a_refused_token_is_sent_once_and_everybody_is_told(store: Store, http: Http) -> None:
    """Some providers block a client that sends a revoked token again and again. The reason says what to do."""
    provider = Provider()
    async with api(provider) as it:
        fleet = Fleet(store, it, http)
        for name in ("first", "second"):
            with pytest.raises(SourceRefused, match=r"invalid_grant\); sign in again, put the new refresh token into"):
                await fleet.fetch(fleet.source(name, "revoked"))
        assert provider.refused == 1
        await fleet.fetch(fleet.source("third", "refresh-0"))  # signed in again
        await fleet.fetch(fleet.source("fourth", "revoked"))  # has not been restarted, and uses what the others use
    assert (provider.refreshes, provider.refused) == (1, 1)


async def test_a_wrong_client_is_not_remembered_as_a_refused_token(store: Store, http: Http) -> None:
    """The secret of the client is corrected in the environment, and the refresh token is still good."""
    provider = Provider()

    def answer(request: Request) -> Reply:
        is_wrong = request.path == "/token" and not hits
        hits.append(request.path)
        return Reply({"error": "invalid_client"}, 401) if is_wrong else provider(request)

    hits: list[str] = []
    async with api(answer) as it:
        fleet = Fleet(store, it, http)
        with pytest.raises(SourceRefused, match="answers 401"):
            await fleet.fetch(fleet.source("first"))
        await fleet.fetch(fleet.source("second"))
    assert json.dumps(hits) == '["/token", "/token", "/"]'


async def test_a_record_that_cannot_be_decrypted_is_named(store: Store, http: Http) -> None:
    """A process with another key would ask with the first refresh token again, which ends the session of all others."""
    async with api(Provider()) as it:
        fleet = Fleet(store, it, http)
        await fleet.fetch(fleet.source())
        other = Fleet(store, it, http, Encryption(AesGcm({"other": AesGcm.new_key()})))
        with pytest.raises(SourceRefused, match="cannot be decrypted: UnknownEncryptionKey; give this process the key"):
            await other.fetch(other.source("b"))
        assert [request.path for request in it.asked] == ["/token", "/"]


async def test_a_cancelled_record_is_used_again(store: Store, http: Http) -> None:
    """An operator who cancels a job that nobody seems to run must not end the imports of a whole fleet."""
    provider = Provider()
    async with api(provider) as it:
        fleet = Fleet(store, it, http)
        await fleet.fetch(fleet.source())
        (job,) = await store.reads.jobs(JobFilter(kind="import:token"), limit=10)
        await store.operations.cancel(job.id)
        provider.refreshes, provider.has_grace = 2, True
        await fleet.fetch(fleet.source("b"))
    assert provider.refreshes == 3
