"""A language model's API on this machine, for tests: it speaks the wire format of OpenAI and of Anthropic.

    async with model_provider(requests="20 per 2 s", tokens="2000 per 2 s") as it:
        client = AsyncOpenAI(base_url=f"{it.url}/v1", …)          # or AsyncAnthropic(base_url=it.url, …)
        …
        assert it.most_tokens_in_any_window(2) <= 2_000

Its limits hold in every window, as those of `leaseway.testing.provider` do. A call counts what it really uses: the
words of its prompt, and as many tokens of output as `output` says, at most `max_tokens`. What exceeds a limit is
answered with 429 and an error whose type names the limit, as the providers do.
"""

import json
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, NamedTuple

from leaseway.domain.limits.limit import Rate, parse_rate
from leaseway.testing.provider import SECOND_NS, Answer, Provider, ReceivedRequest, serving

OUTPUT_MAX = 1_000
"""Of a request that does not say."""
MESSAGES = "/v1/messages"
"""The path of Anthropic; that of OpenAI ends with /chat/completions."""


class TokenUse(NamedTuple):
    began_ns: int
    ended_ns: int
    input_tokens: int
    output_tokens: int

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens


class ModelProvider(Provider):
    def __init__(self, requests: Sequence[Rate], tokens: Sequence[Rate], seconds: float, output: int) -> None:
        super().__init__(requests)
        self.uses: list[TokenUse] = []
        """The calls that were answered, in the order of their arrival."""
        self._tokens = tokens
        self._seconds = seconds
        self._output = output

    @property
    def tokens(self) -> int:
        """What all calls used together."""
        return sum(use.tokens for use in self.uses)

    def most_tokens_in_any_window(self, window_seconds: float) -> int:
        """The maximum number of tokens within this time, counted at arrival or at completion, whichever is more."""
        window_ns = round(window_seconds * SECOND_NS)
        return max(
            most_tokens(((use.began_ns, use.tokens) for use in self.uses), window_ns),
            most_tokens(((use.ended_ns, use.tokens) for use in self.uses), window_ns),
        )

    def usual(self, request: ReceivedRequest) -> Answer:
        try:
            asked = json.loads(request.body)
            prompt = "\n".join(texts(asked["messages"]))
        except (ValueError, KeyError, TypeError):
            return failure(request, HTTPStatus.BAD_REQUEST, "invalid_request_error", "messages are missing")
        asked_max = asked.get("max_completion_tokens") or asked.get("max_tokens") or OUTPUT_MAX
        now_ns = time.monotonic_ns()
        use = TokenUse(
            now_ns, now_ns + round(self._seconds * SECOND_NS), len(prompt.split()) + 1, min(self._output, asked_max)
        )
        wait_ns = self._tokens_wait_ns(use, now_ns)
        if wait_ns > 0:
            return failure(request, HTTPStatus.TOO_MANY_REQUESTS, "tokens", "too many tokens", -(-wait_ns // 1_000_000))
        self.uses.append(use)
        answer = message if request.path.startswith(MESSAGES) else completion
        body, kind = answer(asked, use)
        return Answer(body=body, headers={"Content-Type": kind, **self._left(now_ns)}, delay_seconds=self._seconds)

    def _tokens_wait_ns(self, use: TokenUse, now_ns: int) -> int:
        """How long until this call would fit, counted at arrival."""
        waits_ns = [0]
        for rate in self._tokens:
            missing, window_ns = use.tokens - rate.count, rate.window_us * 1_000
            recent = [each for each in self.uses if each.began_ns > now_ns - window_ns]
            missing += sum(each.tokens for each in recent)
            for each in recent:
                if missing > 0:
                    waits_ns.append(each.began_ns + window_ns - now_ns)
                missing -= each.tokens
        return max(waits_ns)

    def _left(self, now_ns: int) -> Mapping[str, str]:
        headers = {}
        for rate in self._tokens[:1]:
            recent = [each for each in self.uses if each.began_ns > now_ns - rate.window_us * 1_000]
            headers["x-ratelimit-limit-tokens"] = str(rate.count)
            headers["x-ratelimit-remaining-tokens"] = str(max(rate.count - sum(each.tokens for each in recent), 0))
            headers["x-ratelimit-reset-tokens"] = f"{rate.window_us // 1_000}ms"
        return headers


def texts(messages: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    for each in messages:
        content = each["content"]
        yield content if isinstance(content, str) else " ".join(part.get("text", "") for part in content)


def most_tokens(uses: Iterable[tuple[int, int]], window_ns: int) -> int:
    ordered = sorted(uses)
    most, total, oldest = 0, 0, 0
    for at_ns, tokens in ordered:
        total += tokens
        while ordered[oldest][0] <= at_ns - window_ns:
            total -= ordered[oldest][1]
            oldest += 1
        most = max(most, total)
    return most


# -- the wire formats -------------------------------------------------------------------------------------------------


def reply_text(use: TokenUse) -> str:
    return " ".join(["word"] * use.output_tokens)


def completion(asked: Mapping[str, Any], use: TokenUse) -> tuple[bytes, str]:
    """A chat completion of OpenAI."""
    head = {"id": "chatcmpl-1", "created": 1_700_000_000, "model": asked.get("model", "model")}
    usage = {
        "prompt_tokens": use.input_tokens,
        "completion_tokens": use.output_tokens,
        "total_tokens": use.tokens,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    if not asked.get("stream"):
        said = {"role": "assistant", "content": reply_text(use)}
        choice = {"index": 0, "message": said, "finish_reason": "stop"}
        return encode({**head, "object": "chat.completion", "choices": [choice], "usage": usage}), "application/json"
    chunk = {**head, "object": "chat.completion.chunk"}
    delta = {"index": 0, "delta": {"role": "assistant", "content": reply_text(use)}, "finish_reason": "stop"}
    events = [{**chunk, "choices": [delta]}]
    if (asked.get("stream_options") or {}).get("include_usage"):
        events.append({**chunk, "choices": [], "usage": usage})
    return b"".join(b"data: " + encode(event) + b"\n\n" for event in events) + b"data: [DONE]\n\n", "text/event-stream"


def message(asked: Mapping[str, Any], use: TokenUse) -> tuple[bytes, str]:
    """A message of Anthropic."""
    whole = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": asked.get("model", "model"),
        "stop_reason": "end_turn", "stop_sequence": None, "content": [{"type": "text", "text": reply_text(use)}],
        "usage": {"input_tokens": use.input_tokens, "output_tokens": use.output_tokens},
    }  # fmt: skip
    if not asked.get("stream"):
        return encode(whole), "application/json"
    begun = {**whole, "content": [], "usage": {"input_tokens": use.input_tokens, "output_tokens": 1}}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": begun},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": reply_text(use)}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": use.output_tokens},
        },
        {"type": "message_stop"},
    ]
    return b"".join(
        b"event: " + str(event["type"]).encode() + b"\ndata: " + encode(event) + b"\n\n" for event in events
    ), "text/event-stream"


def failure(request: ReceivedRequest, status: int, kind: str, text: str, wait_ms: int = 0) -> Answer:
    error: dict[str, Any] = {"type": kind, "message": text}
    if request.path.startswith(MESSAGES):
        body: dict[str, Any] = {"type": "error", "error": {**error, "type": "rate_limit_error" if wait_ms else kind}}
    else:
        body = {"error": {**error, "code": "rate_limit_exceeded" if wait_ms else None}}
    headers = {"retry-after-ms": str(wait_ms), "retry-after": str(-(-wait_ms // 1_000))} if wait_ms else {}
    return Answer(status, encode(body), headers)


def encode(body: object) -> bytes:
    return json.dumps(body).encode()


@asynccontextmanager
async def model_provider(
    requests: str = "", tokens: str = "", *, seconds: float = 0.0, output: int = 20
) -> AsyncIterator[ModelProvider]:
    """A model with these limits, each like "20 per 2 s", for the duration of the block. `seconds`: how long a call
    takes. `output`: the tokens of each reply, if `max_tokens` permits them."""
    rates = [[parse_rate(name, rate)] if rate else [] for name, rate in (("requests", requests), ("tokens", tokens))]
    async with serving(ModelProvider(rates[0], rates[1], seconds, output)) as it:
        yield it
