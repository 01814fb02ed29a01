"""Medians, percentiles, load and memory, the same way in every benchmark."""

from __future__ import annotations

import asyncio
import os
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def spread(values: Iterable[float | None]) -> dict[str, Any]:
    """Median, 95th percentile, minimum, maximum and count of what was measured."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return {"median": None, "p95": None, "min": None, "max": None, "n": 0}
    p95 = known[min(len(known) - 1, round(0.95 * (len(known) - 1)))]
    figures = {"median": statistics.median(known), "p95": p95, "min": known[0], "max": known[-1]}
    return {name: round(value, 2) for name, value in figures.items()} | {"n": len(known)}


def ratio(one: float | int | None, other: float | int | None) -> float | None:
    """`one / other`, or None when either was not measured."""
    return round(one / other, 3) if one is not None and other else None


def machine() -> dict[str, Any]:
    """Cores and load, to be noted beside every timing."""
    return {"cores": os.cpu_count(), "load_1m": round(os.getloadavg()[0], 2)}


def memory_mb() -> float:
    """Resident memory of this process, MB; 0 where the system does not tell."""
    status = Path("/proc/self/statm")
    if not status.exists():
        return 0.0
    return int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


class LoopProbe:
    """Wakes every 5 ms and notes how late the event loop was."""

    def __init__(self) -> None:
        self.late_ms: list[float] = []
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> LoopProbe:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + 0.005
            await asyncio.sleep(0.005)
            self.late_ms.append(max(0.0, 1000 * (loop.time() - due_s)))

    def percentile(self, share: float) -> float | None:
        """The lateness that `share` of the wakes stayed below, ms."""
        late = sorted(self.late_ms)
        return round(late[min(len(late) - 1, int(share * len(late)))], 2) if late else None
