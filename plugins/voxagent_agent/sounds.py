"""What callers say and do in the benchmark: real speech if it is installed, spoken phrases, and noises.

Real speech comes from Debian's `pocketsphinx-testdata` (LibriVox, public domain, and read card names); without it the
embedded voice speaks for the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from voxagent.engine import Engine
from voxagent.pcm import Pcm, resample
from voxagent_webrtc.caller import read_wav

RATE = 48000
_REAL = Path("/usr/share/pocketsphinx/test/data")
_LEVEL_DBFS = -23.0
_BLOCK = RATE // 100
# Within this much of the loud parts a block belongs to speech.
_SPEECH_DB = 20.0
# Three blocks in a row: a click is no onset.
_ONSET_BLOCKS = 3

PHRASES = ("Excuse me, how much is a ticket?", "No, I mean the other one.", "Can you repeat the second part please?")
STOPS = ("Stop!", "Wait!", "No!", "Hold on!")
BACKCHANNELS = ("Mm-hm.", "Right.", "Yeah.", "Okay.")


@dataclass(frozen=True, slots=True)
class Clip:
    """Something a caller says.

    Attributes:
        name: What it is.
        pcm: 48 kHz mono, at -23 dBFS while it is loud.
        onset_s: First 10 ms within 20 dB of the loud parts that 20 ms more follow.
        end_s: End of the last such block.
    """

    name: str
    pcm: Pcm
    onset_s: float
    end_s: float

    def first(self, seconds: float) -> Clip:
        """Its beginning."""
        return Clip(self.name, self.pcm[: round(seconds * RATE)], self.onset_s, min(self.end_s, seconds))


def clip(name: str, pcm: Pcm) -> Clip:
    """Levels a recording and finds where it is speech."""
    blocks = pcm[: len(pcm) // _BLOCK * _BLOCK].reshape(-1, _BLOCK)
    level = np.sqrt(np.mean(blocks**2, axis=1))
    loud = level > np.percentile(level, 95) * 10 ** (-_SPEECH_DB / 20)
    runs = np.convolve(loud, np.ones(_ONSET_BLOCKS), "valid") == _ONSET_BLOCKS
    gain = 10 ** (_LEVEL_DBFS / 20) / float(np.sqrt(np.mean(level[loud] ** 2)))
    onset, end = int(np.argmax(runs)), int(np.flatnonzero(loud)[-1]) + 1
    return Clip(name, (pcm * gain).astype(np.float32), onset * 0.01, end * 0.01)


def real_speech() -> list[Clip]:
    """Recordings of people; empty when they are not installed."""
    return [clip(path.stem[-4:], read_wav(path)) for path in sorted(_REAL.glob("*/*.wav"))]


async def spoken(engine: Engine, texts: Sequence[str]) -> list[Clip]:
    """The embedded voice says them."""
    clips = []
    for text in texts:
        session = engine.open()
        session.push_text(text)
        session.end_input()
        parts = [chunk.pcm async for chunk in session]
        clips.append(clip(text, resample(np.concatenate(parts), session.spec.sample_rate, RATE)))
    return clips


def noises(seed: int = 1) -> list[Clip]:
    """A cough, a door, a keyboard, and something that falls."""
    rng = np.random.default_rng(seed)

    def burst(seconds: float, decay: float, rise: float, colour: float = 0.0) -> Pcm:
        t = np.arange(round(seconds * RATE)) / RATE
        white = rng.standard_normal(len(t))
        if colour:
            white = np.convolve(white, np.exp(-np.arange(200) * colour), "same")
        shaped: Pcm = (white * np.exp(-t * decay) * (1 - np.exp(-t * rise))).astype(np.float32)
        return shaped

    cough = np.concatenate((burst(0.22, 14, 300, 0.05), np.zeros(2400, np.float32), burst(0.3, 10, 100, 0.05)))
    door = burst(0.45, 16, 2000, 0.01)
    keys = np.zeros(2 * RATE, np.float32)
    for press in range(14):
        at = press * 6400 + int(rng.integers(0, 1500))
        keys[at : at + 1200] += burst(0.025, 180, 5000)[:1200]
    fall = np.concatenate([burst(0.08, 60, 3000), np.zeros(4000, np.float32), burst(0.06, 80, 3000)])
    return [clip(name, pcm) for name, pcm in (("cough", cough), ("door", door), ("keyboard", keys), ("fall", fall))]
