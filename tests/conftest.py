"""Shared pieces of the tests: an event loop whose time is a number, and a short way to a running engine."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from voxagent.engine import Engine, EngineSettings
from voxagent.fake import FakeModel, FakeScript


class VirtualSelector(selectors.DefaultSelector):
    """Polls without waiting, and moves the loop's clock on instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        events = super().select(0)
        if not events and timeout:
            self.now_s += timeout
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop under virtual time: a sleep of an hour takes no time at all."""

    def __init__(self) -> None:
        self._virtual = VirtualSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s


def run_virtual(main: Coroutine[Any, Any, Any]) -> Any:
    """Runs a coroutine to its end under virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


@asynccontextmanager
async def fake_engine(
    script: FakeScript | None = None, *, model: FakeModel | None = None, **settings: Any
) -> AsyncIterator[tuple[Engine, FakeModel]]:
    """A started engine over a fake model; closed at the end, and checked to be empty."""
    model = model or FakeModel(script=script)
    engine = Engine(lambda: model, EngineSettings(**{"warm_up": "", **settings}))
    await engine.start()
    try:
        yield engine, model
    finally:
        await engine.aclose()


@pytest.fixture
def virtual() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    return run_virtual


async def eventually(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Waits until a condition holds; fails the test when it never does."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.002)
