"""plain text in handlers and callers ─► [encryption] ─► store, and back

Arguments, cursors, results, messages of progress reports, and messages and tracebacks of errors are encrypted. Stores
and services need the rest: kind, queue, tenant, keys, limits, times, states and error codes.

    plain text ─► codec ─► {"$encrypted": "key id", "data": "base64"} ─► store

The envelope is JSON, as every stored value is, so stores and services without a key handle it like any other value. It
names the key. What it belongs to (tenant, job and field) is not part of it: the codec authenticates it, so that a value
that was moved to another job or another field cannot be decrypted.
"""

import base64
import binascii
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from leaseway.domain.errors import BadCiphertext, BadValue, LeasewayError, UnknownEncryptionKey
from leaseway.domain.ids import SECOND_US, JobId
from leaseway.domain.job import UNNAMED_TENANT, ErrorRecord, Failure, Job, JobFacts, Lease, NewJob
from leaseway.domain.outcome import UNKNOWN_KEY, Done, Failed, Outcome, Snoozed
from leaseway.domain.submission import IMPORT_KINDS
from leaseway.domain.validators import PAYLOAD_BYTES_MAX

SEALED_PREFIX = '{"$encrypted":"'
VERSION = "leaseway encryption 1"
KEY_MISSING_US = 30 * SECOND_US
"""How long a job waits that this worker cannot decrypt. Another worker, or this one after its next start, may have the
key."""


class Codec(Protocol):
    """Every method is called in the event loop, for every job, so it must not wait for anything."""

    def encrypt(self, plain: bytes, bound: bytes) -> tuple[str, bytes]:
        """Encrypt with the newest key. Return the id of the key, 1 to 64 letters, digits, dots, dashes and underscores,
        and the result.

        The result authenticates `bound`: tenant, job and field of the value. The same input may give another result
        each time.
        """
        ...

    def decrypt(self, key: str, sealed: bytes, bound: bytes) -> bytes:
        """Return what `encrypt` was given. `UnknownEncryptionKey`: there is no key with this id. `BadCiphertext`:
        `sealed` was changed, or was not encrypted with the same `bound`."""
        ...

    def fingerprint(self, plain: bytes) -> str:
        """A keyed hash of at most 200 characters, by which a store recognizes an idempotency key that is reused with
        other arguments. It must stay the same while idempotency keys are kept, also if a key is added meanwhile."""
        ...


class Envelope(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    key: str = msgspec.field(name="$encrypted")
    data: str = ""
    any_tenant: bool = False
    """The tenant was unknown when the value was encrypted, because a service assigns it."""


class JobField(NamedTuple):
    """The field of a job that an encrypted value belongs to."""

    tenant: str
    job: JobId
    name: str

    def bound(self, *, any_tenant: bool = False) -> bytes:
        """The bytes that the codec authenticates with the value."""
        return msgspec.json.encode((VERSION, None if any_tenant else self.tenant, self.job, self.name))


_envelopes = msgspec.json.Decoder(Envelope)


def is_encrypted(text: str | None) -> bool:
    return text is not None and text.startswith(SEALED_PREFIX)


def write_envelope(
    key: str, sealed: bytes, field: str, *, any_tenant: bool = False, bytes_max: int = PAYLOAD_BYTES_MAX
) -> str:
    text = msgspec.json.encode(Envelope(key, base64.b64encode(sealed).decode(), any_tenant)).decode()
    if len(text) > bytes_max:
        raise BadValue(
            field, f"is {len(text):,} bytes once it is encrypted; at most {bytes_max:,} are allowed. "
            "Store the data elsewhere and submit its URL"
        )  # fmt: skip
    return text


def read_envelope(text: str, field: str) -> tuple[Envelope, bytes]:
    try:
        envelope = _envelopes.decode(text)
        return envelope, base64.b64decode(envelope.data, validate=True)
    except (msgspec.DecodeError, binascii.Error, ValueError) as error:
        raise BadCiphertext(f"{field}: looks encrypted, but cannot be read: {error}") from error


def describe_encrypted(text: str) -> str:
    """For people who do not have the key: "encrypted (key 2026-05)". Other text is returned unchanged."""
    if not is_encrypted(text):
        return text
    try:
        return f"encrypted (key {_envelopes.decode(text).key})"
    except msgspec.DecodeError:
        return "encrypted (damaged)"


class Encryption:
    """Encrypts and decrypts with a codec. Without one, everything stays as it is, and nothing can be decrypted."""

    def __init__(
        self, codec: Codec | None = None, *, is_service: bool = False, bytes_max: int = PAYLOAD_BYTES_MAX
    ) -> None:
        self._bytes_max = bytes_max
        """The most bytes of an encrypted value; more with a blob store."""
        self._codec = codec
        self.is_on = codec is not None
        self._is_service = is_service
        """The store is a service, which assigns the tenant of a job that names none."""

    def seal(self, text: str, field: JobField, *, any_tenant: bool = False) -> str:
        if self._codec is None:
            return text
        key, sealed = self._codec.encrypt(text.encode(), field.bound(any_tenant=any_tenant))
        return write_envelope(key, sealed, field.name, any_tenant=any_tenant, bytes_max=self._bytes_max)

    def open(self, text: str, field: JobField) -> str:
        """The plain text. Text that is not encrypted is returned unchanged."""
        if not is_encrypted(text):
            return text
        envelope, sealed = read_envelope(text, field.name)
        if self._codec is None:
            raise UnknownEncryptionKey(
                f"the value is encrypted with key {envelope.key!r}, and this process has no keys; give them to the app "
                "(codec=…) or in LEASEWAY_ENCRYPTION_KEYS"
            )
        return self._codec.decrypt(envelope.key, sealed, field.bound(any_tenant=envelope.any_tenant)).decode()

    # -- what goes to the store -------------------------------------------------------------------------------------

    def seal_job(self, new: NewJob) -> NewJob:
        if self._codec is None:
            return new
        fingerprint = new.fingerprint and self._codec.fingerprint(new.fingerprint.encode())
        if new.kind.startswith(IMPORT_KINDS):
            # They carry the names of a run and of a shard, which the sink contains as well. `import status` reads them.
            return replace(new, fingerprint=fingerprint)
        any_tenant = self._is_service and new.tenant == UNNAMED_TENANT

        def sealed(field: str, text: str) -> str:
            return self.seal(text, JobField(new.tenant, new.id, field), any_tenant=any_tenant)

        cursor = None if new.cursor is None else sealed("cursor", new.cursor)
        return replace(new, payload=sealed("payload", new.payload), cursor=cursor, fingerprint=fingerprint)

    def seal_outcome(self, lease: Lease, outcome: Outcome) -> Outcome:
        """The outcome of a handler. One that cannot be encrypted is a failure: nothing may be stored in plain text."""
        if self._codec is None:
            return outcome
        try:
            match outcome:
                case Done(result):
                    return replace(outcome, result=self.seal(result, JobField(lease.tenant, lease.id, "result")))
                case Failed(failure):
                    return replace(outcome, failure=self._seal_failure(lease, failure))
        except BadValue as error:  # too large
            return Failed(Failure("bad_result", str(error)), may_retry=False)
        except Exception as error:  # noqa: BLE001 - a codec is the user's code
            return Failed(Failure("encryption_failed", f"the codec raised {type(error).__name__}"))
        return outcome

    def _seal_failure(self, lease: Lease, failure: Failure) -> Failure:
        message = self.seal(failure.message, JobField(lease.tenant, lease.id, "message"))
        traceback = failure.traceback and self.seal(failure.traceback, JobField(lease.tenant, lease.id, "traceback"))
        return Failure(failure.code, message, traceback)

    def seal_cursor(self, lease: Lease, text: str) -> str:
        return self.seal(text, JobField(lease.tenant, lease.id, "cursor"))

    def seal_progress(self, lease: Lease, text: str) -> str:
        """Only the message is encrypted, so that screens without a key show how far a job is."""
        if self._codec is None:
            return text
        told = msgspec.json.decode(text)
        if told.get("message") is None:
            return text
        try:
            sealed = self.seal(told["message"], JobField(lease.tenant, lease.id, "progress"))
        except Exception:  # noqa: BLE001 - a codec is the user's code, and a report is not worth a failure
            return msgspec.json.encode({**told, "message": None}).decode()
        return msgspec.json.encode({**told, "message": describe_encrypted(sealed), "sealed": sealed}).decode()

    # -- what comes from the store ----------------------------------------------------------------------------------

    def open_lease(self, lease: Lease) -> Lease | Outcome:
        """The lease in plain text, or the outcome of a job that cannot be decrypted here.

        A missing key does not use an attempt, because the key may be given later. A changed value fails for good: the
        job becomes a dead letter. Both errors are for people without a key, so they are not encrypted.
        """
        if not is_encrypted(lease.payload) and not is_encrypted(lease.cursor):
            return lease
        try:
            payload = self.open(lease.payload, JobField(lease.tenant, lease.id, "payload"))
            cursor = (
                None if lease.cursor is None else self.open(lease.cursor, JobField(lease.tenant, lease.id, "cursor"))
            )
        except UnknownEncryptionKey as error:
            return Snoozed(None, KEY_MISSING_US, Failure(UNKNOWN_KEY, str(error)))
        except BadCiphertext as error:
            return Failed(Failure("bad_ciphertext", str(error)), may_retry=False)
        except Exception as error:  # noqa: BLE001 - a codec is the user's code
            return Failed(Failure("decryption_failed", f"the codec raised {type(error).__name__}"))
        return replace(lease, payload=payload, cursor=cursor)

    def open_payload(self, new: NewJob) -> str:
        """The arguments of a job that a client has encrypted. They stay encrypted if the key is missing."""
        try:
            return self.open(new.payload, JobField(new.tenant, new.id, "payload"))
        except UnknownEncryptionKey:
            return new.payload
        except BadCiphertext as error:
            raise BadValue("payload", str(error)) from error

    def open_job(self, job: Job) -> Job:
        """The record in plain text. Values that cannot be decrypted stay encrypted."""
        if self._codec is None:
            return job
        texts = {field: getattr(job, field) for field in ("payload", "cursor", "result")}
        opened = {field: self._try_open(text, JobField(job.tenant, job.id, field)) for field, text in texts.items()}
        return replace(job, **opened, progress=self._open_progress(job))

    def open_errors(self, job: JobFacts, errors: Sequence[ErrorRecord]) -> list[ErrorRecord]:
        return [
            replace(
                error,
                message=self._try_open(error.message, JobField(job.tenant, job.id, "message")),
                traceback=self._try_open(error.traceback, JobField(job.tenant, job.id, "traceback")),
            )
            for error in errors
        ]

    def _open_progress(self, job: Job) -> str | None:
        try:
            told = msgspec.json.decode(job.progress or "null")
            message = self.open(told.pop("sealed"), JobField(job.tenant, job.id, "progress"))
        except (LeasewayError, msgspec.DecodeError, AttributeError, KeyError, TypeError):
            return job.progress
        return msgspec.json.encode({**told, "message": message}).decode()

    def _try_open(self, text: str | None, field: JobField) -> str | None:
        try:
            return text if text is None else self.open(text, field)
        except LeasewayError:
            return text


NO_KEYS = Encryption()
