"""The codec that ships: AES-256 in Galois/Counter Mode, with key ids and rotation.

Each value gets a key of its own, derived from the key, the tenant, the job and the field with HMAC-SHA256. A key can
therefore encrypt any number of values: the bound of GCM on random nonces (2^32 values under one key) applies to the
values of one field of one job.
"""

import base64
import binascii
import hashlib
import hmac
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from leaseway.domain.errors import BadCiphertext, BadValue, UnknownEncryptionKey, UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

VARIABLE = "LEASEWAY_ENCRYPTION_KEYS"
KEY_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
KEY_BYTES = 32
NONCE_BYTES = 12
VALUE_KEY = b"leaseway aes-gcm 1\0"
FINGERPRINT_KEY = b"leaseway fingerprint 1\0"


class AesGcm:
    """Encrypts what jobs carry: `App(codec=AesGcm({"2026-05": key}))`.

    `keys`: key ids and keys, the newest first. The newest encrypts, and all of them decrypt. A key is 32 bytes, or the
    same in base64, as `AesGcm.new_key()` returns it. `fingerprint_key`: the key of the hashes by which repeated
    submissions are recognized; default: the oldest key of the list.
    """

    def __init__(self, keys: Mapping[str, bytes | str], *, fingerprint_key: bytes | str | None = None) -> None:
        self._aes_gcm, self._invalid_tag = load_library()
        if not isinstance(keys, Mapping) or not keys:
            raise BadValue("keys", 'must contain at least one key by its id: {"2026-05": AesGcm.new_key()}')
        for key_id in keys:
            if not KEY_ID.fullmatch(key_id):
                raise BadValue(
                    "keys", f"an id has 1 to 64 letters, digits, dots, dashes and underscores (is {key_id!r})"
                )
        self._keys = {key_id: parse_key(f"keys.{key_id}", key) for key_id, key in keys.items()}
        self._newest, oldest = next(iter(self._keys)), next(reversed(self._keys.values()))
        source = oldest if fingerprint_key is None else parse_key("fingerprint_key", fingerprint_key)
        self._fingerprint_key = hmac.digest(source, FINGERPRINT_KEY, hashlib.sha256)

    @staticmethod
    def new_key() -> str:
        """A new random key in base64."""
        return base64.b64encode(os.urandom(KEY_BYTES)).decode()

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> "AesGcm | None":
        """The keys in LEASEWAY_ENCRYPTION_KEYS, as `id=base64,id=base64`, the newest first. None if it is not set."""
        text = environ.get(VARIABLE, "").strip()
        if not text:
            return None
        pairs = [part.strip().partition("=") for part in text.split(",") if part.strip()]
        try:
            return cls({key_id: key for key_id, _, key in pairs})
        except BadValue as error:
            raise UsageError(f"{VARIABLE}: {error}; write it as id=base64,id=base64, the newest first") from error

    def __repr__(self) -> str:
        return f"AesGcm({', '.join(self._keys)})"

    def encrypt(self, plain: bytes, bound: bytes) -> tuple[str, bytes]:
        nonce = os.urandom(NONCE_BYTES)
        return self._newest, nonce + self._cipher(self._keys[self._newest], bound).encrypt(nonce, plain, bound)

    def decrypt(self, key: str, sealed: bytes, bound: bytes) -> bytes:
        if key not in self._keys:
            raise UnknownEncryptionKey(
                f"the value is encrypted with key {key!r}, and the keys of this process are: {', '.join(self._keys)}; "
                "add it to the list of keys"
            )
        try:
            plain: bytes = self._cipher(self._keys[key], bound).decrypt(
                sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], bound
            )
        except (self._invalid_tag, ValueError) as error:
            raise BadCiphertext(
                f"the value cannot be decrypted with key {key!r}: it was changed, it belongs to another job, field or "
                "tenant, or another key has the same id"
            ) from error
        return plain

    def fingerprint(self, plain: bytes) -> str:
        return hmac.digest(self._fingerprint_key, plain, hashlib.sha256).hex()

    def _cipher(self, key: bytes, bound: bytes) -> "AESGCM":
        return self._aes_gcm(hmac.digest(key, VALUE_KEY + bound, hashlib.sha256))


def load_library() -> "tuple[type[AESGCM], type[Exception]]":
    try:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ModuleNotFoundError:
        raise UsageError("encryption needs its library; install it with: pip install 'leaseway[encryption]'") from None
    return AESGCM, InvalidTag


def parse_key(field: str, key: bytes | str) -> bytes:
    """The bytes of a key. The error does not repeat the key."""
    try:
        raw = base64.b64decode(key, validate=True) if isinstance(key, str) else bytes(key)
    except (binascii.Error, ValueError) as error:
        raise BadValue(field, "must be 32 bytes, as base64; make one with AesGcm.new_key()") from error
    if len(raw) != KEY_BYTES:
        raise BadValue(field, f"must have {KEY_BYTES} bytes (has {len(raw)}); make one with AesGcm.new_key()")
    return raw
