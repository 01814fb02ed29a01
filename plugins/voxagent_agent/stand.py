"""The agent as the benchmark starts it: `voxagent run`, on request with an event loop that is blocked all the time."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from rich.console import Console

from voxagent_agent.run_command import serve
from voxagent_agent.settings import load_settings

_BLOCKED_S, _EVERY_S = 0.025, 0.1


async def _main(folder: Path, blocked: bool) -> None:
    async def block() -> None:
        while True:
            await asyncio.sleep(_EVERY_S - _BLOCKED_S)
            time.sleep(_BLOCKED_S)  # noqa: ASYNC251 - this is what it is for

    blocking = asyncio.create_task(block()) if blocked else None
    try:
        await serve(Console(stderr=True, quiet=True), load_settings(port=0, calls=8, record_dir=folder, drain_s=0.0))
    finally:
        if blocking is not None:
            blocking.cancel()


if __name__ == "__main__":
    from loguru import logger

    logger.remove()
    logger.add(sys.stderr, level="ERROR")
    asyncio.run(_main(Path(sys.argv[1]), "--block" in sys.argv[2:]))
