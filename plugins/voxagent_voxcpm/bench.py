"""What `voxagent bench sessions` measures."""

from __future__ import annotations

import gc
import json
import os
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch

from voxagent_voxcpm import upstream
from voxagent_voxcpm.config import parse_config
from voxagent_voxcpm.hub import checkpoint_directory
from voxagent_voxcpm.measure import Extent, cancels, first_packets, random_voice, step_times, summary, text_ids
from voxagent_voxcpm.network import Network, load_network
from voxagent_voxcpm.options import choose_device, choose_dtype
from voxagent_voxcpm.releases import RELEASES, random_network
from voxagent_voxcpm.sessions import Sessions

_POSITIONS = 512


def measure(
    progress: Callable[[str], None],
    model: str,
    counts: list[int],
    extent: Extent,
    device: str,
    dtype: str,
    *,
    peer: bool,
) -> dict[str, Any]:
    """Step times, first packets and cancels by number of sessions, and upstream's in the same run.

    Args:
        progress: Told what is measured now.
        model: ``voxcpm:`` and a directory, a hub id, or a release, for its shape with random weights.
        counts: Numbers of sessions.
        extent: How much.
        device: Or ``auto``.
        dtype: Or ``auto``.
        peer: Measure upstream, too.

    Raises:
        ValueError: No such model or device.
    """
    name, _, source = model.partition(":")
    if name != "voxcpm":
        raise ValueError(f"this benchmark is for voxcpm:…, not {model!r}")
    where = choose_device(device)
    directory = None if source in RELEASES else checkpoint_directory(source or None)
    raw = RELEASES[source] if directory is None else json.loads((directory / "config.json").read_text())
    chosen = choose_dtype(dtype, raw["dtype"], where)
    theirs: dict[str, Any] = {"skipped": "pip install --no-deps voxcpm==2.0.3" if peer else "not asked for"}
    if peer and upstream.installed():
        progress("upstream")
        theirs = _upstream(raw, where, chosen, extent)
        gc.collect()
    progress("loading")
    network = random_network(source, where, chosen) if directory is None else load_network(directory, where, chosen)
    ours = _ours(progress, network, counts, extent)
    figures: dict[str, Any] = {
        "model": model,
        "device": str(where),
        "dtype": str(chosen).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2),
        "steps": extent.steps,
        "chunk_ms": round(1000 / network.config.patches_per_s, 1),
        **ours,
        "upstream": theirs,
    }
    if "step_ms" in theirs:
        single, first = theirs["step_ms"]["median"], theirs["first_packet_ms"]
        figures["step_ratio"] = round(ours["step_ms"][str(counts[0])]["median"] / counts[0] / single, 3)
        figures["session_step_ratio"] = {
            count: round(each["median"] / int(count) / single, 3) for count, each in ours["step_ms"].items()
        }
        figures["first_packet_ratio"] = round(ours["first_packet_ms"][str(counts[0])] / first, 3)
    return figures


def _ours(progress: Callable[[str], None], network: Network, counts: list[int], extent: Extent) -> dict[str, Any]:
    sessions = Sessions(network, max(counts), _POSITIONS)
    plain, voice = random_voice(network, 0), random_voice(network, extent.reference_s)
    out: dict[str, Any] = {
        "step_ms": {},
        "rtf": {},
        "first_packet_ms": {},
        "kv_mb": round(sessions.pools.bytes / 1e6, 1),
    }
    for count in counts:
        progress(f"{count} sessions")
        times = step_times(sessions, plain, count, extent)
        out["step_ms"][str(count)] = summary(times)
        out["rtf"][str(count)] = round(statistics.median(times) * network.config.patches_per_s / 1000, 3)
        out["first_packet_ms"][str(count)] = round(statistics.median(first_packets(sessions, voice, count, extent)), 1)
    out["cancel"] = cancels(sessions, plain, extent)
    return out


def _upstream(raw: Mapping[str, Any], device: torch.device, dtype: torch.dtype, extent: Extent) -> dict[str, Any]:
    model = upstream.Upstream(raw, device, str(dtype).removeprefix("torch."))
    config = parse_config(raw)
    ids = text_ids(config, extent.text)
    reference = round(extent.reference_s * config.patches_per_s) if config.v2 else 0
    return {
        "step_ms": summary(model.step_times(ids, extent)),
        "first_packet_ms": round(model.first_packet(ids, reference, extent), 1),
    }
