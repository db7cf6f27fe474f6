"""text ─► [redact] ─► text without secrets, by their place and by their value"""

import base64
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from unicodedata import normalize
from urllib.parse import unquote

from leaseway.domain.redact.names import Secrecy, secrecy

MASK = "***"
SECRET_LENGTH_MIN = 6
"""Shorter values are not removed by value: they would occur in other words, and the mask would reveal where."""
SECRET_LENGTH_MAX = 4_096
SECRETS_MAX = 200

_SIGNS = ("key", "token", "secret", "pass", "auth", "cred", "cookie", "sig", "pwd", "sess", "jwt", "assert", "code")
"""One of these is part of every name of a secret. Most errors contain none of them and are not searched for names."""
_EQUALS = r"(?:=|%3d|%253d)"
_QUOTE = r"(?:\\{0,8}[\"']|&quot;|&#34;|&#39;|%22)"

_SLASHES = r"(?::|%3a)(?:\\{0,4}/|%2f){2}"
_USERINFO = re.compile(
    rf"({_SLASHES})((?:(?!%3a)[^\s/?#@:'\"<>]){{0,256}}?)"
    # It ends before the next URL: every character is searched once, however many URLs follow each other.
    rf"((?::|%3a)(?!\d{{1,5}}(?:[/?#]|%2f))(?:(?!{_SLASHES})[^\s'\"<>]){{0,1024}})?(@|%40)",
    re.IGNORECASE,
)
# A name is read as a whole, from its first character on, so that no character of a long one is read twice.
_NAME = r"(?<![\w.-])(?P<name>[\w.-]++)"
_QUERY = re.compile(
    rf"(?:[?&;]|%3f|%26|%253f|%2526)(?:amp;)?(?P<name>(?:[\w.\[\]~-]|%5b|%5d)++){_EQUALS}", re.IGNORECASE
)
_QUOTED = re.compile(rf"{_NAME}\]?{_QUOTE}\s{{0,4}}(?:[:,]|=>?|%3a|%2c)\s{{0,4}}b?(?P<quote>{_QUOTE})", re.IGNORECASE)
_ASSIGNED = re.compile(
    rf"{_NAME}\]?(?:\s{{0,4}}(?:[:=]|:=)\s{{0,4}}|{_EQUALS})(?:b?(?P<quote>{_QUOTE}))?", re.IGNORECASE
)
_ELEMENT = re.compile(r"(?:<|&lt;)(?:[\w-]{1,40}:)?(?P<name>[\w.-]{1,80})(?:\s[^<>]{0,200})?(?:>|&gt;)", re.IGNORECASE)
_QUERY_VALUE = re.compile(r"(?:(?!%26)[^\s&#;'\"<>\\])+", re.IGNORECASE)
_BARE_VALUE = re.compile(r"(?!\*\*\*)(?:(?!%26)[^\s&'\"<>,;)}\]])+", re.IGNORECASE)
_ELEMENT_VALUE = re.compile(r"(?!\s{0,200}(?:<|&lt;))(?:(?!&lt;)[^<]){1,8192}", re.IGNORECASE)
_QUOTED_LENGTH_MAX = 8_192
_HEADER = re.compile(
    r"((?<![a-z0-9])(?:proxy-)?authorization\s{0,4}[:=]\s{0,4}|(?<![a-z0-9])(?:set-)?cookie\s{0,4}:\s{0,4})[^\n'\"]+",
    re.IGNORECASE,
)
_SCHEME = re.compile(r"\b(bearer|basic|token|apikey|digest)(\s{1,4}|%20|\+)([a-z0-9._~+/=%-]{8,})", re.IGNORECASE)
_FORMS = re.compile(
    r"\beyJ(?:(?!-eyJ)[\w-]){8,}\.[\w-]{8,}(?:\.[\w-]*)?"  # JWT; the next one may follow a dash
    r"|\blw_[a-z0-9]{4,32}_[A-Za-z0-9]{16,}"  # leaseway
    r"|\b(?:sk|pk|rk)[-_](?:live|test|proj|ant|or)[-_][\w-]{8,}|\bsk-[A-Za-z0-9]{20,}"  # Stripe, OpenAI and others
    r"|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{16,}|\bxox[abeoprs]-[\w-]{10,}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bAIza[\w-]{30,}|\bSG\.[\w-]{16,}\.[\w-]{16,}"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
_SECRET_VARIABLE = re.compile(r"(?:^|_)(?:API_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)$")
_ALPHANUMERIC = re.compile(r"[A-Za-z0-9]+")
_URL_PASSWORD = re.compile(r"://[^/?#@:\s]*:([^\s]*)@")


def redact_url(url: str) -> str:
    """A store's URL without its password, for messages. Passwords with unescaped special characters are removed,
    too."""
    return re.sub(r"(//[^/?#@:]*):.*@", r"\1:***@", re.sub(r"(password=)[^&]*", r"\1***", url))


def redact(text: str) -> str:
    """The text without values that are secrets by their place or form."""
    if "@" in text or "%40" in text:
        text = _USERINFO.sub(_mask_userinfo, text)
    if "=" in text or "%3" in text:
        text = _mask_values(text, _QUERY, Secrecy.IN_QUERY, _QUERY_VALUE)
    lower = text.lower()
    if any(sign in lower for sign in _SIGNS):
        text = _mask_values(text, _QUOTED, Secrecy.IN_QUOTES, None)
        text = _mask_values(text, _ASSIGNED, Secrecy.ALWAYS, _BARE_VALUE)
        if "<" in text or "&lt;" in lower:
            text = _mask_values(text, _ELEMENT, Secrecy.AS_LITERAL, _ELEMENT_VALUE)
        text = _HEADER.sub(rf"\1{MASK}", text)
    return _FORMS.sub(MASK, _SCHEME.sub(_mask_credentials, text))


def _mask_values(text: str, names: re.Pattern[str], least: Secrecy, bare_value: re.Pattern[str] | None) -> str:
    """Mask what follows the names of secrets: a text in quotes, or what `bare_value` matches."""
    parts, end = [], 0
    has_quotes = "quote" in names.groupindex
    for found in names.finditer(text):
        quote = found["quote"] if has_quotes else None
        # "token: '}'" is a message of a parser.
        is_literal = quote and ("=" in found[0] or "%3d" in found[0].lower())
        is_secret = _secrecy_of(found) >= (min(least, Secrecy.AS_LITERAL) if is_literal else least)
        if not is_secret or found.start() < end:  # the second: it is a part of what was masked
            continue
        if quote:
            value_end = _quoted_end(text, found.end(), quote)
        else:
            value = None if bare_value is None else bare_value.match(text, found.end())
            value_end = found.end() if value is None else value.end()
        if value_end > found.end():
            parts += [text[end : found.end()], MASK]
            end = value_end
    return "".join([*parts, text[end:]])


def _secrecy_of(found: re.Match[str]) -> Secrecy:
    start, name = found.start("name"), found["name"]
    # In %22api_key%22 the name begins behind the encoded quote.
    return secrecy(name[2:] if start and found.string[start - 1] == "%" else name)


def _quoted_end(text: str, start: int, quote: str) -> int:
    bound = min(start + _QUOTED_LENGTH_MAX, len(text))
    ends = (text.find(end, start, bound) for end in (quote, "\n"))
    return min((end for end in ends if end >= 0), default=bound)


def _mask_userinfo(found: re.Match[str]) -> str:
    slashes, user, password, at = found.groups()
    # A name without a password is a key, as in https://ghp_…@github.com.
    return f"{slashes}{MASK if password is None and user else user}{'' if password is None else f':{MASK}'}{at}"


def _mask_credentials(found: re.Match[str]) -> str:
    scheme, space, value = found.groups()
    # "Basic authentication" and "token expired" are words.
    is_word = value.isalpha() and (value.islower() or value.istitle())
    return found[0] if is_word else f"{scheme}{space}{MASK}"


class Redactor:
    """Removes the secrets that a process knows, in addition to what `redact` recognizes."""

    def __init__(self, secrets: Iterable[str] = (), environ: Mapping[str, str] | None = None) -> None:
        """`environ`: environment variables, which are searched for secrets at the first use."""
        self._environ = environ
        self._known: dict[str, KnownSecret] = {}
        self.add(secrets)

    def add(self, secrets: Iterable[str]) -> None:
        """Remember further secrets. Short ones are ignored, and at most 200 are kept."""
        for secret in secrets:
            if SECRET_LENGTH_MIN <= len(secret) <= SECRET_LENGTH_MAX and len(self._known) < SECRETS_MAX:
                self._known.setdefault(secret, KnownSecret(secret))

    @property
    def secrets(self) -> list[str]:
        return list(self._known)

    def __call__(self, text: str) -> str:
        if self._environ is not None:
            self.add(secrets_in(self._environ))
            self._environ = None
        if self._known:
            signs = TextSigns(text)
            for known in self._known.values():
                text = known.remove_from(text, signs)
        return redact(text)

    def head(self, text: str, length: int) -> str:
        """The beginning of a text, redacted. A text of any length takes a bounded time."""
        searched = 2 * length + SECRET_LENGTH_MAX
        if len(text) <= searched:
            return self(text)[:length]
        # The cut may go through a secret, so what is near the cut is not shown.
        return self(text[:searched])[:-SECRET_LENGTH_MAX][:length]

    def tail(self, text: str, length: int) -> str:
        """The end of a text, redacted."""
        searched = 2 * length + SECRET_LENGTH_MAX
        if len(text) <= searched:
            return self(text)[-length:]
        return self(text[-searched:])[SECRET_LENGTH_MAX:][-length:]

    def line(self, text: str, length: int) -> str:
        """The beginning of a text, redacted, on one line and without characters that a terminal obeys."""
        words = " ".join(self.head(text, length).split())
        if words.isprintable():
            return words
        return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in words)


NO_SECRETS = Redactor()
"""Recognizes secrets by their place and form only. Do not add to it."""


class TextSigns:
    """What shows cheaply that a text does not contain a secret."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.is_encoded = _ENCODED.search(text) is not None

    @cached_property
    def joined(self) -> str:
        """Without line breaks and spaces, which encoders add."""
        return "".join(_LINE_BREAK.sub("", self.text).split())

    @cached_property
    def hexadecimal(self) -> str:
        return self.joined.replace(":", "").replace("-", "").lower()


class KnownSecret:
    """One secret, and a pattern that matches it in every usual encoding, also if only some characters are encoded."""

    def __init__(self, secret: str) -> None:
        # An accent may be a character of its own, and UTF-8 may have been read as Latin-1.
        forms = [secret, *(normalize(form, secret) for form in ("NFC", "NFD"))]
        self._forms = list(dict.fromkeys([*forms, secret.encode("utf-8", "replace").decode("latin-1")]))
        raw = secret.encode("utf-8", "replace")
        # Base64 encodes three bytes at a time, so a secret inside a longer text has three forms.
        self._in_base64 = [form for form in (base64_inside(raw, before) for before in range(3)) if form]
        self._in_hexadecimal = raw.hex()
        self._signs = tuple(
            max(_ALPHANUMERIC.findall(form), key=len, default="") for form in (*self._forms, *self._in_base64)
        )

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        plain = [_SOFT_BREAK.join(map(_char_pattern, form)) for form in self._forms]
        ends = "[A-Za-z0-9+/_-]?(?:=|%3[dD]){0,2}"
        encoded = [_BREAK.join(map(_base64_char_pattern, form)) + ends for form in self._in_base64]
        digits = re.findall("..", self._in_hexadecimal)
        return re.compile("|".join([*plain, *encoded, r"[\s:-]?".join(map(_any_case, digits))]))

    def remove_from(self, text: str, signs: TextSigns) -> str:
        # No encoding changes letters and digits, unless it encodes everything. Most texts need no search.
        if signs.is_encoded or self._is_in(signs):
            return self._pattern.sub(MASK, text)
        return text

    def _is_in(self, signs: TextSigns) -> bool:
        return any(sign in signs.joined for sign in self._signs) or self._in_hexadecimal in signs.hexadecimal


_ENCODED = re.compile(r"[%\\&]|=(?:[0-9A-Fa-f]{2}|\r?\n)")
_LINE_BREAK = re.compile(r"=\r?\n|\\[rn]")
_SOFT_BREAK = r"(?:=\r?\n)?"
"""Of quoted-printable."""
_BREAK = r"(?:\s{1,8}|(?:\\{1,4}[rn]){1,2})?"
"""Encoders of base64 break lines; `repr` and JSON write a line break as an escape."""


def base64_inside(raw: bytes, before: int) -> str:
    """The base64 of `raw` where `before` other bytes come first, without the characters that it shares with them."""
    encoded = base64.b64encode(b"\0" * before + raw).decode().rstrip("=")
    inner = encoded[(before * 8 + 5) // 6 : (before + len(raw)) * 8 // 6]
    return inner if len(inner) >= SECRET_LENGTH_MIN else ""


def _char_pattern(char: str) -> str:
    """One character: plain, behind backslashes, percent-encoded once or twice, quoted-printable, as \\x, \\u or an HTML
    entity."""
    code = ord(char)
    digits = [_any_case(f"{byte:02x}") for byte in char.encode("utf-8", "replace")]
    percent = _SOFT_BREAK.join(f"(?:%(?:25)?|=){each}" for each in digits)
    escaped = "".join(rf"\\{{1,4}}x{each}" for each in digits)
    # Backslashes before a character are part of its escape. Their number is bounded to keep the search linear.
    plain = re.escape(char) if char.isalnum() else rf"\\{{0,8}}{re.escape(char)}"
    forms = [plain, percent, escaped, rf"\\{{1,4}}u{_any_case(f'{code:04x}')}" if code < 0x10000 else "", f"&#{code};"]
    forms += [rf"\\{{1,4}}x{_any_case(f'{code:02x}')}" if code < 0x100 else "", f"&#[xX]{_any_case(f'{code:x}')};"]
    forms += {" ": [r"\+", "_"], "&": ["&amp;"], "<": ["&lt;"], ">": ["&gt;"], '"': ["&quot;"], "'": ["&apos;"]}.get(
        char, []
    )
    return f"(?:{'|'.join(form for form in forms if form)})"


def _base64_char_pattern(char: str) -> str:
    """One character of base64: standard, URL-safe or percent-encoded."""
    return {"+": r"(?:\+|-|%2[bB])", "/": r"(?:\\{0,4}/|_|%2[fF])"}.get(char, char)


def _any_case(digits: str) -> str:
    return "".join(f"[{digit}{digit.upper()}]" if digit.isalpha() else digit for digit in digits)


def secrets_in(environ: Mapping[str, str]) -> Iterator[str]:
    """The values of environment variables that are named like secrets, and the passwords of URLs."""
    for name, value in environ.items():
        if _SECRET_VARIABLE.search(name.upper()) or secrecy(name) is Secrecy.ALWAYS:
            yield value.strip()
        yield from passwords_in(value)


def passwords_in(url: str | None) -> Iterator[str]:
    """The password of a URL, as written and decoded."""
    if url and (found := _URL_PASSWORD.search(url)) is not None:
        yield found[1]
        yield unquote(found[1])
