"""The upstream package beside us in one process: the same shapes, random weights, its own loop. For measurements."""

from __future__ import annotations

import statistics
import sys
import time
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from typing import Any

import torch

from voxagent_voxcpm.measure import Extent


def installed() -> bool:
    """Whether the package is there."""
    return find_spec("voxcpm") is not None


@contextmanager
def importable() -> Iterator[None]:
    """Stands in for what its files import and its model does not use, where that is missing.

    The public torchaudio is built for CUDA and does not import beside a PyTorch for CPUs.
    """
    added = []
    for name in ("torchaudio", "librosa"):
        if name not in sys.modules and (name == "torchaudio" or find_spec(name) is None):
            module = types.ModuleType(name)
            module.__spec__ = ModuleSpec(name, None)
            sys.modules[name] = module
            added.append(name)
    try:
        yield
    finally:
        for name in added:
            del sys.modules[name]


class Upstream:
    """One model of a shape.

    Args:
        config: As in `config.json`.
        device: Where it runs.
        dtype: ``bfloat16`` or ``float32``.
    """

    def __init__(self, config: Mapping[str, Any], device: torch.device, dtype: str) -> None:
        self._v2 = config["architecture"] == "voxcpm2"
        with importable():
            from voxcpm.model.voxcpm import VoxCPMConfig, VoxCPMModel
            from voxcpm.model.voxcpm2 import VoxCPM2Model
            from voxcpm.model.voxcpm2 import VoxCPMConfig as VoxCPM2Config
            from voxcpm.modules.audiovae import AudioVAE, AudioVAEV2
        kind, shape = (VoxCPM2Model, VoxCPM2Config) if self._v2 else (VoxCPMModel, VoxCPMConfig)
        parsed = shape.model_validate({**config, "dtype": dtype, "device": device.type})
        codec = (AudioVAEV2 if self._v2 else AudioVAE)(config=parsed.audio_vae_config)
        usual = torch.get_default_dtype()
        torch.set_default_dtype(getattr(torch, dtype))
        try:
            model = kind(parsed, _NoTokens(), codec, device=device.type)
        finally:
            torch.set_default_dtype(usual)
        model.audio_vae = codec.float()
        self._model = model.to(device).eval()
        self._patch, self._dim = parsed.patch_size, parsed.feat_dim

    def _stream(self, ids: list[int], reference: int, steps: int, most: int) -> Iterator[torch.Tensor]:
        """Its streaming loop: yields the audio of each patch."""
        head = [103, *[0] * reference, 104] if reference else []
        tokens = torch.tensor([[*head, *ids]], device=self._model.device)
        audio = torch.zeros_like(tokens)
        audio[0, 1 : reference + 1] = 1 if reference else 0
        feats = (
            torch.randn(1, tokens.shape[1], self._patch, self._dim, dtype=self._model._dtype())
            * audio[..., None, None].cpu()
        )
        loop = self._model._inference(
            tokens, 1 - audio, feats.to(self._model.device, self._model._dtype()), audio, min_len=most, max_len=most,
            inference_timesteps=steps, streaming=True,
        )  # fmt: skip
        if not self._v2:
            for latents, _ in loop:
                whole = self._model.audio_vae.decode(latents.float())
                yield whole[..., -whole.shape[-1] // min(3, latents.shape[-1] // self._patch) :].cpu()
            return
        with self._model.audio_vae.streaming_decode() as decoder:
            for latents, _, _ in loop:
                yield decoder.decode_chunk(latents.float()).cpu()

    @torch.inference_mode()
    def step_times(self, ids: list[int], extent: Extent) -> list[float]:
        """Milliseconds of each patch, the first left out."""
        times, began = [], time.perf_counter()
        for _ in self._stream(ids, 0, extent.steps, extent.patches + 1):
            times.append(1000 * (time.perf_counter() - began))
            began = time.perf_counter()
        return times[1:]

    @torch.inference_mode()
    def first_packet(self, ids: list[int], reference: int, extent: Extent) -> float:
        """Median milliseconds from text to the first audio, over a reference of so many patches."""
        times = []
        for _ in range(extent.rounds):
            began = time.perf_counter()
            stream = self._stream(ids, reference, extent.steps, 2)
            next(stream)
            times.append(1000 * (time.perf_counter() - began))
            stream.close()  # type: ignore[attr-defined]  # a generator
        return statistics.median(times)


class _NoTokens:
    """A tokenizer that nobody asks."""

    vocab: Mapping[str, int] = {}
