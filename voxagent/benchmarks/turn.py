"""`voxagent bench turn`: how fast a turn starts, stops and starts again; how many fit; what an interrupt leaves."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from voxagent.benchmarks.figures import LoopProbe, machine, memory_mb, ratio, spread
from voxagent.device import PacedDevice
from voxagent.engine import Engine
from voxagent.model import Pcm
from voxagent.output import VoiceOutput
from voxagent.say import DEVICE_FRAME_MS, DEVICE_RATE, tokens
from voxagent.turn import Session

# Every first phrase here is one clause, so that its length in words is exactly what the table asks for.
FIVE_WORDS = (
    "I can help you there.",
    "Your order left this morning.",
    "We open again at nine.",
    "That will not take long.",
)
TEN_WORDS = (
    "The next train to the coast leaves at seven tonight.",
    "You can change the booking online until the evening before.",
    "Our team will call you back within the next hour.",
    "Please keep the small red card with you at night.",
)
REST = (
    " After that there is more to tell, because a good answer has several parts. The first part is about the plan, "
    "and the second one is about the people who carry it out. Nobody has to decide anything today. We can go "
    "through the details again tomorrow, when everybody has had the time to read them in peace and quiet."
)

TOKENS_PER_S = 25.0

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Extent:
    """How much to measure: turns a figure, interrupts of the leak check, seconds of many turns at once."""

    turns: int = 20
    interrupts: int = 1000
    seconds: float = 12.0


@dataclass(frozen=True, slots=True)
class TurnFigures:
    """One measured turn, milliseconds; `step_ratio` is a ratio."""

    first_phrase_ms: float
    ttfa_ms: float
    silence_ms: float
    model_idle_ms: float | None
    step_ratio: float | None
    cpu_after_ms: float


class _Listener:
    """A device that plays all the time, and the turns that go through it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.output = VoiceOutput(DEVICE_RATE, DEVICE_FRAME_MS)
        self.device = PacedDevice(self.output)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> _Listener:
        self._task = asyncio.create_task(self.device.run())
        await asyncio.sleep(0.05)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.device.stop()
        assert self._task is not None
        await self._task

    async def turn(self, text: str, interrupt_after_s: float) -> TurnFigures:
        """Streams a text and cuts it `interrupt_after_s` after its first sample."""
        loop = asyncio.get_running_loop()
        session = self.engine.open()
        self.output.play(session)
        begun_s = loop.time()
        phrase_s: asyncio.Future[float] = loop.create_future()
        feeding = asyncio.create_task(_feed(session, text, phrase_s))
        while (audible_s := self.device.first_audible_s(begun_s)) is None and not session.exhausted:
            await asyncio.sleep(0.002)
        if audible_s is None:
            raise session.error or RuntimeError(f"the benchmark's turn made no sound: {text[:40]!r}")
        await asyncio.sleep(interrupt_after_s)
        cut_s, cpu_s = loop.time(), time.process_time()
        self.output.interrupt()
        feeding.cancel()
        await session.released()
        await asyncio.sleep(0.1)
        cpu_ms = 1000 * (time.process_time() - cpu_s)
        last_s = self.device.last_audible_s() or cut_s
        return TurnFigures(
            first_phrase_ms=1000 * (audible_s - phrase_s.result()),
            ttfa_ms=1000 * (audible_s - begun_s),
            silence_ms=max(0.0, 1000 * (last_s - cut_s)),
            model_idle_ms=session.stats.cancel_ms,
            step_ratio=_step_ratio(self.device, cut_s),
            cpu_after_ms=cpu_ms,
        )


async def _feed(session: Session, text: str, phrase_s: asyncio.Future[float]) -> None:
    """Streams a text like an LLM; tells when the token came that completed the first phrase."""
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    for index, token in enumerate(tokens(text)):
        await asyncio.sleep(max(0.0, begun_s + index / TOKENS_PER_S - loop.time()))
        now_s = loop.time()
        session.push_text(token)
        if not phrase_s.done() and session.stats.phrases:
            phrase_s.set_result(now_s)
    session.end_input()


def _step_ratio(device: PacedDevice, cut_s: float) -> float | None:
    """Largest sample step from the cut on, over the largest of the half second before: above 1 is a click."""
    before = [frame.pcm for frame in device.played if cut_s - 0.5 <= frame.at_s <= cut_s]
    after = [frame.pcm for frame in device.played if frame.at_s > cut_s]
    if not before or not after:
        return None
    speech, fade = np.concatenate(before), np.concatenate([before[-1][-1:], *after])
    own = _largest_step(speech)
    return round(_largest_step(fade) / own, 3) if own > 1e-3 else None


def _largest_step(pcm: Pcm) -> float:
    return float(np.abs(np.diff(pcm)).max()) if len(pcm) > 1 else 0.0


async def first_phrases(listener: _Listener, turns: int) -> dict[str, Any]:
    """First audio of turns that begin with 5 and with 10 words."""
    figures: dict[str, Any] = {}
    for name, phrases in (("5_words", FIVE_WORDS), ("10_words", TEN_WORDS)):
        measured = []
        for index in range(turns):
            text = phrases[index % len(phrases)] + REST
            measured.append(await listener.turn(text, interrupt_after_s=0.3))
            await asyncio.sleep(0.1)
        figures[name] = spread(one.first_phrase_ms for one in measured)
    return figures


async def interruptions(listener: _Listener, turns: int) -> dict[str, Any]:
    """Turns cut at random points, each followed at once by another."""
    rng = random.Random(1)
    idle, cut, after, busy_idle_ms = [], [], [], []
    for index in range(turns):
        phrase = FIVE_WORDS[index % len(FIVE_WORDS)]
        text = phrase + REST
        await asyncio.sleep(0.3)
        idle.append(await listener.turn(text, interrupt_after_s=0.2))
        await asyncio.sleep(0.3)
        cut.append(await listener.turn(text, interrupt_after_s=rng.uniform(0.05, 3.0)))
        figures, idle_ms = await _right_after(listener, text, phrase, rng.uniform(0.0, 0.15))
        after.append(figures)
        busy_idle_ms.append(idle_ms)
    first_ms, after_ms = spread(t.first_phrase_ms for t in idle), spread(t.first_phrase_ms for t in after)
    return {
        "silence_ms": spread(t.silence_ms for t in cut),
        "model_idle_ms": spread([*(t.model_idle_ms for t in cut + after), *busy_idle_ms]),
        "model_idle_when_busy_ms": spread(busy_idle_ms),
        "click_ratio": spread(t.step_ratio for t in cut),
        "cpu_after_ms": spread(t.cpu_after_ms for t in cut),
        "first_phrase_idle_ms": first_ms,
        "first_phrase_after_interrupt_ms": after_ms,
        "after_over_idle": ratio(after_ms["median"], first_ms["median"]),
    }


async def _right_after(listener: _Listener, text: str, phrase: str, after_s: float) -> tuple[TurnFigures, float | None]:
    """Interrupts a turn while the model works on it, and begins the measured one without a pause.

    Returns:
        The measured turn, and how long the model took to let go of the one before it.
    """
    session = listener.engine.open()
    listener.output.play(session)
    session.push_text(phrase)
    session.flush()
    await asyncio.sleep(after_s)
    listener.output.interrupt()
    figures = await listener.turn(text, interrupt_after_s=0.2)
    return figures, session.stats.cancel_ms


async def at_once(engine: Engine, count: int, seconds: float) -> dict[str, Any]:
    """`count` real-time turns at once; every one is heard by a device of its own."""
    outputs = [VoiceOutput(DEVICE_RATE, 20) for _ in range(count)]
    devices = [PacedDevice(output) for output in outputs]
    sessions = []
    async with LoopProbe() as probe, asyncio.TaskGroup() as group:
        for device in devices:
            group.create_task(device.run())
        for index, output in enumerate(outputs):
            session = engine.open()
            sessions.append(session)
            output.play(session)
            session.push_text(TEN_WORDS[index % len(TEN_WORDS)] + REST * 3)
            session.end_input()
            await asyncio.sleep(0.15)
        await asyncio.sleep(seconds)
        underruns = sum(output.playout.stats.underruns for output in outputs)
        speech_s = sum(output.playout.stats.handed_samples for output in outputs) / DEVICE_RATE
        for device, output in zip(devices, outputs, strict=True):
            output.interrupt()
            device.stop()
    for session in sessions:
        await session.released()
    return {
        "turns": count,
        "underruns": underruns,
        "speech_s": round(speech_s, 1),
        "loop_late_p99_ms": probe.percentile(0.99),
    }


async def many_interrupts(engine: Engine, count: int) -> dict[str, Any]:
    """Interrupts at random points, without a listener: what is left behind."""
    rng = random.Random(2)
    base_mb, last = memory_mb(), count + count // 10 - 1
    for index in range(last + 1):
        if index == count // 10:  # The first tenth warms the allocator up.
            base_mb = memory_mb()
        session = engine.open()
        session.push_text(rng.choice(FIVE_WORDS + TEN_WORDS) + REST)
        for _ in range(rng.randrange(4)):
            await anext(session, None)
        await asyncio.sleep(rng.uniform(0, 0.03))
        session.interrupt()
        if rng.random() < 0.5 or index == last:
            await session.released()
    stats = engine.stats
    return {
        "interrupts": count,
        "sessions": stats.sessions,
        "slots_taken": stats.slots_taken,
        "queued_phrases": stats.queued_phrases,
        "memory_growth_mb": round(memory_mb() - base_mb, 2),
    }


async def synthesis(engine: Engine) -> dict[str, Any]:
    """Renders as fast as possible: model time a second of audio, and how much the event loop suffers."""
    busy_s, samples = engine.stats.busy_s, 0
    async with LoopProbe() as probe:
        for _ in range(3):
            session = engine.open()
            session.push_text(TEN_WORDS[0] + REST)
            session.end_input()
            async for chunk in session:
                samples += len(chunk.pcm)
    audio_s = samples / engine.spec.sample_rate
    return {
        "rtf": ratio(engine.stats.busy_s - busy_s, audio_s),
        "loop_late_p99_ms": probe.percentile(0.99),
        "loop_late_max_ms": probe.percentile(1.0),
    }


async def measure(engine: Engine, extent: Extent, progress: Progress) -> dict[str, Any]:
    """Runs every part over a started engine."""
    figures: dict[str, Any] = {"model": engine.spec.name, "before": machine()}
    async with _Listener(engine) as listener:
        progress("first phrases of 5 and 10 words")
        figures["first_phrase_ms"] = await first_phrases(listener, extent.turns)
        progress("interruptions at random points")
        figures["interrupt"] = await interruptions(listener, extent.turns)
    progress("synthesis beside the event loop")
    figures["synthesis"] = await synthesis(engine)
    figures["at_once"] = []
    for count in (count for count in (4, 8, 10) if count <= engine.spec.slots):
        progress(f"{count} real-time turns at once")
        figures["at_once"].append(await at_once(engine, count, extent.seconds))
    progress(f"{extent.interrupts} interrupts")
    figures["many_interrupts"] = await many_interrupts(engine, extent.interrupts)
    figures["after"] = machine()
    return figures
