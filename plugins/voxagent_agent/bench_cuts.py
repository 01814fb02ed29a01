"""Cuts at random points: words that the agent takes for heard against words received, and audio after the cut."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from voxagent.benchmarks.figures import spread
from voxagent.engine import Engine
from voxagent.pcm import Pcm, resample, to_float32, to_int16
from voxagent.record import Event
from voxagent_agent.bench_agent import AgentProcess, ask, hush, origin_s, replies, settled
from voxagent_agent.sounds import Clip
from voxagent_webrtc.caller import Caller
from voxagent_webrtc.plot import RATE, Recording

_CUTTERS = 2
# The voice's words end in sound too soft to be counted as audible.
_TAIL_S = 0.06
# The fade, one packet, and what the codec holds back.
_CODEC_S = 0.06
# So much of the ending is looked for, at this rate; it is the one when it is at least so much alike.
_ENDING_S = 0.4
_MATCH_HZ = 8000
_ALIKE = 0.3


async def measure_cuts(agent: AgentProcess, speech: Sequence[Clip], count: int, voice: Engine) -> dict[str, Any]:
    """Cuts at random points, two callers at once: words against audio, and audio that should not be there."""
    each = -(-count // _CUTTERS)
    seeds = range(20, 20 + _CUTTERS)
    calls = await asyncio.gather(*(_random_cuts(agent, speech, each, seed) for seed in seeds))
    found = [cut for caller, events in calls for cut in _cut_turns(caller, events)]
    # Nobody is on the line any more: this takes both cores.
    played = [await _words_played(voice, cut) for cut in found]
    off = [cut.committed - words for cut, words in zip(found, played, strict=True) if words is not None]
    return {
        "cuts": len(found),
        "old_turn_audio_ms": round(sum(cut.stray_ms for cut in found), 1),
        "cuts_with_old_audio": sum(cut.stray_ms > 0 for cut in found),
        "words_off": spread([float(words) for words in off]),
        "words_off_by_at_most_1": round(sum(abs(words) <= 1 for words in off) / len(off), 3) if off else None,
        "words_claimed_but_not_played": sum(words > 0 for words in off),
        "compared": len(off),
    }


async def _random_cuts(
    agent: AgentProcess, speech: Sequence[Clip], count: int, seed: int
) -> tuple[Caller, list[Event]]:
    rng, loop = random.Random(seed), asyncio.get_running_loop()
    async with await Caller.connect(agent.url) as caller:
        await settled(caller)
        for _ in range(count):
            asked_s = loop.time()
            ask(caller)
            if await replies(caller, asked_s):
                await asyncio.sleep(rng.uniform(0.05, 2.5))
                caller.say(rng.choice(list(speech)).first(1.1).pcm, loop.time() + 0.02)
                await asyncio.sleep(1.9)
            await hush(caller)
        call = caller.call_id
    await asyncio.sleep(0.5)
    return caller, agent.events(call)


@dataclass(frozen=True, slots=True)
class _CutTurn:
    """A turn that was cancelled by the caller's voice.

    Attributes:
        committed: Words that the agent takes for heard.
        phrases: What it said, as it was cut for the voice.
        seed: Of the voice's noise.
        ending: The last that the caller received of it.
        stray_ms: Audio between the decision and the next turn.
    """

    committed: int
    phrases: list[str]
    seed: int
    ending: Pcm
    stray_ms: float


def _cut_turns(caller: Caller, events: list[Event]) -> list[_CutTurn]:
    recording, start_s = caller.wire.by_timestamp(), origin_s(events)
    began: dict[int, float] = {}
    for event in events:
        if event.kind == "phrase":
            began.setdefault(event.fields["turn"], start_s + event.at_s)
    found = []
    for place, event in enumerate(events):
        if event.kind != "cut" or event.fields["turn"] not in began:
            continue
        turn, cut_s = event.fields["turn"], start_s + event.at_s
        steps = [one for one in events[:place] if one.kind == "decision" and start_s + one.at_s > began[turn]]
        if not steps or steps[-1].fields["action"] != "cancel":
            continue
        decided_s = start_s + steps[-1].at_s
        next_s = min((at_s for other, at_s in began.items() if other > turn), default=cut_s + 1.5)
        last_s = recording.last_audible_before(decided_s + _CODEC_S)
        if last_s is None:
            continue
        ending = to_float32(recording.between(max(began[turn], last_s - _ENDING_S), last_s))
        said = [one.fields for one in events if one.kind == "phrase" and one.fields["turn"] == turn]
        phrases, seed = [one["text"] for one in said], said[0]["seed"]
        stray_ms = _audible_ms(recording, decided_s + _CODEC_S, next_s)
        found.append(_CutTurn(len(str(event.fields["heard"]).split()), phrases, seed, ending, stray_ms))
    return found


async def _words_played(voice: Engine, cut: _CutTurn) -> int | None:
    """Words of the turn that end within what the caller received; None when it cannot be found in the turn.

    The turn is spoken again, the same to the sample, and the ending that was received is looked for in it. So holes and
    pauses on the way do not count as speech.
    """
    session = voice.open(seed=cut.seed)
    for phrase in cut.phrases:
        session.push_text(phrase)
        session.flush()
    session.end_input()
    pcm = np.concatenate([chunk.pcm async for chunk in session])
    rate = session.spec.sample_rate
    found = _find(_even(resample(pcm, rate, _MATCH_HZ)), _even(resample(cut.ending, RATE, _MATCH_HZ)))
    if found is None:
        return None
    whole = Recording(0.0, to_int16(resample(pcm, rate, RATE)))
    # A word ends with the pause behind it; it was heard when nothing audible of it is missing.
    ends_s = [whole.last_audible_before(word.end_sample / rate) or 0.0 for word in session.words]
    return sum(end_s <= found / _MATCH_HZ + _TAIL_S for end_s in ends_s)


def _even(pcm: Pcm) -> Pcm:
    """The same at an even loudness, so that what was ducked counts like the rest."""
    size = _MATCH_HZ // 40
    power = np.convolve(pcm.astype(np.float64) ** 2, np.ones(size) / size, "same")
    return np.asarray(pcm / np.sqrt(power + 1e-6), np.float32)


def _find(whole: Pcm, part: Pcm) -> int | None:
    """Where `part` ends in `whole`, in samples: the highest normalised correlation, if it is high."""
    size = len(part)
    if not size or size > len(whole):
        return None
    length = 1 << (len(whole) + size).bit_length()
    spectrum = np.fft.rfft(whole, length) * np.conj(np.fft.rfft(part, length))
    product = np.fft.irfft(spectrum, length)[: len(whole) - size + 1]
    energy = np.concatenate(([0.0], np.cumsum(whole.astype(np.float64) ** 2)))
    here = energy[size:] - energy[:-size]
    score = product / np.sqrt(np.maximum(here * float(part @ part), 1e-12))
    best = int(np.argmax(score))
    return best + size if score[best] > _ALIKE else None


def _audible_ms(recording: Recording, from_s: float, to_s: float) -> float:
    audible = recording.audible()
    first = max(0, round((from_s - recording.start_s) / 0.005))
    return 5.0 * int(np.count_nonzero(audible[first : max(first, round((to_s - recording.start_s) / 0.005))]))
