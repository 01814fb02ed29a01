"""The commands under `voxagent bench`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from voxagent.benchmarks import phrase_set, phrases, turn, wer
from voxagent.engine import Engine
from voxagent.errors import VoxagentError
from voxagent.models import model_load

Peer = Callable[[int, turn.Progress], Awaitable[dict[str, Any]]]

bench = typer.Typer(no_args_is_help=True, help="Benchmarks: each prints one JSON object on its last line.")

AsJson = Annotated[bool, typer.Option("--json", help="Print the JSON on one line, without a copy to read.")]


def _print(console: Console, figures: dict[str, Any], as_json: bool) -> None:
    if not as_json:
        console.print_json(json.dumps(figures))
    typer.echo(json.dumps(figures))


def _progress(console: Console) -> turn.Progress:
    return lambda text: console.print(f"[dim]bench[/] {text}")


@bench.command("turn")
def turn_command(
    model: Annotated[str, typer.Option(help="Model, as name or name:source.")] = "piper",
    turns: Annotated[int, typer.Option(help="Turns a figure.", min=1)] = 20,
    interrupts: Annotated[int, typer.Option(help="Interrupts of the leak check.", min=0)] = 1000,
    seconds: Annotated[float, typer.Option(help="Length of the test with many turns at once.", min=1)] = 12.0,
    peers: Annotated[bool, typer.Option(help="Run whole pipelines beside it, Pipecat's own Piper service too.")] = True,
    as_json: AsJson = False,
) -> None:
    """How fast a turn starts, stops and starts again, how many fit, and what an interrupt leaves behind."""
    console = Console(stderr=True, highlight=False)
    try:
        figures = asyncio.run(_turn(console, model, turn.Extent(turns, interrupts, seconds), peers))
    except (ValueError, VoxagentError) as error:
        console.print(f"[bold red]error:[/] {escape(str(error))}")
        raise typer.Exit(2) from error
    _print(console, figures, as_json)


async def _turn(console: Console, model: str, extent: turn.Extent, peers: bool) -> dict[str, Any]:
    progress = _progress(console)
    engine = Engine(model_load(model))
    await engine.start()
    try:
        figures = await turn.measure(engine, extent, progress)
    finally:
        await engine.aclose()
    figures["peers"] = {}
    for point in entry_points(group="voxagent.peers") if peers else ():
        try:
            measure: Peer = point.load()
        except ImportError as error:
            figures["peers"][point.name] = {"absent": f"{error.name} is not installed"}
            continue
        figures["peers"][point.name] = await measure(extent.turns, progress)
    return figures


@bench.command("wer")
def wer_command(
    model: Annotated[str, typer.Option(help="Model, as name or name:source.")] = "piper",
    sentences: Annotated[int, typer.Option(help="How many sentences.", min=1)] = 40,
    as_json: AsJson = False,
) -> None:
    """Word error rate of the speech as Whisper base hears it (extra `eval`)."""
    console = Console(stderr=True, highlight=False)
    try:
        figures = asyncio.run(wer.measure(model, sentences, _progress(console)))
    except (ValueError, VoxagentError) as error:
        console.print(f"[bold red]error:[/] {escape(str(error))}")
        raise typer.Exit(2) from error
    _print(console, figures, as_json)


@bench.command("phrases")
def phrases_command(
    sets: Annotated[
        list[Path] | None,
        typer.Option("--set", help="Phrase and spoken rows as JSON Lines: a file, or a folder of them; repeatable."),
    ] = None,
    cuts: Annotated[int, typer.Option(help="Random ways to cut the texts into tokens.", min=1)] = 1000,
    chars: Annotated[int, typer.Option(help="Characters of the timed text.", min=1000)] = 200_000,
    peers: Annotated[bool, typer.Option(help="Score other splitters in the same run.")] = True,
    as_json: AsJson = False,
) -> None:
    """Where text is cut and how it is said: wrong and missed cuts, time to the first phrase, stalls, cost."""
    console = Console(stderr=True, highlight=False)
    points = entry_points(group="voxagent.splitters") if peers else ()
    try:
        gold = phrase_set.read(sets or [])
        figures = phrases.measure(gold, points, phrases.Extent(cuts, chars), _progress(console))
    except (ValueError, VoxagentError) as error:
        console.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(2) from error
    _show_worst(console, figures)
    _print(console, figures, as_json)


def _show_worst(console: Console, figures: dict[str, Any]) -> None:
    for row in figures["worst"]:
        faults = [f"wrong {cut!r}" for cut in row["wrong"]] + [f"missed {cut!r}" for cut in row["missed"]]
        waited = f"first phrase after {row['first_chars']} characters (floor {row['floor_chars']})"
        console.print(f"[dim]worst[/] {escape(row['id'])}: {escape('; '.join([*faults, waited]))}", soft_wrap=True)
    for row in figures["spoken_detail"]["worst"]:
        said = f"{row['text']!r} is said {row['spoken']!r}, not {row['nearest']!r}"
        console.print(f"[dim]worst[/] {escape(row['id'])}: {escape(said)}", soft_wrap=True)
