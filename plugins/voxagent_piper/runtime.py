"""Runs the three parts of a cut voice with onnxruntime.

Owns sessions, shapes and feeds. Holds nothing of a speech session: whatever differs between sessions is passed in.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from voxagent.model import Pcm
from voxagent_piper.cache import CutVoice
from voxagent_piper.layout import Layout, Stencil

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Scales:
    """What Piper calls scales.

    Attributes:
        noise: Of the latents' prior.
        length: Of the durations; 1 is the voice's own speed.
        noise_w: Of the durations' noise.
    """

    noise: float
    length: float
    noise_w: float


@dataclass(frozen=True, slots=True)
class Encoded:
    """What the front knows of a phrase.

    Attributes:
        mean: Of the prior, float32 (C, P).
        log_scale: Of the prior, float32 (C, P).
        durations: Frames of each phoneme id, int64 (P,).
    """

    mean: Floats
    log_scale: Floats
    durations: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Frames `start` to `end` of a phrase of `total` frames."""

    start: int
    end: int
    total: int


@dataclass(frozen=True, slots=True)
class Window:
    """Latents of one chunk with the context that makes it exact.

    Attributes:
        latents: Float32 (1, C, T).
        stretch: The frames to decode.
    """

    latents: Floats
    stretch: Stretch


@dataclass(frozen=True, slots=True)
class _Part:
    """One graph, and the inputs it takes."""

    session: ort.InferenceSession
    inputs: frozenset[str]

    @classmethod
    def load(cls, graph: Path | bytes, threads: int) -> _Part:
        session = _session(graph, threads)
        return cls(session, frozenset(value.name for value in session.get_inputs()))

    def run(
        self, outputs: list[str], feed: dict[str, NDArray[Any]], sid: int, run: ort.RunOptions
    ) -> list[NDArray[Any]]:
        if "sid" in self.inputs:
            feed["sid"] = np.array([sid], np.int64)
        results: list[NDArray[Any]] = self.session.run(outputs, feed, run)
        return results

    def run_stretch(
        self,
        output: str,
        stencil: Stencil,
        feed: dict[str, NDArray[Any]],
        stretch: Stretch,
        sid: int,
        run: ort.RunOptions,
    ) -> Floats:
        """Runs on a stretch of frames and cuts what was asked for from what comes out."""
        if stencil.crops:
            feed["bounds"] = np.array(stencil.bounds(stretch.start, stretch.end, stretch.total), np.int64)
        (result,) = self.run([output], feed, sid, run)
        rate = stencil.result.rate
        skip = stretch.start * rate - stencil.result.span(stretch.start, stretch.end, stretch.total)[0]
        return result[..., skip : skip + (stretch.end - stretch.start) * rate]


class Parts:
    """The onnxruntime sessions of one voice."""

    def __init__(self, voice: CutVoice, threads: int) -> None:
        self.layout: Layout = voice.layout
        self._front = _Part.load(voice.front, threads)
        self._flow = _Part.load(voice.flow, threads)
        self._decoder = _Part.load(voice.decoder, threads)

    def encode(
        self, ids: NDArray[np.int64], scales: Scales, rng: np.random.Generator, sid: int, run: ort.RunOptions
    ) -> Encoded:
        """Phoneme ids (P,) to the prior's parameters and durations."""
        feed: dict[str, NDArray[Any]] = {"ids": ids[None]}
        feed["scales"] = np.array([scales.noise, scales.length, scales.noise_w], np.float32)
        if self.layout.noise:
            feed["noise"] = rng.standard_normal((1, self.layout.noise, ids.shape[0]), dtype=np.float32)
        mean, log_scale, durations = self._front.run(["mean", "log_scale", "durations"], feed, sid, run)
        return Encoded(mean[0], log_scale[0], durations[0, 0].astype(np.int64))

    def flow(self, prior: Floats, stretch: Stretch, sid: int, run: ort.RunOptions) -> Floats:
        """Latents (1, C, frames) of a stretch of the prior (1, C, T)."""
        source = self.layout.flow.source
        low, high = source.span(stretch.start, stretch.end, stretch.total)
        feed = {"prior": np.ascontiguousarray(prior[:, :, low:high])}
        return self._flow.run_stretch("latents", self.layout.flow, feed, stretch, sid, run)

    def decode(self, window: Window, sid: int, run: ort.RunOptions) -> Pcm:
        """Float32 PCM of a window's frames, ``hop`` samples each."""
        feed = {"latents": window.latents}
        pcm = self._decoder.run_stretch("pcm", self.layout.decoder, feed, window.stretch, sid, run)
        return pcm.reshape(-1)


def expand(encoded: Encoded, noise: float, rng: np.random.Generator) -> Floats:
    """Stretches the prior over its durations and samples it: float32 (1, C, T)."""
    mean = np.repeat(encoded.mean, encoded.durations, axis=1)
    if noise:
        draw = rng.standard_normal(mean.shape, dtype=np.float32)
        scale = np.repeat(np.exp(encoded.log_scale), encoded.durations, axis=1)
        mean += draw * scale * np.float32(noise)
    return mean[None]


def _session(graph: Path | bytes, threads: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Spinning workers take the cores from the other sessions' media: measured 2 to 3 times slower beside a neighbour.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Phrases differ in every shape: patterns of past shapes only pile up. The arena stays flat and saves 4 %.
    options.enable_mem_pattern = False
    options.log_severity_level = 3
    return ort.InferenceSession(
        graph if isinstance(graph, bytes) else str(graph), options, providers=["CPUExecutionProvider"]
    )
