"""An agent in a process of its own, and what every benchmark of it does with a caller."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from voxagent.record import Event, read_record
from voxagent_webrtc.caller import Caller

QUESTION = "Tell me a long story about the harbour."
_REPLY_S = 8.0


@dataclass(frozen=True, slots=True)
class AgentProcess:
    """The agent's process."""

    url: str
    records: Path

    def events(self, call: str) -> list[Event]:
        """The record of a call."""
        (path,) = self.records.glob(f"*-{call[:12]}.jsonl")
        return read_record(path)

    async def health(self) -> dict[str, Any]:
        """What the process holds."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/health") as response:
            return dict(await response.json())


@asynccontextmanager
async def agent_process(*options: str) -> AsyncIterator[AgentProcess]:
    """Starts the agent in a process of its own, and ends it."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "voxagent_agent.stand", folder, *options]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        try:
            async with asyncio.timeout(60):
                line = (await process.stdout.readline()).decode().strip()
            if not line.startswith("http"):
                raise ValueError("the agent did not start: `voxagent run` tells why")
            yield AgentProcess(line.rstrip("/"), Path(folder))
        finally:
            with suppress(ProcessLookupError):
                process.terminate()
            try:
                async with asyncio.timeout(20):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()


async def settled(caller: Caller) -> None:
    """Waits until the agent has said hello: its pipeline runs."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + _REPLY_S
    while not any(message.body.get("event") == "hello" for message in caller.messages) and loop.time() < until_s:
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.3)


def ask(caller: Caller) -> None:
    caller.send({"type": "voxagent", "event": "ask", "text": QUESTION})


async def replies(caller: Caller, since_s: float) -> bool:
    """Waits until the bot has begun to answer."""
    loop = asyncio.get_running_loop()
    while not caller.wire.replies or caller.wire.replies[-1].start_s < since_s:
        if loop.time() > since_s + _REPLY_S:
            return False
        await asyncio.sleep(0.01)
    return True


async def hush(caller: Caller) -> None:
    """Stops whatever the bot says, by a message instead of a voice."""
    caller.send({"type": "voxagent", "event": "hush"})
    await asyncio.sleep(0.4)


def origin_s(events: list[Event]) -> float:
    """When a record begins, on the event loop's clock; processes of one machine share that."""
    start = next(event for event in events if event.kind == "start")
    return float(start.fields["clock_s"])
