#!/usr/bin/env python3
"""Measures VoxCPM sessions on this machine with random weights of the real shape: no checkpoint, no network.

Needs torch, numpy and safetensors only. Prints one JSON object and writes it to --out.

    python bench/gpu_check.py --out gpu.json            # the shape of VoxCPM2, on the GPU if there is one
    python bench/gpu_check.py --shape tiny --device cpu # seconds, to see that it runs
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "plugins"))

import torch

from voxagent_voxcpm.config import Config, parse_config
from voxagent_voxcpm.measure import Extent, cancels, first_packets, random_voice, step_times, summary
from voxagent_voxcpm.network import Network
from voxagent_voxcpm.releases import RELEASES, random_network
from voxagent_voxcpm.sessions import Sessions

_TINY = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2,
         "kv_channels": 16, "max_position_embeddings": 2048, "vocab_size": 640}  # fmt: skip
_TINY_LOCAL = {"hidden_dim": 48, "ffn_dim": 96, "num_heads": 4, "num_layers": 2, "kv_channels": 16}


def shape(name: str) -> Config:
    """The shape of a release, or one of a few thousand weights with the geometry of VoxCPM2."""
    if name != "tiny":
        return parse_config(RELEASES[name])
    raw: dict[str, Any] = json.loads(json.dumps(RELEASES["v2"]))
    raw["lm_config"] |= _TINY
    factors = [1.0] * 8
    raw["lm_config"]["rope_scaling"] |= {
        "original_max_position_embeddings": 2048, "long_factor": factors, "short_factor": factors,
    }  # fmt: skip
    for part in ("encoder_config", "dit_config"):
        raw[part] |= _TINY_LOCAL
    raw |= {"residual_lm_num_layers": 2, "scalar_quantization_latent_dim": 32}
    raw["audio_vae_config"] |= {"encoder_dim": 8, "decoder_dim": 128}
    return parse_config(raw)


def memory(device: torch.device) -> dict[str, float]:
    """Gigabytes taken on the device now and at most."""
    if device.type != "cuda":
        return {}
    taken, most = torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)
    return {"now_gb": round(taken / 1e9, 2), "peak_gb": round(most / 1e9, 2)}


def measure(
    network: Network, counts: list[int], extent: Extent, positions: int, compiler: str | None
) -> dict[str, Any]:
    """All figures by number of sessions."""
    began = time.perf_counter()
    sessions = Sessions(network, max(counts), positions, compiler=compiler)
    plain, voice = random_voice(network, 0), random_voice(network, extent.reference_s)
    out: dict[str, Any] = {"step_ms": {}, "rtf": {}, "first_packet_ms": {}, "first_packet_behind_a_step_ms": {}}
    for count in counts:
        step_times(sessions, plain, count, Extent(1, extent.text, extent.steps))  # captures the graphs of this size
        first_packets(sessions, voice, count, extent)
        times = step_times(sessions, plain, count, extent)
        out["step_ms"][str(count)] = summary(times)
        out["rtf"][str(count)] = round(statistics.median(times) * network.config.patches_per_s / 1000, 4)
        out["first_packet_ms"][str(count)] = summary(first_packets(sessions, voice, count, extent))
        worst = first_packets(sessions, voice, count, extent, behind_a_step=True)
        out["first_packet_behind_a_step_ms"][str(count)] = summary(worst)
    out["cancel"] = cancels(sessions, plain, extent)
    out["kv_gb"] = round(sessions.pools.bytes / 1e9, 3)
    out["seconds"] = round(time.perf_counter() - began, 1)
    if sessions.fixed is not None:
        eager = Sessions(network, min(8, max(counts)), positions, fixed=False)
        out["eager_step_ms"] = {
            str(count): summary(step_times(eager, plain, count, extent)) for count in counts if count <= 8
        }
    return out


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=["tiny", *RELEASES], default="v2")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], default="bfloat16")
    parser.add_argument("--calls", default="1,8,16,32,64")
    parser.add_argument("--patches", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--positions", type=int, default=512)
    parser.add_argument("--compiler", help="backend of torch.compile, such as inductor: minutes for all sizes")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    device = torch.device(asked.device)
    began = time.perf_counter()
    network = random_network(shape(asked.shape), device, getattr(torch, asked.dtype))
    extent = Extent(asked.patches, steps=asked.steps, rounds=asked.rounds)
    figures = {
        "shape": asked.shape,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else asked.device,
        "torch": torch.__version__,
        "dtype": asked.dtype,
        "steps": asked.steps,
        "load_s": round(time.perf_counter() - began, 1),
        **measure(network, [int(part) for part in asked.calls.split(",")], extent, asked.positions, asked.compiler),
        "memory": memory(device),
    }
    text = json.dumps(figures)
    if asked.out is not None:
        asked.out.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
