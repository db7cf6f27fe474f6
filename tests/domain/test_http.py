"""Requests and replies of ctx.http are leaseway's own: what users read stays the same with every HTTP library."""

from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from leaseway.domain.errors import BadValue
from leaseway.domain.http import (
    HttpHeaders,
    HttpReply,
    HttpRequest,
    HttpStatusError,
    ReplyTimeout,
    build_url,
    encode_body,
    encode_query,
    merge_headers,
)


@pytest.mark.parametrize(
    ("url", "params", "expected"),
    [
        ("http://x", None, "http://x"),
        ("http://x", {}, "http://x"),
        ("http://x/a", {"q": "x y&z", "n": 1, "f": 0.5}, "http://x/a?q=x+y%26z&n=1&f=0.5"),
        ("http://x/?a=1", {"b": 2}, "http://x/?a=1&b=2"),
        ("http://x/?", {"b": 2}, "http://x/?b=2"),
        ("http://x/#top", {"b": 2}, "http://x/?b=2#top"),
        ("HTTP://x", [("a", 1), ("a", 2)], "HTTP://x?a=1&a=2"),
        ("https://x", {"a": ["ä", "b"], "yes": True, "no": False, "none": None}, "https://x?a=%C3%A4&a=b&yes=true&no=false&none="),
    ],
)  # fmt: skip
def test_parameters_are_added_to_the_query(url: str, params: Any, expected: str) -> None:
    """The query of the URL itself, for example of a next page, must not be lost."""
    assert build_url(url, params) == expected


@given(st.lists(st.tuples(st.text() | st.binary() | st.integers(), st.text())))
@example([("a.b_c-d~9", "x\n")])
def test_a_query_is_encoded_as_by_the_standard_library(pairs: list[tuple[Any, str]]) -> None:
    """Texts that need no quoting take a shorter way. If it took others, a provider would get other parameters."""
    assert encode_query(pairs) == urlencode(pairs)


def test_the_headers_of_a_request_keep_their_names() -> None:
    """Some old servers compare names with case."""
    others = HttpHeaders({"User-Agent": "leaseway", "Accept": "*/*"})
    assert merge_headers({"X": "1"}, others).pairs == (("X", "1"), *others.pairs)
    assert merge_headers(None, others).pairs == others.pairs


@pytest.mark.parametrize("url", ["", "x", "/a", "ftp://x/", "http://", "http://x:port/", "http://[::1/", None, 5])
def test_a_url_that_cannot_be_requested_is_refused_by_name(url: Any) -> None:
    """The mistake must be found before a permit is taken."""
    with pytest.raises(BadValue, match=r"^url: "):
        build_url(url, None)


def test_a_parameter_without_a_text_is_refused() -> None:
    """A provider would search for the address of a Python object."""
    with pytest.raises(BadValue, match="params"):
        build_url("http://x", {"q": object()})


@pytest.mark.parametrize(
    "headers", [{"a b": "c"}, {"a": "b\r\nEvil: yes"}, {"a\n": "b"}, {"": "b"}, {"a": "b\0"}, {"a": 1}, {"é": "b"}]
)
def test_a_header_that_would_end_its_line_is_refused(headers: Any) -> None:
    """An argument of a job could add headers, or a second request."""
    with pytest.raises(BadValue, match=r"^headers: "):
        merge_headers(headers, {})


def test_given_headers_win_whatever_their_case() -> None:
    """A provider that gets both may take either."""
    merged = merge_headers({"user-agent": "mine", "X": "ä\tö"}, {"User-Agent": "leaseway", "Accept": "*/*"})
    assert merged.pairs == (("user-agent", "mine"), ("X", "ä\tö"), ("Accept", "*/*"))


def test_headers_are_found_in_any_case_and_joined() -> None:
    """Servers differ in case, and proxies add second values."""
    headers = HttpHeaders([("Link", "a"), ("X-Secret", "s3cr3t"), ("link", "b")])
    assert (headers["LINK"], headers.get("none"), len(headers), list(headers)) == (
        "a, b",
        None,
        2,
        ["link", "x-secret"],
    )
    assert "Link" in headers
    assert "s3cr3t" not in repr(headers)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((None, None, None), (b"", None)),
        (({"ä": [1, None]}, None, None), ('{"ä":[1,null]}'.encode(), "application/json")),
        ((None, "ä", None), ("ä".encode(), "text/plain; charset=utf-8")),
        ((None, b"raw", None), (b"raw", None)),
        ((None, None, {"a": "b c", "d": [1, 2]}), (b"a=b+c&d=1&d=2", "application/x-www-form-urlencoded")),
    ],
)
def test_bodies(given: tuple[Any, Any, Any], expected: tuple[bytes, str | None]) -> None:
    """A readable example."""
    assert encode_body(*given) == expected


def test_two_bodies_are_refused() -> None:
    """One of them would be dropped without a word."""
    with pytest.raises(BadValue, match="only one"):
        encode_body({}, "text", None)


def test_json_that_no_parser_reads_is_refused() -> None:
    """NaN is not JSON."""
    with pytest.raises(BadValue, match="json: cannot be written as JSON"):
        encode_body(float("nan"), None, None)


@pytest.mark.parametrize(
    ("content", "content_type", "text"),
    [
        (b"\xc3\xa4", "", "ä"),
        (b"\xe4", "text/html; charset=latin-1", "ä"),
        (b"\xe4", 'text/html; Charset="ISO-8859-1"', "ä"),
        (b"\xc3\xa4", "text/html; charset=klingon", "ä"),
        (b"a\xff", "application/json", "a\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_text_in_any_encoding(content: bytes, content_type: str, text: str) -> None:
    """A reply must not fail a job because of the name of its encoding."""
    assert HttpReply(200, headers={"Content-Type": content_type}, content=content).text == text


@pytest.mark.parametrize("status", [100, 199, 300, 302, 400, 429, 500])
def test_a_status_that_is_no_success_is_raised_with_its_reply(status: int) -> None:
    """Redirects are not followed, so their body is not what was asked for."""
    reply = HttpReply(status, request=HttpRequest("GET", "http://x/a?key=s3cr3t"))
    with pytest.raises(HttpStatusError, match=f"^GET x: status {status}$") as caught:
        reply.raise_for_status()
    assert caught.value.reply is reply


def test_a_success_returns_itself() -> None:
    """Calls can be chained."""
    reply = HttpReply(204, json={"a": 1})
    assert reply.raise_for_status().json() == {"a": 1}
    assert HttpReply(200, text="x").content == b"x"


def test_a_request_shows_its_parameters_and_hides_them_in_logs() -> None:
    """Tests read them; logs must not."""
    request = HttpRequest("GET", "https://maps.example/a?q=x+y&q=z&key=s3cr3t")
    assert request.params == {"q": "z", "key": "s3cr3t"}
    assert (request.host, repr(request)) == ("maps.example", "<GET https://maps.example/a>")


def test_a_timeout_is_a_timeout_for_every_caller() -> None:
    """Code that is written for any client catches TimeoutError."""
    error = ReplyTimeout("no data")
    assert isinstance(error, TimeoutError)
    assert str(error) == "no data"
