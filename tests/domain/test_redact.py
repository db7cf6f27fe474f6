"""Errors, samples and log lines contain whatever a provider or a client library writes, including keys. Stored secrets
can be read by every tenant and operator who sees the job, and stay in backups."""

import base64
import html
import json
import quopri
import re
import time
from collections.abc import Callable
from unicodedata import normalize
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.domain.redact import MASK, Redactor, passwords_in, redact, redact_url, secrets_in

KEY = 'pa$$ w"ö/rd&\\4+2'
ENCODINGS: dict[str, Callable[[str], str]] = {
    "plain": lambda key: key,
    "percent": lambda key: quote(key, safe=""),
    "percent, lower case": lambda key: re.sub("%..", lambda found: found[0].lower(), quote(key, safe="")),
    "percent, slashes kept": quote,
    "form": quote_plus,
    "percent, twice": lambda key: quote(quote(key, safe=""), safe=""),
    "json": lambda key: json.dumps(key)[1:-1],
    "json, not ascii": lambda key: json.dumps(key, ensure_ascii=False)[1:-1],
    "json in json": lambda key: json.dumps(json.dumps({"k": key})),
    "json, slashes escaped": lambda key: json.dumps(key)[1:-1].replace("/", "\\/"),
    "repr": repr,
    "ascii": ascii,
    "repr of bytes": lambda key: repr(key.encode()),
    "repr in repr": lambda key: repr(repr(key)),
    "html": html.escape,
    "basic": lambda key: base64.b64encode(f"user:{key}".encode()).decode(),
    "basic of a longer name": lambda key: base64.b64encode(f"user1:{key}".encode()).decode(),
    "basic of another name": lambda key: base64.b64encode(f"user12:{key}\n".encode()).decode(),
    "base64, for URLs": lambda key: base64.urlsafe_b64encode(f"{key}".encode()).decode(),
    "base64 in a URL": lambda key: quote(base64.b64encode(f"ab:{key}".encode()).decode(), safe=""),
    "base64 in lines": lambda key: in_lines(base64.b64encode(key.encode()).decode()),
    "base64 in lines in JSON": lambda key: json.dumps(in_lines(base64.b64encode(key.encode()).decode())),
    "hexadecimal": lambda key: key.encode().hex(),
    "hexadecimal, upper case": lambda key: key.encode().hex().upper(),
    "hexadecimal, with colons": lambda key: key.encode().hex(":"),
    "quoted-printable": lambda key: quopri.encodestring(key.encode()).decode(),
    "quoted-printable, in a header": lambda key: quopri.encodestring(key.encode(), header=True).decode(),
    "quoted-printable, in lines": lambda key: "=\n".join(key),
    "accents apart": lambda key: normalize("NFD", key),
    "UTF-8 read as Latin-1": lambda key: key.encode().decode("latin-1"),
}


def in_lines(text: str) -> str:
    return "\r\n".join(text[start : start + 5] for start in range(0, len(text), 5))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_known_secret_is_removed_in_every_encoding(encoding: str) -> None:
    """Client libraries quote URLs, providers echo requests as JSON, and tracebacks contain `repr`."""
    written = ENCODINGS[encoding](KEY)
    text = Redactor([KEY])(f"the provider says <<{written}>> and more")
    assert MASK in text
    assert text.startswith("the provider says <<")
    assert text.endswith(">> and more")
    # The name of the user, quotes and the bits that base64 shares with a neighbour may stay.
    assert len(text) - len("the provider says <<>> and more") <= len(MASK) + 16


@given(
    key=st.text(st.characters(min_codepoint=0x21, max_codepoint=0x24F), min_size=8, max_size=40), number=st.integers(0)
)
def test_any_secret_is_removed_in_every_encoding(key: str, number: int) -> None:
    """Keys may contain any character; one that is special in an encoding must not protect the rest."""
    name = list(ENCODINGS)[number % len(ENCODINGS)]
    written = ENCODINGS[name](key)
    assert written not in Redactor([key])(f"<{written}>")


BY_PLACE = [
    ("GET https://api.example/v1?api_key=hunter2abc&q=Berlin answers 401", "hunter2abc", "q=Berlin answers 401"),
    ("Client error for url 'https://x.example/?q=1&key=hunter2abc'", "hunter2abc", "https://x.example/?q=1&key="),
    ("https://x.example/?access_token=hunter2abc#top", "hunter2abc", "#top"),
    ("https://x.example/cb?u=https%3A%2F%2Fy.example%2F%3Fapi_key%3Dhunter2abc%26q%3D1", "hunter2abc", "%26q%3D1"),
    ("http://user:hunter2abc@db.example:5432/x", "hunter2abc", "@db.example:5432/x"),
    ("http://user:hunter2/abc@x@db.example/x", "hunter2", "db.example/x"),
    ("http%3A%2F%2Fuser%3Ahunter2abc%40db.example", "hunter2abc", "db.example"),
    ("https://hunter2abchunter2abc@git.example/x", "hunter2abc", "git.example/x"),
    ('{"api_key": "hunter2 abc", "q": "Berlin"}', "hunter2", '"q": "Berlin"}'),
    ('"{\\"api_key\\": \\"hunter2abc\\", \\"q\\": 1}"', "hunter2abc", '\\"q\\": 1}'),
    ("{'password': 'hunter2abc', 'q': 1}", "hunter2abc", "'q': 1}"),
    ("{'token': b'hunter2abc'}", "hunter2abc", "'token': b'"),
    ("[('x-api-key', 'hunter2abc'), ('accept', '*/*')]", "hunter2abc", "('accept', '*/*')"),
    ("Authorization: Basic dXNlcjpodW50ZXIyYWJj\nAccept: */*", "dXNlcjpodW50ZXIyYWJj", "\nAccept: */*"),
    ("Headers({'authorization': 'Bearer hunter2abc'})", "hunter2abc", "})"),
    ("sent Bearer hunter2abc.def to the server", "hunter2abc", "to the server"),
    ("sent Basic dXNlcjpodW50ZXIy to the server", "dXNlcjpodW50ZXIy", "to the server"),
    ("Cookie: session=hunter2abc; other=hunter3abc\nAccept: */*", "hunter", "\nAccept: */*"),
    ('client = Client(api_key="hunter2abc", retries=3)', "hunter2abc", "retries=3)"),
    ("OPENAI_API_KEY=hunter2abc is invalid", "hunter2abc", "is invalid"),
    ("db_password: hunter2abc", "hunter2abc", "db_password: "),
    ("the token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.c2lnbmF0dXJl was refused", "eyJ", "was refused"),
    ("key lw_abcd1234_ABCDEFGHIJKLMNOPQRSTUVWXYZa is revoked", "ABCDEFGH", "is revoked"),
    ("https://x.example/a;jsessionid=hunter2abc?q=1", "hunter2abc", "https://x.example/a;jsessionid="),
    ("<login><user>me</user><password>hunter2abc</password></login>", "hunter2abc", "</password></login>"),
    ('<ns:ApiKey type="text">hunter2abc</ns:ApiKey> failed', "hunter2abc", "</ns:ApiKey> failed"),
    ("&lt;Token&gt;hunter2abc&lt;/Token&gt;", "hunter2abc", "&lt;/Token&gt;"),
    ("user[password]=hunter2abc&q=1", "hunter2abc", "&q=1"),
    ("{'password' => 'hunter2abc'}", "hunter2abc", "'}"),
    ("%7B%22private_token%22%3A%22hunter2abc%22%7D", "hunter2abc", "%22%7D"),
    ("['curl', '--token', 'hunter2abc', 'x.example']", "hunter2abc", "'x.example']"),
    ('token = "hunter2abc"', "hunter2abc", "token = "),
    ("https://x.example/?u=https://y.example/?app_key=hunter2abc&q=1", "hunter2abc", "&q=1"),
    ("sk_live_hunter2abcdefg and AKIAABCDEFGHIJKLMNOP and ghp_0123456789abcdefghij!", "hunter2", " and "),
]


@pytest.mark.parametrize(("text", "secret", "kept"), BY_PLACE)
def test_a_secret_is_recognized_by_its_place(text: str, secret: str, kept: str) -> None:
    """Most keys are not known to leaseway: handlers get them from anywhere. The rest of the text stays readable."""
    shown = redact(text)
    assert secret not in shown
    assert MASK in shown
    assert kept in shown


NAMES = [
    "private_token", "app_key", "appkey", "consumer_key", "license_key", "signing_key", "encryption_key",
    "master_key", "session_id", "sessionId", "X-Vault-Token", "X-Auth-Key", "X-Figma-Token", "privateToken",
    "passcode", "userPasscode", "PHPSESSID", "webhook_token", "API_KEY_2", "X-Hub-Signature-256",
    "password_confirmation", "dbPassword", "apisecret", "client_assertion", "oauth_verifier", "mfa_code",
]  # fmt: skip
WRITTEN = {
    "query": "GET https://x.example/p?{name}=hunter2abc&q=1 failed",
    "next parameter": "GET https://x.example/p?q=1&{name}=hunter2abc failed",
    "encoded URL": "https%3A%2F%2Fx.example%2Fp%3F{name}%3Dhunter2abc%26q%3D1",
    "header": "{name}: hunter2abc\nAccept: */*",
    "JSON": '{{"{name}": "hunter2abc", "q": 1}}',
    "dict": "{{'{name}': 'hunter2abc'}}",
    "bytes": "(b'{name}', b'hunter2abc')",
    "call": "login({name}='hunter2abc', q=1)",
    "variable": "{name}=hunter2abc is invalid",
    "XML": "<{name}>hunter2abc</{name}>",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_secret_is_recognized_by_the_words_of_its_name(name: str) -> None:
    """Every provider has names of its own, in every spelling; the words in them are few."""
    leaks = [how for how, text in WRITTEN.items() if "hunter" in redact(text.format(name=name))]
    assert leaks == []


@pytest.mark.parametrize(
    "name",
    [
        "monkey", "keyword", "keyboard", "tokens", "max_tokens", "next_page_token", "nextPageToken", "token_type",
        "tokenizer", "primary_key", "partition_key", "idempotency_key", "Idempotency-Key", "public_key", "cache_key",
        "author", "authors", "session_count", "passed", "compass", "passenger", "design", "signal", "secretary",
        "passwordless", "status_code", "country_code", "cookies", "key_id", "client_id", "first_pass", "hotkey",
    ],
)  # fmt: skip
def test_ordinary_names_are_no_secrets(name: str) -> None:
    """An error without its numbers and places cannot be understood."""
    texts = [text.format(name=name) for text in WRITTEN.values()]
    assert [redact(text) for text in texts] == texts


@pytest.mark.parametrize(
    "text",
    [
        "GET https://api.example:8443/v1/places?email=a@b.example answers 404",
        "job mail: to: expected str, got int",
        "this worker has no job named 'mail'; it knows: none",
        "Basic authentication is required",
        "the key must not be empty; the token expired",
        "KeyError: 'address'",
        'File "tasks.py", line 12, in geocode\n    token = tokens[0]\n',
        "budget maps-spend: 0.005 usd",
        "https://[::1]:8080/x?page=2&limit=50",
        "<Error><Code>NoSuchKey</Code><Key>photos/2024/a.jpg</Key></Error>",
        "monkey=3 tokens=120 keyword=maps key=geocode:42",
        "unexpected token: '}' at line 3",
        "<secrets>\n  <name>a</name>\n</secrets>",
    ],
)
def test_ordinary_errors_are_unchanged(text: str) -> None:
    """An error that is masked too much cannot be understood."""
    assert redact(text) == text


@given(st.text(max_size=300))
def test_redacting_twice_changes_nothing(text: str) -> None:
    """Text passes several layers, each of which redacts it."""
    redactor = Redactor([KEY])
    assert redactor(redactor(text)) == redactor(text)


HOSTILE = {
    "quotes": '"api_key": "' * 3_000,
    "backslashes": "\\" * 40_000 + '"',
    "at signs": "https://" + "a:" * 20_000 + "@",
    "many URLs": "https://a:b" * 5_000,
    "names": "api_" * 15_000 + "key",
    "equal signs": "password=" * 6_000,
    "begin": "-----BEGIN PRIVATE KEY-----" * 2_000,
    "one name": "a_" * 30_000,
    "percents": "%25" * 20_000,
    "eyJ": "eyJ" * 20_000,
    "eyJ behind dashes": "-eyJ" * 15_000,
    "URLs before an at sign": "://" * 15_000 + "@",
    "encoded colons": "://" + "%3a" * 15_000 + "@",
    "names in a query": "?" + "api_" * 15_000,
    "many parameters": "&token" * 10_000,
    "many assignments": "a_token= " * 6_000,
    "open quotes": "token='" * 8_000,
    "open elements": "<password>" * 6_000,
    "elements without end": "<password " * 6_000,
    "camel case": "Ab" * 30_000 + "Password=x",
    "upper case": "A" * 60_000 + "=",
    "colons": "a:" * 30_000,
    "hexadecimal": "61" * 30_000,
    "soft line breaks": "a=\n" * 15_000,
    "spaces": "a " * 30_000,
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_text_is_searched_in_linear_time(what: str) -> None:
    """A provider chooses the text of its errors. One that takes minutes to search would stop the worker's loop."""
    redactor, text = Redactor([KEY, "\\" * 20, "a" * 50]), HOSTILE[what]
    before = time.process_time()
    redactor(text[: len(text) // 4])
    quarter = time.process_time() - before
    before = time.process_time()
    redactor(text)
    assert time.process_time() - before < 8 * quarter + 0.5


def test_a_secret_at_a_cut_leaves_no_part() -> None:
    """Half a key helps to guess the other half, so text is redacted before it is cut."""
    redactor = Redactor(["hunter2abc"])
    for length in range(90, 115):
        assert "hunt" not in redactor.head("x" * 100 + "hunter2abc" + "y" * 100, length)
        assert "2abc" not in redactor.tail("x" * 100 + "hunter2abc" + "y" * 100, length)
    for filler in ("x ", "x", "?api_key=a b " * 10, "-----BEGIN PRIVATE KEY-----"):
        for shift in (*range(980, 1_005), *range(6_080, 6_100)):
            long = filler * 3_000
            assert "hunt" not in redactor.head(f"{long[:shift]}hunter2abc{long}", 1_000)
            assert "2abc" not in redactor.tail(f"{long}hunter2abc{long[:shift]}", 1_000)


def test_secrets_of_the_environment() -> None:
    """Keys of providers are given to workers in environment variables."""
    environ = {
        "MAPS_API_KEY": "hunter2abc",
        "GITHUB_TOKEN": "hunter3abc",
        "DATABASE_URL": "postgresql://app:hunter4%2Fabc@db/x",
        "PWD": "/usr/local",
        "SSH_KEY_PATH": "keys/id_ed25519",
        "KEYBOARD": "qwertz-layout",
        "DB_PASS": "hunter5abc",
        "LOGIN_PASSCODE": "hunter6abc",
    }
    assert set(secrets_in(environ)) == {
        "hunter2abc", "hunter3abc", "hunter4%2Fabc", "hunter4/abc", "hunter5abc", "hunter6abc",
    }  # fmt: skip
    assert list(passwords_in("sqlite:///work.db")) == []
    assert list(passwords_in(None)) == []


def test_short_values_are_not_removed_by_value() -> None:
    """A password "a" would mask every other letter."""
    assert Redactor(["a", "", "12345"])("a banana costs 12345") == "a banana costs 12345"


def test_the_url_of_a_store() -> None:
    """Messages name the store, but not its password."""
    assert redact_url("postgresql://app:p@ss@db/x?password=abc&a=1") == "postgresql://app:***@db/x?password=***&a=1"
