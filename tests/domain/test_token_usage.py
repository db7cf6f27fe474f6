"""What the bodies of replies say that a call used."""

import json
from typing import Any

import pytest

from leaseway import Usage
from leaseway.domain.limits.token_usage import read_usage

OPENAI = {"prompt_tokens": 30, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 10}}
RESPONSE = {"input_tokens": 30, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 10}}
ANTHROPIC = {
    "input_tokens": 20, "output_tokens": 5, "cache_read_input_tokens": 10, "cache_creation_input_tokens": 3,
}  # fmt: skip
GEMINI = {
    "promptTokenCount": 30, "cachedContentTokenCount": 10, "candidatesTokenCount": 3, "thoughtsTokenCount": 2,
}  # fmt: skip


def stream(*events: object) -> bytes:
    return (
        b"".join(b"event: x\ndata: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"
    )


@pytest.mark.parametrize(
    ("body", "usage"),
    [
        ({"model": "gpt", "usage": OPENAI}, Usage(20, 5, 10, 0, "gpt")),
        ({"model": "gpt", "usage": RESPONSE}, Usage(20, 5, 10, 0, "gpt")),
        ({"model": "claude", "usage": ANTHROPIC}, Usage(20, 5, 10, 3, "claude")),
        ({"modelVersion": "gemini", "usageMetadata": GEMINI}, Usage(20, 5, 10, 0, "gemini")),
        ({"usage": {"prompt_tokens": 8}}, Usage(8)),
        ({"usage": {"prompt_tokens": 8, "prompt_tokens_details": {"cached_tokens": 9}}}, Usage(0, 0, 9)),
    ],
)
def test_every_token_is_counted_once(body: Any, usage: Usage) -> None:
    """OpenAI and Gemini include cached tokens in their input, Anthropic does not: a sum would count them twice, or
    never."""
    assert read_usage(json.dumps(body).encode(), "application/json") == usage


@pytest.mark.parametrize(
    ("events", "usage"),
    [
        ([{"usage": None, "model": "gpt"}, {"usage": OPENAI, "model": "gpt"}], Usage(20, 5, 10, 0, "gpt")),
        (
            [{"response": {"usage": None}}, {"response": {"usage": RESPONSE, "model": "gpt"}}],
            Usage(20, 5, 10, 0, "gpt"),
        ),
        (
            [
                {"message": {"model": "claude", "usage": {**ANTHROPIC, "output_tokens": 1}}},
                {"usage": {"output_tokens": 5}},
            ],
            Usage(20, 5, 10, 3, "claude"),
        ),
    ],
)
def test_the_usage_of_a_stream_is_that_of_its_last_events(events: list[Any], usage: Usage) -> None:
    """Their first events say what was used until then."""
    assert read_usage(stream(*events), "text/event-stream; charset=utf-8") == usage


@pytest.mark.parametrize(
    "body",
    [
        b"", b"\xff\xfe", b"null", b"[]", b'"usage"', b"[1, [2]]", b"[" * 100_000,
        b'{"usage": null}', b'{"usage": []}', b'{"usage": {}}', b'{"usage": {"completion_tokens": 8}}',
        b'{"usage": {"prompt_tokens": "8"}}', b'{"usage": {"prompt_tokens": -8}}',
        b'{"usage": {"prompt_tokens": true}}',
    ],
)  # fmt: skip
def test_a_body_without_usage_has_none(body: bytes) -> None:
    """Zero would make the call free; None charges it in full."""
    assert read_usage(body) is None
    assert read_usage(b"data: " + body, "text/event-stream") is None
