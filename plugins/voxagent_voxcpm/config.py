"""What a checkpoint's `config.json` says, as frozen dataclasses. Knows nothing of tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import log, prod, sqrt
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Backbone:
    """The shape of one MiniCPM transformer.

    Attributes:
        rope: Rotary positions are used; the residual LM of V2 has none.
        rope_factors: Stretch of each of the `head_dim / 2` frequencies (LongRoPE, arXiv 2402.13753).
        rope_amplitude: Factor on both tables.
        residual_scale: Factor on each block's output (muP); 1 in all releases.
    """

    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    rope: bool
    rope_theta: float
    rope_factors: tuple[float, ...]
    rope_amplitude: float
    max_positions: int
    residual_scale: float


@dataclass(frozen=True, slots=True)
class AudioShape:
    """The shape of the AudioVAE.

    Attributes:
        encode_rate: Sample rate of recordings that are encoded, Hz.
        decode_rate: Sample rate of decoded audio, Hz.
        rate_buckets: Rows of the sample-rate conditioning (V2), 0 without one.
        rate_bucket: The row for `decode_rate`.
    """

    encoder_dim: int
    encoder_rates: tuple[int, ...]
    latent_dim: int
    decoder_dim: int
    decoder_rates: tuple[int, ...]
    depthwise: bool
    encode_rate: int
    decode_rate: int
    rate_buckets: int
    rate_bucket: int

    @property
    def encode_hop(self) -> int:
        """Samples per latent frame, encoding."""
        return prod(self.encoder_rates)

    @property
    def decode_hop(self) -> int:
        """Samples per latent frame, decoding."""
        return prod(self.decoder_rates)


@dataclass(frozen=True, slots=True)
class Config:
    """A VoxCPM checkpoint.

    Attributes:
        v2: Reference mode, concatenating fusion and two prefix tokens for the solver: the VoxCPM2 wiring.
        patch: Latent frames a step makes.
        embed_scale: Factor on text embeddings (muP); 1 in all releases.
        dtype: As the file says: ``bfloat16`` in all releases.
        max_length: Positions the model was trained for.
    """

    v2: bool
    lm: Backbone
    residual_lm: Backbone
    encoder: Backbone
    dit: Backbone
    vocab: int
    embed_scale: float
    patch: int
    feat_dim: int
    fsq_dim: int
    fsq_scale: int
    audio: AudioShape
    dtype: str
    max_length: int

    @property
    def chunk_samples(self) -> int:
        """Samples one patch decodes to."""
        return self.patch * self.audio.decode_hop

    @property
    def patches_per_s(self) -> float:
        """Patches a second of audio: 6.25 (12.5 in the 0.5B release)."""
        return self.audio.decode_rate / self.chunk_samples


def read_config(path: Path) -> Config:
    """Reads `config.json`.

    Raises:
        ValueError: No such file, no JSON, another architecture, or a value that is missing or unknown here.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist: give the directory of a VoxCPM checkpoint, or its hub id") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} cannot be read as JSON ({error}): download the checkpoint again") from error
    try:
        return parse_config(data)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def parse_config(data: object) -> Config:
    """Reads the content of a `config.json`.

    Raises:
        ValueError: Another architecture, or a value that is missing or unknown here.
    """
    architecture = data.get("architecture") if isinstance(data, Mapping) else None
    if not isinstance(data, Mapping) or architecture not in ("voxcpm", "voxcpm2"):
        raise ValueError(f"the architecture is {architecture!r}; voxcpm and voxcpm2 are known here")
    try:
        return _config(data, v2=architecture == "voxcpm2")
    except KeyError as error:
        raise ValueError(f"{error} is missing: it is no complete VoxCPM configuration") from error
    except (TypeError, AttributeError) as error:
        raise ValueError(f"a value is of the wrong type: {error}") from error


def _config(data: Mapping[str, Any], *, v2: bool) -> Config:
    lm = data["lm_config"]
    if data["dit_config"].get("dit_mean_mode"):
        raise ValueError("dit_mean_mode is not supported: no release uses it")
    return Config(
        v2=v2,
        lm=_backbone(lm),
        residual_lm=_backbone(
            lm, data["residual_lm_num_layers"], rope=not (v2 and data.get("residual_lm_no_rope", False))
        ),
        encoder=_local(lm, data["encoder_config"]),
        dit=_local(lm, data["dit_config"]),
        vocab=lm["vocab_size"],
        embed_scale=float(lm["scale_emb"]) if lm.get("use_mup", True) else 1.0,
        patch=data.get("patch_size", 4 if v2 else 2),
        feat_dim=data.get("feat_dim", 64),
        fsq_dim=data.get("scalar_quantization_latent_dim", 512 if v2 else 256),
        fsq_scale=data.get("scalar_quantization_scale", 9),
        audio=_audio(data.get("audio_vae_config") or {}, v2=v2),
        dtype=data.get("dtype", "bfloat16"),
        max_length=data.get("max_length", 8192 if v2 else 4096),
    )


def _backbone(lm: Mapping[str, Any], layers: int | None = None, *, rope: bool = True) -> Backbone:
    scaling = lm["rope_scaling"]
    positions, original = lm["max_position_embeddings"], scaling["original_max_position_embeddings"]
    count = lm["num_hidden_layers"] if layers is None else layers
    return Backbone(
        hidden=lm["hidden_size"],
        ffn=lm["intermediate_size"],
        layers=count,
        heads=lm["num_attention_heads"],
        kv_heads=lm["num_key_value_heads"],
        head_dim=lm.get("kv_channels") or lm["hidden_size"] // lm["num_attention_heads"],
        eps=lm["rms_norm_eps"],
        rope=rope,
        rope_theta=lm["rope_theta"],
        rope_factors=tuple(scaling["long_factor" if positions > original else "short_factor"]),
        rope_amplitude=_amplitude(positions, original),
        max_positions=positions,
        residual_scale=lm["scale_depth"] / count**0.5 if lm.get("use_mup", True) else 1.0,
    )


def _amplitude(positions: int, original: int) -> float:
    return sqrt(1 + log(positions / original) / log(original))


def _local(lm: Mapping[str, Any], own: Mapping[str, Any]) -> Backbone:
    """The local encoder and the local DiT: the LM's settings but for their size."""
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers")
    sizes = dict(zip(names, (own["hidden_dim"], own["ffn_dim"], own["num_heads"], own["num_layers"]), strict=True))
    return _backbone({**lm, **sizes, "kv_channels": own.get("kv_channels")})


def _audio(vae: Mapping[str, Any], *, v2: bool) -> AudioShape:
    if vae.get("use_noise_block"):
        raise ValueError("use_noise_block is not supported: no release uses it")
    boundaries = vae.get("sr_bin_boundaries", [20000, 30000, 40000]) if v2 else None
    if boundaries and (vae.get("cond_type", "scale_bias") != "scale_bias" or vae.get("cond_out_layer")):
        raise ValueError("only sample-rate conditioning of the type scale_bias is supported: all releases use it")
    rate = vae.get("sample_rate", 16000)
    out = vae.get("out_sample_rate", 48000) if v2 else rate
    return AudioShape(
        encoder_dim=vae.get("encoder_dim", 128),
        encoder_rates=tuple(vae.get("encoder_rates", (2, 5, 8, 8))),
        latent_dim=vae.get("latent_dim", 64),
        decoder_dim=vae.get("decoder_dim", 2048 if v2 else 1536),
        decoder_rates=tuple(vae.get("decoder_rates", (8, 6, 5, 2, 2, 2) if v2 else (8, 8, 5, 2))),
        depthwise=vae.get("depthwise", True),
        encode_rate=rate,
        decode_rate=out,
        rate_buckets=len(boundaries) + 1 if boundaries else 0,
        # The first boundary that is not below the rate, as torch.bucketize counts.
        rate_bucket=sum(edge < out for edge in boundaries) if boundaries else 0,
    )
