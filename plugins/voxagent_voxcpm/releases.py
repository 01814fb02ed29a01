"""The shapes of the three published checkpoints, as their `config.json` gives them, and models of any shape with
random weights: for measurements and tests, where no weights are at hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from voxagent_voxcpm.config import Config, parse_config
from voxagent_voxcpm.network import Network
from voxagent_voxcpm.weights import RandomWeights

_VOCAB = 73448


def _lm(hidden: int, ffn: int, layers: int, head_dim: int) -> dict[str, Any]:
    return {
        "bos_token_id": 1, "eos_token_id": 2, "hidden_size": hidden, "intermediate_size": ffn,
        "max_position_embeddings": 32768, "num_attention_heads": 16, "num_hidden_layers": layers,
        "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "kv_channels": head_dim,
        "rope_scaling": {
            "type": "longrope", "long_factor": [1.0] * (head_dim // 2), "short_factor": [1.0] * (head_dim // 2),
            "original_max_position_embeddings": 32768,
        },
        "vocab_size": _VOCAB, "use_mup": False, "scale_emb": 12, "dim_model_base": 256, "scale_depth": 1.4,
    }  # fmt: skip


def _local(layers: int, head_dim: int) -> dict[str, Any]:
    return {"hidden_dim": 1024, "ffn_dim": 4096, "num_heads": 16, "num_layers": layers, "kv_channels": head_dim}


_CFM = {"sigma_min": 1e-6, "solver": "euler", "t_scheduler": "log-norm", "inference_cfg_rate": 2.0}

RELEASES: Mapping[str, Mapping[str, Any]] = {
    "0.5b": {
        "architecture": "voxcpm", "lm_config": _lm(1024, 4096, 24, 64), "patch_size": 2, "feat_dim": 64,
        "residual_lm_num_layers": 6, "scalar_quantization_latent_dim": 256, "scalar_quantization_scale": 9,
        "encoder_config": _local(4, 64), "dit_config": {**_local(4, 64), "cfm_config": _CFM},
        "max_length": 4096, "dtype": "bfloat16", "device": "cpu",
        "audio_vae_config": {
            "encoder_dim": 128, "encoder_rates": [2, 5, 8, 8], "latent_dim": 64, "decoder_dim": 1536,
            "decoder_rates": [8, 8, 5, 2], "sample_rate": 16000,
        },
    },
    "1.5": {
        "architecture": "voxcpm", "lm_config": _lm(1024, 4096, 24, 64), "patch_size": 4, "feat_dim": 64,
        "residual_lm_num_layers": 8, "scalar_quantization_latent_dim": 256, "scalar_quantization_scale": 9,
        "encoder_config": _local(8, 64), "dit_config": {**_local(8, 64), "cfm_config": _CFM},
        "max_length": 4096, "dtype": "bfloat16", "device": "cpu",
        "audio_vae_config": {
            "encoder_dim": 64, "encoder_rates": [2, 3, 6, 7, 7], "latent_dim": 64, "decoder_dim": 2048,
            "decoder_rates": [7, 7, 6, 3, 2], "sample_rate": 44100,
        },
    },
    "v2": {
        "architecture": "voxcpm2", "lm_config": _lm(2048, 6144, 28, 128), "patch_size": 4, "feat_dim": 64,
        "residual_lm_num_layers": 8, "residual_lm_no_rope": True, "scalar_quantization_latent_dim": 512,
        "scalar_quantization_scale": 9,
        "encoder_config": _local(12, 128), "dit_config": {**_local(12, 128), "cfm_config": _CFM},
        "max_length": 8192, "dtype": "bfloat16", "device": "cpu",
        "audio_vae_config": {
            "encoder_dim": 128, "encoder_rates": [2, 5, 8, 8], "latent_dim": 64, "decoder_dim": 2048,
            "decoder_rates": [8, 6, 5, 2, 2, 2], "sample_rate": 16000, "out_sample_rate": 48000,
            "sr_bin_boundaries": [20000, 30000, 40000],
        },
    },
}  # fmt: skip
"""By name; each can be written as a `config.json`."""


def random_network(config: Config | str, device: torch.device, dtype: torch.dtype, seed: int = 0) -> Network:
    """A network with random weights.

    Args:
        config: Its shape, or the name of a release: ``0.5b``, ``1.5``, ``v2``.
        device: Where it runs.
        dtype: Of all but the audio codec.
        seed: Equal seeds give equal networks.
    """
    shape = parse_config(RELEASES[config]) if isinstance(config, str) else config
    with torch.inference_mode():
        return Network(shape, RandomWeights(device, dtype, seed), RandomWeights(device, torch.float32, seed + 1))
