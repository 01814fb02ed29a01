"""The agent's language model: an OpenAI-compatible endpoint, or the offline agent."""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

from urllib.parse import urlsplit

from pipecat.processors.frame_processor import FrameProcessor

from voxagent_agent.offline import OfflineLLM
from voxagent_agent.settings import AgentSettings

# Servers on one's own machine ask for none, and clients send one all the same.
_NO_KEY = "none"


def check_url(url: str) -> None:
    """Refuses what is no address of an endpoint.

    Raises:
        ValueError: With the form it should have.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"llm_url is {url!r}: it has the form http://127.0.0.1:11434/v1")


def language_model(settings: AgentSettings) -> FrameProcessor:
    """The language model of one call.

    Raises:
        ValueError: The URL is none.
    """
    if settings.llm_url is None:
        return OfflineLLM(settings.offline_tokens_per_s, settings.offline_first_token_s)
    check_url(settings.llm_url)
    from pipecat.services.openai.llm import OpenAILLMService

    key = settings.llm_key.get_secret_value() if settings.llm_key is not None else _NO_KEY
    return OpenAILLMService(
        api_key=key,
        base_url=settings.llm_url,
        settings=OpenAILLMService.Settings(model=settings.llm_model),
    )
