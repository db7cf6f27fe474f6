"""Whether the value of a parameter, a field, a header or an element is a secret, by the words of its name.

`private_token`, `X-Vault-Token` and `privateToken` have the same words. The last word decides, together with the words
before it: a `signing_key` is a secret, a `primary_key` is not.
"""

import re
from enum import IntEnum
from functools import lru_cache


class Secrecy(IntEnum):
    """In which places a value is a secret. A value that is one in a place is one in the places before it, too."""

    NEVER = 0
    IN_QUERY = 1
    """?code=…"""
    IN_QUOTES = 2
    """"key": "…": the name and the value have quotes."""
    AS_LITERAL = 3
    """token = "…": the value has quotes. <token>…</token>"""
    ALWAYS = 4
    """password=…"""


_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_NAME_LENGTH_MAX = 80

_ALWAYS = {
    "password", "passwd", "passphrase", "passcode", "secret", "credential", "credentials", "cookie",
    "authorization", "jsessionid", "phpsessid", "sessid", "sessionid",
}  # fmt: skip
"""Words that mean a secret wherever they occur."""
_LAST = {
    "token": Secrecy.AS_LITERAL, "pwd": Secrecy.AS_LITERAL, "jwt": Secrecy.AS_LITERAL,
    "sig": Secrecy.IN_QUOTES, "signature": Secrecy.IN_QUOTES, "auth": Secrecy.IN_QUOTES, "session": Secrecy.IN_QUOTES,
}  # fmt: skip
_ALONE = {
    "key": Secrecy.IN_QUOTES, "pass": Secrecy.IN_QUOTES, "code": Secrecy.IN_QUERY, "otp": Secrecy.IN_QUERY,
    "pin": Secrecy.IN_QUERY, "pw": Secrecy.IN_QUERY, "sid": Secrecy.IN_QUERY, "hmac": Secrecy.IN_QUERY,
    "bearer": Secrecy.IN_QUERY,
}  # fmt: skip
"""Words that mean a secret only in some places: "the key: value" and "code: 404" are ordinary text."""
_PAIRS: dict[str, set[str]] = {
    "key": {
        "api", "app", "access", "secret", "private", "account", "subscription", "consumer", "license",
        "licence", "signing", "encryption", "decryption", "master", "auth", "shared", "storage", "service",
        "session", "security", "webhook", "client", "admin", "root", "deploy", "hmac", "aes", "rsa", "ssh",
        "function", "functions", "ingest", "server", "host", "write", "integration", "sas",
    },
    "pass": {
        "db", "database", "user", "smtp", "mysql", "postgres", "pg", "redis", "ftp", "ldap", "admin", "root",
        "login", "mail", "proxy", "http",
    },
    "signature": {
        "x", "amz", "goog", "access", "shared", "hub", "webhook", "stripe", "slack", "twilio", "request",
    },
    "code": {
        "auth", "authorization", "verification", "mfa", "otp", "login", "access", "security", "recovery",
        "backup",
    },
    "assertion": {"client", "saml"}, "verifier": {"code", "oauth"}, "id": {"session"},
}  # fmt: skip
"""The value of a name that ends with the first word is always a secret if one of the others is the word before it."""
_PLACES_IN_A_LIST = {
    "page", "next", "previous", "prev", "continuation", "sync", "cursor", "max", "min", "total", "count", "used",
    "input", "output", "prompt", "completion", "unexpected", "invalid", "start", "end", "first", "last",
}  # fmt: skip
"""A `next_page_token` is no secret."""
_GLUED = re.compile(
    r"password$|passwd$|passphrase$|passcode$|secret$|credentials?$|sessionid$|sharedaccesssignature$"
    r"|(?P<place>page|next|continuation|sync|cursor)?token$"
    rf"|(?:{'|'.join(sorted(_PAIRS['key']))})key$"
)
"""The end of a word that consists of several, as in `apikey` and `authtoken`."""
_SUFFIXES = {
    "value", "plain", "plaintext", "text", "hash", "hex", "b", "base", "pem", "old", "new", "current",
    "confirmation", "confirm",
}  # fmt: skip
"""What may follow a word that means a secret, without digits: `password_confirmation`, `key_base64`."""


def secrecy(name: str) -> Secrecy:
    return _secrecy_of_short(name[-_NAME_LENGTH_MAX:])


@lru_cache(maxsize=2_048)
def _secrecy_of_short(name: str) -> Secrecy:
    words = [word.lower() for word in _WORDS.findall(name)]
    while len(words) > 1 and words[-1] in _SUFFIXES:
        words.pop()
    if not words:
        return Secrecy.NEVER
    *before, last = words
    if last in _ALWAYS or (before and before[-1] in _PAIRS.get(last, ())) or words[-3:] == ["access", "key", "id"]:
        return Secrecy.ALWAYS
    if last in ("token", "pwd", "jwt") and before:
        return Secrecy.ALWAYS if _PLACES_IN_A_LIST.isdisjoint(before) else Secrecy.NEVER
    if last in _LAST or last in _ALONE:
        return _LAST.get(last) or (Secrecy.NEVER if before else _ALONE[last])
    found = _GLUED.search(last)
    return Secrecy.ALWAYS if found is not None and not found["place"] else Secrecy.NEVER
