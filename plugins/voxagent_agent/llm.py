"""The agent's language model: an OpenAI-compatible endpoint, or the offline agent."""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

from urllib.parse import urlsplit

from pipecat.processors.frame_processor import FrameProcessor

from voxagent_agent.offline import OfflineLLM
from voxagent_agent.settings import AgentSettings

# Servers on one's own machine ask for none, and clients send one all the same.
_NO_KEY = "none"


def language_model(settings: AgentSettings) -> FrameProcessor:
    """The language model of one call."""
    if settings.llm_url is None:
        return OfflineLLM(settings.offline_tokens_per_s, settings.offline_first_token_s)
    from pipecat.services.openai.llm import OpenAILLMService

    key = settings.llm_key.get_secret_value() if settings.llm_key is not None else _NO_KEY
    service = OpenAILLMService(
        api_key=key,
        base_url=settings.llm_url,
        settings=OpenAILLMService.Settings(model=settings.llm_model),
    )
    # Notes about interruptions have the role "developer", which most other servers refuse.
    service.supports_developer_role = urlsplit(settings.llm_url).hostname == "api.openai.com"
    return service
