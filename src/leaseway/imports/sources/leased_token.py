"""A refresh token in the job store: read ─► claim ─► ask the provider ─► write ─► release

Many providers replace a refresh token with every use, so two workers that refresh at the same time lose it. The token
is therefore leased like a job. Its record is the cursor of a job that no worker serves: it is scheduled for the far
future, and a worker that needs a new token claims it. One worker at a time asks the provider, every write carries the
token of its lease, and a worker that is late is refused. The new token is in the store before it is used.

The record is encrypted with the app's codec, for this purpose only: commands that decrypt the cursors of jobs cannot
decrypt it.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from leaseway.domain.encryption import Encryption, JobField
from leaseway.domain.errors import BadCiphertext, TransientError, UnknownEncryptionKey
from leaseway.domain.exchange import Exchange, HeldLease, Wants
from leaseway.domain.ids import ALPHABET, ID_TIME_LENGTH, SECOND_US, Instant, JobId, WorkerId
from leaseway.domain.inspection import JobFilter
from leaseway.domain.job import Lease, NewJob, Settlement, State
from leaseway.imports.sources.port import SourceBusy, SourceRefused
from leaseway.ports.clock import Clock, Ids
from leaseway.ports.store import Store

T = TypeVar("T")

KIND, TENANT = "import:token", "default"
FIELD = "oauth2_token"
LEASE_SECONDS = 15.0
"""A worker that dies while it asks the provider delays the others by this time."""
ATTEMPTS = 1_000
IDLE_US = 100 * 365 * 86_400 * SECOND_US
"""When the job would run if no worker needed a token."""
LOOK_SECONDS, WAIT_SECONDS_MAX = 0.2, 60.0
SEEDS_MAX = 20
KEYS_MISSING = (
    "source.auth.refresh_env: needs encryption, because the token is kept in the job store: set "
    "LEASEWAY_ENCRYPTION_KEYS, or App(codec=…); or use refresh_file on one machine"
)
LOST = "source.auth: another worker has taken over the refresh token"


class TokenHost(NamedTuple):
    """What an app gives to the tokens of its imports."""

    store: Callable[[], Awaitable[Store]]
    encryption: Encryption
    ids: Ids
    clock: Clock


class TokenRecord(Struct, frozen=True, omit_defaults=True):
    seeds: tuple[str, ...]
    """Hashes of the refresh tokens that were given by hand. One that is not among them was signed in later, so it
    replaces the record."""
    refresh: str
    access: str = ""
    until: Instant = 0
    """When the access token has to be replaced."""
    asked: bool = False
    """The provider was asked with this refresh token, and no answer was written."""
    refused: str = ""
    """Why the provider refuses this refresh token. Every worker is told, and none asks again."""


_decode = msgspec.json.Decoder(TokenRecord).decode


class LeasedToken:
    """The record of one refresh token."""

    def __init__(self, host: TokenHost, identity: str, seed: str) -> None:
        """`identity`: imports with the same one share the token. `seed`: the refresh token that was given by hand."""
        digest = hashlib.sha256(identity.encode()).digest()
        self.id = JobId(ALPHABET[0] * ID_TIME_LENGTH + "".join(ALPHABET[byte % 32] for byte in digest[:16]))
        self.queue = f"import-token:{digest.hex()[:16]}"
        self._host, self._identity = host, identity
        self._seed, self._seed_hash = seed, hashlib.sha256(f"{identity}\n{seed}".encode()).hexdigest()[:32]
        self._worker = WorkerId(host.ids.worker())

    async def share(
        self,
        find: Callable[[TokenRecord], T | None],
        refresh: Callable[[TokenRecord], Coroutine[Any, Any, TokenRecord]],
    ) -> T:
        """What `find` finds in the record; if it finds nothing, one worker renews the record with `refresh`."""
        if not self._host.encryption.is_on:
            raise SourceRefused(KEYS_MISSING)
        until = self._host.clock.monotonic() + WAIT_SECONDS_MAX
        while True:  # bounded by the time
            found = find(await self._read())
            if found is None and (lease := await self._claim()) is not None:
                async with self._releasing(lease):
                    found = find(await self._renew(lease, find, refresh))
            if found is not None:
                return found
            if self._host.clock.monotonic() >= until:
                raise SourceBusy("source.auth: another worker holds the refresh token; trying again later")
            await self._host.clock.sleep(LOOK_SECONDS)

    async def _renew(
        self,
        lease: Lease,
        find: Callable[[TokenRecord], T | None],
        refresh: Callable[[TokenRecord], Coroutine[Any, Any, TokenRecord]],
    ) -> TokenRecord:
        record = self._parse(lease.cursor)
        if find(record) is not None:  # another worker was faster
            return record
        await self._write(lease, replace(record, asked=True))
        renewed = await self._while_leased(lease, refresh(record))
        await self._write(lease, renewed)
        return renewed

    # -- the lease ------------------------------------------------------------------------------------------------

    async def _claim(self) -> Lease | None:
        """None: another worker holds it. A worker that was killed holds it until its lease expires."""
        store = await self._host.store()
        which = JobFilter(ids=(self.id,))
        job = await store.reads.job(self.id)
        if job is not None and job.state in (State.FAILED, State.CANCELLED):  # by an operator, or after many crashes
            await store.operations.retry(which, 1)
        await store.operations.run_now(which, 1)
        wants = Wants((self.queue,), 1, self._host.ids.token(), tenant=TENANT)
        return next(iter((await store.jobs.exchange(Exchange(self._worker, (), wants))).leases), None)

    @contextlib.asynccontextmanager
    async def _releasing(self, lease: Lease) -> Any:
        try:
            yield
        finally:
            idle = Settlement(
                id=lease.id, token=lease.token, state=State.PENDING, delay_us=IDLE_US, returns_attempt=True
            )
            with contextlib.suppress(TransientError):  # the lease expires
                await (await self._host.store()).jobs.exchange(Exchange(self._worker, (idle,)))

    async def _while_leased(self, lease: Lease, asking: Coroutine[Any, Any, TokenRecord]) -> TokenRecord:
        """The answer of the provider, which may take longer than a lease: the request may wait for a limit."""
        task, held = asyncio.ensure_future(asking), HeldLease(lease.id, lease.token, lease.lease_us)
        try:
            while not (await asyncio.wait({task}, timeout=LEASE_SECONDS / 3))[0]:
                with contextlib.suppress(TransientError):
                    if (await (await self._host.store()).jobs.renew([held])).lost:
                        raise SourceBusy(LOST)
            return task.result()
        finally:
            task.cancel()

    # -- the record -----------------------------------------------------------------------------------------------

    async def _read(self) -> TokenRecord:
        store = await self._host.store()
        job = await store.reads.job(self.id)
        if job is None:
            await store.jobs.submit([self._new_job()])
        return self._parse(None if job is None else job.cursor)

    def _new_job(self) -> NewJob:
        payload = msgspec.json.encode({"refresh_token_of": self._identity}).decode()
        return NewJob(
            id=self.id, kind=KIND, payload=payload, queue=self.queue, tenant=TENANT, attempts_max=ATTEMPTS,
            lease_us=round(LEASE_SECONDS * SECOND_US), delay_us=IDLE_US,
        )  # fmt: skip

    async def _write(self, lease: Lease, record: TokenRecord) -> None:
        """A worker that has lost its lease must not replace what its successor has written."""
        text = self._host.encryption.seal(msgspec.json.encode(record).decode(), self._field)
        if not await (await self._host.store()).jobs.checkpoint(lease.id, lease.token, text):
            raise SourceBusy(LOST)

    @property
    def _field(self) -> JobField:
        return JobField(TENANT, self.id, FIELD)

    def _parse(self, cursor: str | None) -> TokenRecord:
        record = TokenRecord((), "") if cursor is None else self._open(cursor)
        if self._seed_hash in record.seeds:
            return record
        return TokenRecord((*record.seeds[-SEEDS_MAX:], self._seed_hash), self._seed)

    def _open(self, cursor: str) -> TokenRecord:
        try:
            return _decode(self._host.encryption.open(cursor, self._field))
        except (UnknownEncryptionKey, BadCiphertext, msgspec.DecodeError) as error:
            problem = f"job {self.id} has the refresh token, which cannot be decrypted: {type(error).__name__}"
            raise SourceRefused(
                f"source.auth.refresh_env: {problem}; give this process the key it was encrypted with"
            ) from error
