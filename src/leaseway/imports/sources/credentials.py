"""The secret of a source ─► headers and parameters of its requests.

Secrets come from environment variables or files, and stay in the memory of a process: never in cursors, errors or run
tables.

OAuth2: with client credentials, each process requests a token for itself. A refresh token is different: many providers
replace it with every use, so two processes that refresh at the same time lose it. With `refresh_file`, one process of
a machine at a time holds a lock on the file with the refresh token, which the system releases if the process dies. It
writes the new token to the disk before it is used, and all others read it there. With `refresh_env`, the token is in
the job store, for the workers of all machines: see `leased_token`.
"""

import asyncio
import base64
import binascii
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import msgspec
from msgspec.structs import replace

from leaseway.domain.errors import UsageError
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.redact import Redactor
from leaseway.imports.sources.leased_token import LeasedToken, TokenHost, TokenRecord
from leaseway.imports.sources.port import BadReply, HeavyPage, RequestClient, SourceBusy, SourceRefused
from leaseway.imports.spec.model import AuthSpec, Spec
from leaseway.system import SystemClock, wall_clock_us

SECRET_BYTES_MAX = 65_536
EXPIRES_SECONDS = 300
"""If the token endpoint does not say how long a token is valid."""
EARLY_SECONDS = 30
"""A token is replaced this long before it expires, because a request may wait for a limit."""
EARLY_SHARE = 0.25
"""At most this share of its life: a token of a few seconds would be requested for every page."""
FORM = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
WHERE, REFRESH_ENV = "source.auth.token_url", "source.auth.refresh_env"
LOCK_SECONDS_MAX = 60
LOCK_LOOK_SECONDS = 0.05
FILE_BYTES_MAX = 65_536


class RefusedGrant(SourceRefused):
    """The refresh token was used, revoked, or has expired. Another try cannot succeed."""


class OAuthToken(NamedTuple):
    access: str
    until: Instant
    """When it has to be replaced."""
    refresh: str | None = None
    """The next refresh token, if the provider sends one."""


NO_TOKEN = OAuthToken("", 0)


class Credentials:
    def __init__(self, spec: Spec, environ: Mapping[str, str]) -> None:
        self._auth = spec.source.auth
        self._secret = read_secret(spec, environ)
        self.param = None if self._auth is None else self._auth.param
        self.redactor = Redactor(known_secrets(spec, environ))
        is_oauth = self._auth is not None and self._auth.token_url is not None
        self._tokens = (
            make_tokens(self._auth, self._secret, self.redactor, environ) if self._auth and is_oauth else None
        )
        self._token, self._refused = NO_TOKEN, ""
        self._turn = asyncio.Lock()

    def share_tokens(self, host: TokenHost) -> None:
        """Keep a refresh token of `refresh_env` in the store of this app."""
        if isinstance(self._tokens, SharedTokens):
            self._tokens.share(host)

    def params(self) -> dict[str, Any]:
        return {} if self.param is None else {self.param: self._secret}

    async def headers(self, http: RequestClient) -> dict[str, str]:
        auth = self._auth
        if auth is None or auth.param is not None:
            return {}
        if auth.token_url is not None:
            return {auth.header or "Authorization": f"{auth.scheme or 'Bearer'} {await self._valid_token(http)}"}
        if auth.user is not None:
            return {auth.header or "Authorization": f"Basic {encode_login(auth.user, str(self._secret))}"}
        return {str(auth.header): f"{auth.scheme} {self._secret}" if auth.scheme else str(self._secret)}

    def forget_token(self, sent: Mapping[str, str]) -> bool:
        """After a refusal of these headers: whether others may help. A newer token than the one in them is kept."""
        if self._tokens is None:
            return False
        if self._token.access and any(value.endswith(self._token.access) for value in sent.values()):
            self._refused, self._token = self._token.access, NO_TOKEN
        return True

    async def _valid_token(self, http: RequestClient) -> str:
        """One coroutine at a time requests a token, and the others use it."""
        if self._tokens is None or (self._token.access and wall_clock_us() < self._token.until):
            return self._token.access
        async with self._turn:
            if not self._token.access or wall_clock_us() >= self._token.until:
                self._token = await self._tokens.request(http, self._refused)
                self.redactor.add([self._token.access])
        return self._token.access


def encode_login(user: str, secret: str) -> str:
    return base64.b64encode(f"{user}:{secret}".encode()).decode()


def known_secrets(spec: Spec, environ: Mapping[str, str]) -> list[str]:
    """The secret, and the form in which Basic authentication sends it."""
    secret, auth = read_secret(spec, environ) or "", spec.source.auth
    login = [] if auth is None or auth.user is None else [encode_login(auth.user, secret)]
    seed = [] if auth is None or auth.refresh_env is None else [environ.get(auth.refresh_env, "").strip()]
    return [secret, *login, *seed]


def read_secret(spec: Spec, environ: Mapping[str, str]) -> str | None:
    auth = spec.source.auth
    if auth is None or (auth.env is None and auth.file is None):
        return None
    if auth.file is not None:
        field, name, secret = "source.auth.file", auth.file, read_secret_file(auth.file)
    else:
        field, name, secret = "source.auth.env", str(auth.env), read_variable("source.auth.env", str(auth.env), environ)
    if not secret.isprintable() or not secret.isascii():
        raise UsageError(f"{field}: {name} contains characters that keys cannot contain")
    return secret


def read_variable(field: str, name: str, environ: Mapping[str, str]) -> str:
    secret = environ.get(name, "").strip()
    if not secret:
        raise UsageError(f"{field}: the environment variable {name} is not set; it must contain the key")
    return secret


def read_secret_file(name: str) -> str:
    try:
        secret = Path(name).read_bytes()[:SECRET_BYTES_MAX].decode("ascii").strip()
    except (OSError, binascii.Error, UnicodeDecodeError) as error:
        raise UsageError(f"source.auth.file: {name} cannot be read: {error}") from error
    if not secret:
        raise UsageError(f"source.auth.file: {name} is empty; it must contain the key")
    return secret


# -- OAuth2 -----------------------------------------------------------------------------------------------------------


class ClientTokens:
    """Tokens for client credentials."""

    def __init__(self, auth: AuthSpec, secret: str | None) -> None:
        self._auth, self._secret = auth, secret

    async def request(self, http: RequestClient, refused: str) -> OAuthToken:
        scope = {} if self._auth.scope is None else {"scope": self._auth.scope}
        form = {"grant_type": "client_credentials", **scope, **client_fields(self._auth, self._secret)}
        return await exchange_token(http, self._auth, form)


class RefreshedTokens:
    """Tokens for the refresh token in a file."""

    def __init__(self, auth: AuthSpec, secret: str | None, redactor: Redactor) -> None:
        self._auth, self._secret, self._redactor = auth, secret, redactor
        self._path = Path(str(auth.refresh_file))

    async def request(self, http: RequestClient, refused: str) -> OAuthToken:
        """The token that another process has put there, unless the source has just refused it."""
        async with locked_file(self._path.with_name(f"{self._path.name}.lock")):
            stored = read_token_file(self._path)
            access, until = stored.get("access_token"), stored.get("until_us")
            self._redactor.add([stored["refresh_token"]])
            if isinstance(access, str) and isinstance(until, int) and access != refused and wall_clock_us() < until:
                return OAuthToken(access, until)
            form = {"grant_type": "refresh_token", "refresh_token": stored["refresh_token"]}
            found = await exchange_token(http, self._auth, {**form, **client_fields(self._auth, self._secret)})
            write_token_file(
                self._path,
                {
                    **stored,
                    "refresh_token": found.refresh or stored["refresh_token"],
                    "access_token": found.access,
                    "until_us": found.until,
                },
            )
            self._redactor.add([found.refresh or ""])
            return found


class SharedTokens:
    """Tokens for a refresh token that the whole fleet shares through the job store."""

    def __init__(self, auth: AuthSpec, secret: str | None, redactor: Redactor, environ: Mapping[str, str]) -> None:
        self._auth, self._secret, self._redactor = auth, secret, redactor
        self._seed = read_variable(REFRESH_ENV, str(auth.refresh_env), environ)
        if not is_header_text(self._seed):
            raise UsageError(f"{REFRESH_ENV}: {auth.refresh_env} contains characters that tokens cannot contain")
        self._leased: LeasedToken | None = None

    def share(self, host: TokenHost) -> None:
        identity = f"{self._auth.client_id} at {self._auth.token_url}, first from {self._auth.refresh_env}"
        self._leased = LeasedToken(host, identity, self._seed)

    async def request(self, http: RequestClient, refused: str) -> OAuthToken:
        if self._leased is None:
            raise UsageError(f"{REFRESH_ENV}: the refresh token is kept in the job store, which is not open here")

        def find(record: TokenRecord) -> OAuthToken | None:
            self._redactor.add([record.refresh, record.access])
            if record.refused:
                raise SourceRefused(record.refused)
            is_valid = record.access not in ("", refused) and wall_clock_us() < record.until
            return OAuthToken(record.access, record.until) if is_valid else None

        return await self._leased.share(find, partial(self._refresh, http))

    async def _refresh(self, http: RequestClient, record: TokenRecord) -> TokenRecord:
        form = {"grant_type": "refresh_token", "refresh_token": record.refresh}
        try:
            found = await exchange_token(http, self._auth, {**form, **client_fields(self._auth, self._secret)})
        except RefusedGrant:
            return replace(record, refused=self._why_refused(record))
        self._redactor.add([found.refresh or "", found.access])
        refresh = found.refresh or record.refresh
        return TokenRecord(record.seeds, refresh, found.access, found.until)

    def _why_refused(self, record: TokenRecord) -> str:
        begun = (
            ": a worker ended after it had sent the token and before the answer was stored, and the provider does not "
            "accept a token again"
        )
        again = f"sign in again, put the new refresh token into {self._auth.refresh_env}, and resume the run"
        return f"{WHERE} refuses the refresh token (invalid_grant){begun if record.asked else ''}; {again}"


def make_tokens(
    auth: AuthSpec, secret: str | None, redactor: Redactor, environ: Mapping[str, str]
) -> ClientTokens | RefreshedTokens | SharedTokens:
    if auth.refresh_env is not None:
        return SharedTokens(auth, secret, redactor, environ)
    return ClientTokens(auth, secret) if auth.refresh_file is None else RefreshedTokens(auth, secret, redactor)


def client_fields(auth: AuthSpec, secret: str | None) -> dict[str, Any]:
    """A public client has no secret."""
    return {"client_id": auth.client_id, **({} if secret is None else {"client_secret": secret})}


async def exchange_token(http: RequestClient, auth: AuthSpec, form: Mapping[str, Any]) -> OAuthToken:
    asked_at = wall_clock_us()
    # A refresh token works once: the client must not send it again after a lost reply.
    is_repeatable = form["grant_type"] == "client_credentials"
    reply = await http.request("POST", str(auth.token_url), data=form, headers=FORM, retry=is_repeatable)
    return read_token(reply, asked_at)


def read_token(reply: Any, asked_at: Instant) -> OAuthToken:
    if reply.status_code in (400, 401, 403):
        kind = RefusedGrant if error_code(reply.content) == "invalid_grant" else SourceRefused
        raise kind(f"{WHERE} answers {reply.status_code} (check client_id, the secret, scope and the refresh token)")
    if reply.status_code == 429:
        raise SourceBusy(f"{WHERE} answers 429")
    if reply.status_code != 200:
        raise HeavyPage(f"{WHERE} answers {reply.status_code}")
    try:
        found = msgspec.json.decode(reply.content)
    except ValueError:
        found = None
    token = found.get("access_token") if isinstance(found, dict) else None
    if not is_header_text(token):
        raise BadReply(f"{WHERE} answers without an access_token")
    stated, refresh = found.get("expires_in"), found.get("refresh_token")
    seconds = float(stated) if isinstance(stated, int | float) and stated > 0 else EXPIRES_SECONDS
    until = asked_at + int((seconds - min(EARLY_SECONDS, seconds * EARLY_SHARE)) * SECOND_US)
    return OAuthToken(token, until, refresh if is_header_text(refresh) else None)


def error_code(body: bytes) -> Any:
    """Of RFC 6749."""
    try:
        found = msgspec.json.decode(body)
    except ValueError:
        return None
    return found.get("error") if isinstance(found, dict) else None


def is_header_text(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and value != "" and value.isprintable() and value.isascii()


# -- the file of a refresh token --------------------------------------------------------------------------------------


@asynccontextmanager
async def locked_file(path: Path) -> AsyncIterator[None]:
    """One holder on this machine. The system releases the lock when its process ends, however it ends."""
    try:
        import fcntl
    except ImportError as error:
        raise UsageError("source.auth.refresh_file: needs locks on files, which this system does not have") from error
    clock = SystemClock()
    until = clock.monotonic() + LOCK_SECONDS_MAX
    with open_private(path) as lock:
        while True:  # bounded by the time
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if clock.monotonic() >= until:
                    raise SourceBusy(f"source.auth.refresh_file: another process holds {path}") from None
            await clock.sleep(LOCK_LOOK_SECONDS)
        yield


def open_private(path: Path) -> Any:
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+")


def read_token_file(path: Path) -> dict[str, Any]:
    field = "source.auth.refresh_file"
    try:
        found = json.loads(path.read_bytes()[:FILE_BYTES_MAX])
    except (OSError, ValueError) as error:
        raise UsageError(f"{field}: {path} cannot be read: {error}") from error
    if not isinstance(found, dict) or not is_header_text(found.get("refresh_token")):
        raise UsageError(f'{field}: {path} must contain {{"refresh_token": "…"}}')
    return found


def write_token_file(path: Path, content: Mapping[str, Any]) -> None:
    """The new token is on the disk before it is used: the old one may already be worthless."""
    new = path.with_name(f"{path.name}.new")
    with open_private(new) as file:
        file.truncate()
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
