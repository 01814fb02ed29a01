"""Speaks one text the way an agent would: tokens in, a paced device out, everything measured."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from voxagent.device import PacedDevice
from voxagent.engine import Engine
from voxagent.ledger import Heard
from voxagent.model import Pcm, SpeechOptions
from voxagent.output import VoiceOutput
from voxagent.reading import PLAIN, Reading
from voxagent.session import AudioChunk
from voxagent.turn import Session

DEVICE_RATE = 48000
DEVICE_FRAME_MS = 10
_TOKEN = re.compile(r"\s*\S{1,5}|\s+")


@dataclass(frozen=True, slots=True)
class Saying:
    """What to say and how.

    Attributes:
        text: Written text.
        tokens_per_s: Speed of the stand-in LLM; 0 gives the text at once and renders faster than real time.
        interrupt_after_s: Seconds of audible speech after which the listener interrupts; None for never.
        voice: Name or path; None for the default.
        options: Language and speed.
        seed: For repeatable audio.
        reading: How the text is read where tastes differ.
    """

    text: str
    tokens_per_s: float = 25.0
    interrupt_after_s: float | None = None
    voice: str | None = None
    options: SpeechOptions = field(default_factory=SpeechOptions)
    seed: int | None = None
    reading: Reading = PLAIN


@dataclass(frozen=True, slots=True)
class Said:
    """What came of it.

    Attributes:
        pcm: What the device played from the first sample of speech on, float32 at `sample_rate`.
        sample_rate: Hz.
        figures: The measures, ready for JSON.
        error: Why the turn failed, if it did.
    """

    pcm: Pcm
    sample_rate: int
    figures: dict[str, Any]
    error: Exception | None


def tokens(text: str) -> Iterable[str]:
    """Cuts a text roughly the way an LLM's tokens would."""
    return _TOKEN.findall(text)


@dataclass(slots=True)
class _Clock:
    """Moments of the turn on the loop's clock."""

    first_token_s: float | None = None
    first_phrase_s: float | None = None
    interrupt_s: float | None = None


async def say(engine: Engine, saying: Saying, on_phrase: Callable[[AudioChunk], None] | None = None) -> Said:
    """Speaks a text over a device in real time; faster than real time when the text comes at once."""
    session = engine.open(saying.voice, saying.options, seed=saying.seed, reading=saying.reading)
    if saying.tokens_per_s <= 0 and saying.interrupt_after_s is None:
        return await _render(session, saying, on_phrase)
    return await _perform(engine, session, saying, on_phrase)


async def _render(session: Session, saying: Saying, on_phrase: Callable[[AudioChunk], None] | None) -> Said:
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    session.push_text(saying.text)
    session.end_input()
    chunks: list[AudioChunk] = []
    error: Exception | None = None
    try:
        async for chunk in session:
            chunks.append(chunk)
            if chunk.first and on_phrase is not None:
                on_phrase(chunk)
    except Exception as failure:
        error = failure
    await session.released()
    pcm = np.concatenate([np.zeros(0, np.float32), *(chunk.pcm for chunk in chunks)])
    figures = _speech_figures(chunks, session.spec.sample_rate)
    audio_s = figures["audio_s"]
    figures["rtf"] = round((loop.time() - started_s) / audio_s, 4) if audio_s else None
    figures["ttfb_ms"] = session.stats.ttfb_ms
    return Said(pcm, session.spec.sample_rate, figures, error)


async def _perform(
    engine: Engine,
    session: Session,
    saying: Saying,
    on_phrase: Callable[[AudioChunk], None] | None,
) -> Said:
    output = VoiceOutput(DEVICE_RATE, DEVICE_FRAME_MS)
    device, clock = PacedDevice(output), _Clock()
    chunks: list[AudioChunk] = []

    def note(chunk: AudioChunk) -> None:
        chunks.append(chunk)
        if chunk.first and on_phrase is not None:
            on_phrase(chunk)

    output.play(session, note)
    busy_s = engine.stats.busy_s
    async with asyncio.TaskGroup() as group:
        group.create_task(device.run())
        feeding = group.create_task(_feed(session, saying, clock))
        await _listen(output, device, session, saying, clock)
        feeding.cancel()
        device.stop()
    await session.released()
    figures = _speech_figures(chunks, session.spec.sample_rate)
    audio_s = figures["audio_s"]
    figures["rtf"] = round((engine.stats.busy_s - busy_s) / audio_s, 4) if audio_s else None
    figures["underruns"] = output.playout.stats.underruns
    figures |= _latencies(device, clock)
    if clock.interrupt_s is not None:
        figures |= _interruption(device, session, clock.interrupt_s)
    return Said(_from_first_sound(device.pcm), DEVICE_RATE, figures, session.error)


async def _feed(session: Session, saying: Saying, clock: _Clock) -> None:
    loop = asyncio.get_running_loop()
    start_s = loop.time()
    for index, token in enumerate(tokens(saying.text)):
        if saying.tokens_per_s > 0:
            await asyncio.sleep(max(0.0, start_s + index / saying.tokens_per_s - loop.time()))
        now_s = loop.time()
        if clock.first_token_s is None:
            clock.first_token_s = now_s
        session.push_text(token)
        if clock.first_phrase_s is None and session.stats.phrases:
            clock.first_phrase_s = now_s
    now_s = loop.time()
    session.end_input()
    if clock.first_phrase_s is None and session.stats.phrases:
        clock.first_phrase_s = now_s


async def _listen(output: VoiceOutput, device: PacedDevice, session: Session, saying: Saying, clock: _Clock) -> None:
    """Waits for the end of the turn, or interrupts it and waits for silence."""
    loop = asyncio.get_running_loop()
    while not (output.idle and session.exhausted):
        await asyncio.sleep(DEVICE_FRAME_MS / 1000)
        if saying.interrupt_after_s is None or clock.interrupt_s is not None:
            continue
        begun_s = device.first_audible_s()
        if begun_s is not None and loop.time() >= begun_s + saying.interrupt_after_s:
            clock.interrupt_s = loop.time()
            output.interrupt()
    await asyncio.sleep(0.1)


def _latencies(device: PacedDevice, clock: _Clock) -> dict[str, Any]:
    audible_s = device.first_audible_s()

    def since(moment_s: float | None) -> float | None:
        return None if audible_s is None or moment_s is None else round(1000 * (audible_s - moment_s), 1)

    return {"ttfa_ms": since(clock.first_token_s), "first_phrase_ms": since(clock.first_phrase_s)}


def _interruption(device: PacedDevice, session: Session, at_s: float) -> dict[str, Any]:
    last_s = device.last_audible_s()
    heard: Heard = session.transcript()
    cancel_ms = session.stats.cancel_ms
    return {
        "silence_ms": round(max(0.0, 1000 * ((last_s or at_s) - at_s)), 1),
        "model_idle_ms": round(cancel_ms, 1) if cancel_ms is not None else 0.0,
        "heard": heard.heard,
        "partly": heard.partly,
        "unheard": heard.unheard,
    }


def _speech_figures(chunks: list[AudioChunk], rate: int) -> dict[str, Any]:
    phrases: list[dict[str, Any]] = []
    words: list[dict[str, Any]] = []
    for chunk in chunks:
        if chunk.first:
            start_ms = round(1000 * chunk.start_sample / rate, 1)
            texts = {"text": chunk.phrase.text, "spoken": chunk.phrase.spoken}
            phrases.append({**texts, "start_ms": start_ms, "audio_ms": 0.0})
        phrases[-1]["audio_ms"] = round(phrases[-1]["audio_ms"] + 1000 * len(chunk.pcm) / rate, 1)
        for word in chunk.words:
            span = {"start_ms": 1000 * word.start_sample / rate, "end_ms": 1000 * word.end_sample / rate}
            words.append({"text": word.text, **{key: round(value, 1) for key, value in span.items()}})
    samples = sum(len(chunk.pcm) for chunk in chunks)
    return {"audio_s": round(samples / rate, 3), "phrases": phrases, "words": words, "underruns": 0}


def _from_first_sound(pcm: Pcm) -> Pcm:
    sounding = np.flatnonzero(pcm)
    return pcm[sounding[0] : sounding[-1] + 1] if len(sounding) else pcm[:0]
