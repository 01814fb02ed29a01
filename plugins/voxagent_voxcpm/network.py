"""The two language models and what hangs between them: one patch in, what the solver needs for the next one out.

Owns weights only; all state of a session is passed in. The wiring is that of arXiv 2509.24650 (VoxCPM), with V2's
changes: concatenating fusion, two prefix tokens, a residual LM without positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from voxagent_voxcpm.audio_vae import AudioDecoder, AudioEncoder
from voxagent_voxcpm.config import Config, read_config
from voxagent_voxcpm.kv import KvPool, Span
from voxagent_voxcpm.linear import linear
from voxagent_voxcpm.solver import LocalDiT
from voxagent_voxcpm.transformer import Past, RowPast, SpanPast, Transformer
from voxagent_voxcpm.weights import Weights

AUDIO_START, REFERENCE_START, REFERENCE_END = 101, 103, 104
"""Special tokens; the same in all releases, whatever the tokenizer says."""


@dataclass(frozen=True, slots=True)
class Pools:
    """Keys and values of both LMs. A session has the same row in both."""

    lm: KvPool
    residual: KvPool

    @property
    def bytes(self) -> int:
        """Memory of both."""
        return self.lm.bytes + self.residual.bytes


@dataclass(frozen=True, slots=True)
class Hidden:
    """What both LMs say about the next patch: each (sessions, hidden)."""

    lm: Tensor
    residual: Tensor


class Network:
    """All learned parts of one checkpoint.

    Args:
        config: Its shapes.
        weights: Its tensors, in the dtype to compute in.
        audio_weights: Those of the AudioVAE, in float32.
    """

    def __init__(self, config: Config, weights: Weights, audio_weights: Weights) -> None:
        self.config = config
        self.device, self.dtype = weights.device, weights.dtype
        hidden, local = config.lm.hidden, config.encoder.hidden
        self._embedding = weights.take("base_lm.embed_tokens.weight", config.vocab, hidden)
        self._lm = Transformer(config.lm, weights, "base_lm")
        self._residual = Transformer(config.residual_lm, weights, "residual_lm")
        self._encoder = Transformer(config.encoder, weights, "feat_encoder.encoder", config.patch + 1)
        self._encoder_in = linear(weights, "feat_encoder.in_proj", local, config.feat_dim, bias=True)
        self._summary = weights.take("feat_encoder.special_token", 1, 1, 1, local)[0]
        self._to_lm = linear(weights, "enc_to_lm_proj", hidden, local, bias=True)
        self._lm_to_dit, self._residual_to_dit = (
            linear(weights, f"{part}_to_dit_proj", config.dit.hidden, hidden, bias=True) for part in ("lm", "res")
        )
        self._fusion = linear(weights, "fusion_concat_proj", hidden, 2 * hidden, bias=True) if config.v2 else None
        self._fsq_in = linear(weights, "fsq_layer.in_proj", config.fsq_dim, hidden, bias=True)
        self._fsq_out = linear(weights, "fsq_layer.out_proj", hidden, config.fsq_dim, bias=True)
        self._stop_in = linear(weights, "stop_proj", hidden, hidden, bias=True)
        self._stop_out = linear(weights, "stop_head", 2, hidden, bias=False)
        self.dit = LocalDiT(config.dit, weights, config.feat_dim, config.patch)
        self.decoder = AudioDecoder(config.audio, audio_weights)
        self.encoder = AudioEncoder(config.audio, audio_weights, odd_strides_shift=config.v2)
        for read in (weights, audio_weights):
            read.finish()

    def pools(self, rows: int, capacity: int) -> Pools:
        """Room for the past of `rows` sessions of up to `capacity` positions."""
        lm, residual = self.config.lm, self.config.residual_lm
        return Pools(*(KvPool(shape, rows, capacity, self.device, self.dtype) for shape in (lm, residual)))

    def embed_tokens(self, ids: Sequence[int]) -> Tensor:
        """Token ids to (count, hidden)."""
        rows = self._embedding[torch.tensor(ids, dtype=torch.long, device=self.device)]
        return rows if self.config.embed_scale == 1.0 else rows * self.config.embed_scale

    def embed_patches(self, patches: Tensor) -> Tensor:
        """Patches (count, frames, feat dim) to (count, hidden): what a summary token sees of each."""
        x = self._encoder_in(patches)
        summary = self._summary.expand(x.shape[0], 1, -1)
        return self._to_lm(self._encoder.whole(torch.cat((summary, x), dim=1))[:, 0])

    def advance(self, embedded: Tensor, audio: Tensor, spans: Sequence[Span], pools: Pools) -> Hidden:
        """Takes positions in: text and patches, a ragged batch of sessions.

        Args:
            embedded: (positions, hidden), of `embed_tokens` and `embed_patches`.
            audio: (positions,), True where a patch stands.
            spans: Which session each belongs to.
            pools: Where the past is.

        Returns:
            What the LMs say after the last position of each span.
        """
        said = self._both(embedded, audio, SpanPast(pools.lm, spans), SpanPast(pools.residual, spans))
        ends, end = [], 0
        for span in spans:
            end += span.count
            ends.append(end - 1)
        return Hidden(said.lm[ends], said.residual[ends])

    def follow(self, patches: Tensor, rows: Tensor, positions: Tensor, reach: int, pools: Pools) -> Hidden:
        """Takes one patch of each of many sessions in; fixed shapes throughout, nothing read back.

        Args:
            patches: (sessions, frames, feat dim).
            rows: Of the pools, (sessions,).
            positions: Where each patch stands, (sessions,).
            reach: More than every position.
            pools: Where the past is.
        """
        audio = torch.ones_like(rows, dtype=torch.bool)
        past = [RowPast(pool, rows, positions, reach) for pool in (pools.lm, pools.residual)]
        return self._both(self.embed_patches(patches), audio, past[0], past[1])

    def _both(self, embedded: Tensor, audio: Tensor, past: Past, residual_past: Past) -> Hidden:
        """Both LMs, one after the other."""
        places = audio.unsqueeze(1)
        said = self._lm.causal(embedded, past)
        said = torch.where(places, self._quantised(said), said)
        patch = torch.where(places, embedded, torch.zeros_like(embedded))
        mixed = said + patch if self._fusion is None else self._fusion(torch.cat((said, patch), dim=-1))
        return Hidden(said, self._residual.causal(mixed, residual_past))

    def _quantised(self, x: Tensor) -> Tensor:
        """Finite scalar quantisation (arXiv 2309.15505)."""
        scale = self.config.fsq_scale
        return self._fsq_out(torch.round(torch.tanh(self._fsq_in(x)) * scale) / scale)

    def stops(self, hidden: Hidden) -> Tensor:
        """Whether the next patch is the last, (sessions,) of bool."""
        return self._stop_out(F.silu(self._stop_in(hidden.lm))).argmax(-1) == 1

    def guidance(self, hidden: Hidden) -> Tensor:
        """What the solver is told: (sessions, 2 in V2 or 1, DiT hidden)."""
        lm, residual = self._lm_to_dit(hidden.lm), self._residual_to_dit(hidden.residual)
        return torch.stack((lm, residual), dim=1) if self.config.v2 else (lm + residual).unsqueeze(1)


def load_network(directory: Path, device: torch.device, dtype: torch.dtype) -> Network:
    """Loads a release as it is published.

    Raises:
        ValueError: The directory is no complete VoxCPM checkpoint. The message names the file or the weights.
    """
    config = read_config(directory / "config.json")
    weights, audio = Weights(device, dtype), Weights(device, torch.float32)
    weights.add_file(directory, ("model.safetensors", "pytorch_model.bin"))
    audio.add_file(directory, ("audiovae.safetensors", "audiovae.pth"), prefix="audio_vae.")
    with torch.inference_mode():
        return Network(config, weights, audio)
