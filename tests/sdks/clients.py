"""The clients of the official SDKs, imported by the first test that needs one: the import takes seconds, and every
process of pytest imports every test module.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anthropic import Anthropic, AsyncAnthropic
    from openai import AsyncOpenAI, OpenAI


def async_openai(**settings: Any) -> "AsyncOpenAI":
    from openai import AsyncOpenAI

    return AsyncOpenAI(**settings)


def openai_client(**settings: Any) -> "OpenAI":
    from openai import OpenAI

    return OpenAI(**settings)


def async_anthropic(**settings: Any) -> "AsyncAnthropic":
    from anthropic import AsyncAnthropic

    return AsyncAnthropic(**settings)


def anthropic_client(**settings: Any) -> "Anthropic":
    from anthropic import Anthropic

    return Anthropic(**settings)
