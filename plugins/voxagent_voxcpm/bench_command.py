"""The command `voxagent bench sessions`."""

from __future__ import annotations

import gc
import json
import os
import statistics
from collections.abc import Mapping
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.markup import escape

from voxagent_voxcpm import upstream
from voxagent_voxcpm.config import parse_config
from voxagent_voxcpm.hub import checkpoint_directory
from voxagent_voxcpm.measure import Extent, cancels, first_packets, random_voice, step_times, summary, text_ids
from voxagent_voxcpm.network import Network, load_network
from voxagent_voxcpm.options import choose_device, choose_dtype
from voxagent_voxcpm.releases import RELEASES, random_network
from voxagent_voxcpm.sessions import Sessions

_POSITIONS = 512


def bench_sessions(
    model: Annotated[
        str,
        typer.Option(help="voxcpm:DIRECTORY or hub id, or voxcpm:0.5b, 1.5 or v2 for that shape with random weights."),
    ] = "voxcpm:v2",
    calls: Annotated[str, typer.Option(help="Sessions together, one figure each.")] = "1,2,4,8",
    steps: Annotated[int, typer.Option(help="Solver steps.", min=2)] = 10,
    first_steps: Annotated[int, typer.Option(help="Of the first patch.", min=2)] = 4,
    patches: Annotated[int, typer.Option(help="Steps a figure.", min=2)] = 6,
    reference_s: Annotated[float, typer.Option(help="Length of the reference, seconds.", min=0)] = 10.0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, bfloat16, float16, float32.")] = "auto",
    peer: Annotated[
        bool, typer.Option("--upstream/--no-upstream", help="Measure the upstream package beside it.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON on one line only.")] = False,
) -> None:
    """VoxCPM sessions: step time by calls, first packet, cancel; and upstream, one call after another."""
    console = Console(stderr=True, highlight=False)
    extent = Extent(patches, steps=steps, first_steps=first_steps, reference_s=reference_s)
    try:
        counts = [int(part) for part in calls.split(",")]
        if min(counts) < 1:
            raise ValueError("--calls takes numbers from 1 on, such as 1,2,4,8")
        figures = _measure(console, model, counts, extent, choose_device(device), dtype, peer=peer)
    except ValueError as error:
        console.print(f"[bold red]error:[/] {escape(str(error))}")
        raise typer.Exit(2) from error
    if not as_json:
        console.print_json(json.dumps(figures))
    typer.echo(json.dumps(figures))


def _measure(
    console: Console, model: str, counts: list[int], extent: Extent, device: torch.device, dtype: str, *, peer: bool
) -> dict[str, Any]:
    name, _, source = model.partition(":")
    if name != "voxcpm":
        raise ValueError(f"this benchmark is for voxcpm:…, not {model!r}")
    directory = None if source in RELEASES else checkpoint_directory(source or None)
    raw = RELEASES[source] if directory is None else json.loads((directory / "config.json").read_text())
    chosen = choose_dtype(dtype, raw["dtype"], device)
    theirs: dict[str, Any] = {"skipped": "pip install --no-deps voxcpm==2.0.3" if peer else "not asked for"}
    if peer and upstream.installed():
        console.print("[dim]bench[/] upstream")
        theirs = _upstream(raw, device, chosen, extent)
        gc.collect()
    console.print("[dim]bench[/] loading")
    network = random_network(source, device, chosen) if directory is None else load_network(directory, device, chosen)
    ours = _ours(console, network, counts, extent)
    figures: dict[str, Any] = {
        "model": model,
        "device": str(device),
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
        figures["first_packet_ratio"] = round(ours["first_packet_ms"]["1"] / first, 3)
    return figures


def _ours(console: Console, network: Network, counts: list[int], extent: Extent) -> dict[str, Any]:
    sessions = Sessions(network, max(counts), _POSITIONS)
    plain, voice = random_voice(network, 0), random_voice(network, extent.reference_s)
    out: dict[str, Any] = {
        "step_ms": {},
        "rtf": {},
        "first_packet_ms": {},
        "kv_mb": round(sessions.pools.bytes / 1e6, 1),
    }
    for count in counts:
        console.print(f"[dim]bench[/] {count} sessions")
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
