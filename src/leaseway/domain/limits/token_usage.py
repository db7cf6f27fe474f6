"""What the reply of a language model says that a call used. Pure.

    OpenAI      "usage" of a chat completion, a response or an embedding; in streams of the last event that has one
    Anthropic   "usage" of a message; in streams of message_start and message_delta together
    Gemini      "usageMetadata"

A reply that has none of them has no usage, and nothing is guessed.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

EVENTS_MAX = 1_000_000
"""Of one stream."""


class Usage(Struct, frozen=True):
    """The tokens of one call. Every token is in one of the four numbers, whatever the provider's own fields overlap.

    `input_tokens`: neither read from a cache of the provider nor written to it. `model`: as the reply names it.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    model: str = ""

    @property
    def all_input_tokens(self) -> int:
        """What limits count. Some providers do not count what they read from a cache; they count less than this."""
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens

    @property
    def total_tokens(self) -> int:
        return self.all_input_tokens + self.output_tokens


def read_usage(content: bytes, content_type: str = "") -> Usage | None:
    """The usage in the body of a reply. None: the body has none."""
    found: dict[str, Any] = {}
    model = ""
    for body in parse_stream(content) if "event-stream" in content_type else parse_json(content):
        for part in (body, body.get("response"), body.get("message")):
            if not isinstance(part, Mapping):
                continue
            model = next((part[key] for key in ("model", "modelVersion") if isinstance(part.get(key), str)), model)
            said = part.get("usage") or part.get("usageMetadata")
            if isinstance(said, Mapping):
                found |= {key: value for key, value in said.items() if value is not None}
    return parse_usage(found, model)


def parse_json(content: bytes) -> Iterator[dict[str, Any]]:
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):  # not JSON, or nested too deeply
        return
    yield from (each for each in (body if isinstance(body, list) else [body]) if isinstance(each, dict))


def parse_stream(content: bytes) -> Iterator[dict[str, Any]]:
    """The bodies of server-sent events."""
    for line in content.splitlines()[:EVENTS_MAX]:
        name, _, text = line.partition(b":")
        if name.strip() == b"data":
            yield from parse_json(text)


def parse_usage(said: Mapping[str, Any], model: str) -> Usage | None:
    if is_count(said.get("promptTokenCount")):
        cached = count(said, "cachedContentTokenCount")
        output = count(said, "candidatesTokenCount") + count(said, "thoughtsTokenCount")
        return Usage(uncached(count(said, "promptTokenCount"), cached), output, cached, 0, model)
    if is_count(said.get("prompt_tokens")):
        cached = count(said.get("prompt_tokens_details"), "cached_tokens")
        return Usage(uncached(count(said, "prompt_tokens"), cached), count(said, "completion_tokens"), cached, 0, model)
    if not is_count(said.get("input_tokens")):
        return None
    if "input_tokens_details" in said:  # of a response of OpenAI, where the input includes what was cached
        cached = count(said["input_tokens_details"], "cached_tokens")
        return Usage(uncached(count(said, "input_tokens"), cached), count(said, "output_tokens"), cached, 0, model)
    return Usage(
        count(said, "input_tokens"),
        count(said, "output_tokens"),
        count(said, "cache_read_input_tokens"),
        count(said, "cache_creation_input_tokens"),
        model,
    )


def uncached(all_input: int, cached: int) -> int:
    return max(all_input - cached, 0)


def count(said: Any, key: str) -> int:
    value = said.get(key) if isinstance(said, Mapping) else None
    return value if isinstance(value, int) and is_count(value) else 0


def is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
