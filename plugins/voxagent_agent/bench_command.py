"""The command `voxagent bench call`."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from voxagent.errors import VoxagentError
from voxagent_agent.benchmark import Extent, measure


def bench_call(
    barge_ins: Annotated[int, typer.Option(help="Barge-ins with real speech.", min=1)] = 15,
    cuts: Annotated[int, typer.Option(help="Cuts at random points.", min=4)] = 200,
    noises: Annotated[int, typer.Option(help="Of each noise and backchannel.", min=1)] = 4,
    stops: Annotated[int, typer.Option(help="Of each stop word.", min=1)] = 5,
    seconds: Annotated[float, typer.Option(help="Of continuous speech under each load.", min=5)] = 60.0,
    calls: Annotated[int, typer.Option(help="One after another.", min=1)] = 300,
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON on one line only.")] = False,
) -> None:
    """How a whole agent behaves on a WebRTC call: barge-in, truth, steadiness, response, leaks."""
    console = Console(stderr=True, highlight=False)
    try:
        extent = Extent(barge_ins, cuts, noises, stops, seconds, calls)
        figures = asyncio.run(measure(extent, lambda text: console.print(f"[dim]bench[/] {text}")))
    except (ValueError, VoxagentError, TimeoutError) as error:
        console.print(f"[bold red]error:[/] {escape(str(error))}")
        raise typer.Exit(2) from error
    if not as_json:
        console.print_json(json.dumps(figures))
    typer.echo(json.dumps(figures))
