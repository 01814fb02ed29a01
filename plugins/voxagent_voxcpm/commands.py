"""The commands `voxagent bench sessions` and `voxagent voice`. PyTorch is imported when one runs, not before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from voxagent.errors import VoxagentError
from voxagent_voxcpm.stored import remove_voice, stored_voices, voice_path

voice = typer.Typer(no_args_is_help=True, help="Voices of your own: add, list, remove.")

Model = Annotated[
    str, typer.Option(help="The model that will speak it, e.g. voxcpm:DIRECTORY or voxcpm:openbmb/VoxCPM2.")
]


def _fail(error: Exception) -> typer.Exit:
    Console(stderr=True, highlight=False).print(f"[bold red]error:[/] {escape(str(error))}")
    return typer.Exit(2)


def bench_sessions(
    model: Annotated[
        str,
        typer.Option(help="voxcpm:DIRECTORY or hub id, or voxcpm:0.5b, 1.5 or v2 for that shape with random weights."),
    ] = "voxcpm:v2",
    calls: Annotated[str, typer.Option(help="Sessions together, one figure each.")] = "1,2,4,8",
    steps: Annotated[int, typer.Option(help="Solver steps.", min=2)] = 10,
    first_steps: Annotated[int, typer.Option(help="Of the first patch.", min=2)] = 4,
    patches: Annotated[int, typer.Option(help="Steps a figure.", min=2)] = 6,
    rounds: Annotated[int, typer.Option(help="Repetitions of first packets and cancels.", min=1)] = 3,
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
    try:
        from voxagent_voxcpm.bench import measure
        from voxagent_voxcpm.measure import Extent

        extent = Extent(patches, steps=steps, first_steps=first_steps, reference_s=reference_s, rounds=rounds)
        counts = [int(part) for part in calls.split(",")]
        if min(counts) < 1:
            raise ValueError("--calls takes numbers from 1 on, such as 1,2,4,8")
        figures = measure(
            lambda text: console.print(f"[dim]bench[/] {text}"), model, counts, extent, device, dtype, peer=peer
        )
    except (ValueError, ImportError) as error:
        raise _fail(error) from error
    if not as_json:
        console.print_json(json.dumps(figures))
    typer.echo(json.dumps(figures))


@voice.command("add")
def add(
    name: Annotated[str, typer.Argument(help="Name of the voice: letters, digits, dots, dashes.")],
    recording: Annotated[Path | None, typer.Argument(help="A recording of 0.5 to 60 s, best 5 to 30 s.")] = None,
    text: Annotated[str, typer.Option(help="What is said in it. Releases before VoxCPM2 need it.")] = "",
    design: Annotated[str, typer.Option(help='Invent a voice in place of a recording: "a young woman, warm".')] = "",
    seed: Annotated[int, typer.Option(help="Of an invented voice: another seed, another voice.")] = 0,
    model: Model = "voxcpm",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    replace: Annotated[bool, typer.Option("--replace", help="Replace a voice of that name.")] = False,
) -> None:
    """Makes a voice of a recording, or invents one, and keeps it for this model.

    Use recordings of people only with their consent.
    """
    try:
        path = voice_path(name)
        if path.exists() and not replace:
            raise ValueError(f"there is a voice {name!r} already: choose another name, or give --replace")
        if (recording is None) == (not design):
            raise ValueError("give a recording, or --design with a description")
        kind, _, source = model.partition(":")
        if kind != "voxcpm":
            raise ValueError(f"voices can be added for voxcpm, not for {kind!r}")
        from voxagent_voxcpm.model import create
        from voxagent_voxcpm.voice import save_voice

        speaker = create(source or None, {"device": device})
        if recording is None:
            made = speaker.design_voice(name, design, text, seed)
        else:
            made = speaker.record_voice(name, str(recording), None, text)
        save_voice(path, made, speaker.revision, speaker.spec.sample_rate)
    except (ValueError, ImportError, OSError, VoxagentError) as error:
        raise _fail(error) from error
    typer.echo(f'{path}\nuse it: voxagent say --model {model} --voice {name} "Hello"')


@voice.command("list")
def list_voices(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list.")] = False) -> None:
    """Lists the voices that were added."""
    found = stored_voices()
    if as_json:
        typer.echo(json.dumps([each.as_dict() for each in found], ensure_ascii=False))
        return
    for each in found:
        typer.echo(f"{each.name}\t{each.path}")
    if not found:
        typer.echo("no voices yet: voxagent voice add NAME RECORDING --model voxcpm:DIRECTORY", err=True)


@voice.command("remove")
def remove(name: Annotated[str, typer.Argument(help="Name of the voice.")]) -> None:
    """Removes a voice that was added."""
    try:
        remove_voice(name)
    except ValueError as error:
        raise _fail(error) from error
