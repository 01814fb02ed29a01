"""The command line. Thin: every command lives in a module of its own, plugins add theirs by entry point."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from voxagent.benchmarks.commands import bench
from voxagent.doctor import diagnose
from voxagent.engine import Engine
from voxagent.errors import VoxagentError
from voxagent.model import SpeechOptions
from voxagent.models import model_load
from voxagent.pcm import to_int16, write_wav
from voxagent.phrases_command import phrases
from voxagent.player import Player
from voxagent.pronunciations import PronunciationFile
from voxagent.reading import Reading
from voxagent.say import Said, Saying, say
from voxagent.session import AudioChunk
from voxagent.voices import installed_voices

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Speech output for real-time voice agents.",
)
app.add_typer(bench, name="bench")
app.command("phrases")(phrases)

__all__ = ["app", "fail", "main"]

Model = Annotated[str, typer.Option(help="Model, as name or name:source, e.g. piper:/voices/en_GB-alba-medium.onnx.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on the last line of stdout.")]

CodePolicy = Annotated[str, typer.Option(help="Blocks of code: skip, announce, read.")]
UrlPolicy = Annotated[str, typer.Option(help="Addresses: domain, short (host and short path), full.")]
Dictionary = Annotated[Path | None, typer.Option(help="TOML file of pronunciations; see the README.")]


def chosen_reading(code: str, url: str, pronunciations: Path | None) -> Reading:
    """The reading that the command line asks for.

    Raises:
        ValueError: An unknown policy, or a dictionary that cannot be used.
    """
    words = None if pronunciations is None else PronunciationFile(pronunciations)
    return Reading(code, url, words)  # type: ignore[arg-type]  # checked there


def fail(message: str) -> typer.Exit:
    """Prints an error in one line and gives the exit to raise."""
    Console(stderr=True).print(f"[bold red]error:[/] {escape(message)}", highlight=False, soft_wrap=True)
    return typer.Exit(2)


def option_pairs(pairs: list[str]) -> dict[str, object]:
    """Turns ``name=value`` arguments into options."""
    options: dict[str, object] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ValueError(f"--option takes name=value, not {pair!r}")
        options[name] = value
    return options


@app.command("say")
def say_command(
    text: Annotated[str, typer.Argument(help="What to say; - reads it from standard input.")] = "-",
    out: Annotated[Path | None, typer.Option(help="Write what was heard to this WAV file.")] = None,
    model: Model = "piper",
    voice: Annotated[str | None, typer.Option(help="Voice, by name or path; see `voxagent voices`.")] = None,
    language: Annotated[str | None, typer.Option(help="Language of the text, e.g. en.")] = None,
    speed: Annotated[float, typer.Option(help="Speech rate, 0.5 to 2.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Equal seeds give equal audio.")] = None,
    tokens_per_s: Annotated[
        float, typer.Option(help="Speed of the stand-in LLM; 0: all at once, rendered as fast as possible.")
    ] = 25.0,
    interrupt_after: Annotated[
        float | None, typer.Option(help="Interrupt after this many seconds of speech.", min=0.0)
    ] = None,
    play: Annotated[bool, typer.Option("--play", help="Play it as well.")] = False,
    code: CodePolicy = "skip",
    url: UrlPolicy = "short",
    pronunciations: Dictionary = None,
    reference: Annotated[str | None, typer.Option(help="Recording of the voice (VoxCPM2).", metavar="WAV")] = None,
    prompt_wav: Annotated[str | None, typer.Option(help="Recording to go on from (VoxCPM).", metavar="WAV")] = None,
    prompt_text: Annotated[str | None, typer.Option(help="What is said in --prompt-wav.")] = None,
    steps: Annotated[int | None, typer.Option(help="Solver steps a chunk (VoxCPM).")] = None,
    first_steps: Annotated[int | None, typer.Option(help="Of the first chunks (VoxCPM).")] = None,
    cfg: Annotated[float | None, typer.Option(help="Guidance (VoxCPM).")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, mps (VoxCPM).")] = None,
    option: Annotated[list[str] | None, typer.Option(help="Option of the model, name=value; repeatable.")] = None,
    as_json: AsJson = False,
) -> None:
    """Speaks a text token by token through the real engine, and tells how fast it was."""
    console = Console(stderr=as_json, highlight=False)
    try:
        saying = Saying(
            text=sys.stdin.read() if text == "-" else text,
            tokens_per_s=tokens_per_s,
            interrupt_after_s=interrupt_after,
            voice=voice,
            options=SpeechOptions(language, speed),
            seed=seed,
            reading=chosen_reading(code, url, pronunciations),
        )
        # Before a word is spoken: a long text must not be lost to a missing folder.
        player = Player.find() if play else None
        if out is not None:
            _check_folder(out)
        named = {
            "reference": reference, "prompt_wav": prompt_wav, "prompt_text": prompt_text, "steps": steps,
            "first_steps": first_steps, "cfg": cfg, "device": device,
        }  # fmt: skip
        options = {name: value for name, value in named.items() if value is not None} | option_pairs(option or [])
        said = asyncio.run(_say(console, model, options, saying))
        if out is not None:
            write_wav(out, to_int16(said.pcm), said.sample_rate)
        if player is not None:
            player.play(said.pcm, said.sample_rate)
    except (ValueError, VoxagentError, OSError) as error:
        raise fail(str(error)) from error
    if said.error is not None:
        raise fail(str(said.error))
    _show(console, said, out)
    if as_json:
        typer.echo(json.dumps(said.figures, ensure_ascii=False))


async def _say(console: Console, model: str, options: dict[str, object], saying: Saying) -> Said:
    engine = Engine(model_load(model, options))
    try:
        with _spinner(console, f"loading {model}"):
            await engine.start()
            await engine.load_voice(saying.voice)
        rate = engine.spec.sample_rate

        def show_phrase(chunk: AudioChunk) -> None:
            at_s = chunk.start_sample / rate
            console.print(
                f"[dim]{at_s:7.2f} s[/]  {escape(repr(chunk.phrase.text.strip()))}  [dim]{chunk.phrase.reason}[/]"
            )

        return await say(engine, saying, show_phrase)
    finally:
        await engine.aclose()


def _spinner(console: Console, text: str) -> AbstractContextManager[Any]:
    return console.status(f"{text} …")


def _show(console: Console, said: Said, out: Path | None) -> None:
    figures = said.figures
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    names = {
        "ttfa_ms": ("first token to first audible sample", "ms"),
        "first_phrase_ms": ("first phrase complete to first audible sample", "ms"),
        "audio_s": ("audio", "s"),
        "rtf": ("model time per second of audio", ""),
        "underruns": ("underruns", ""),
        "silence_ms": ("interrupt to last audible sample", "ms"),
        "model_idle_ms": ("interrupt to model idle, slot free", "ms"),
        "heard": ("heard", ""),
        "unheard": ("not heard", ""),
    }
    for key, (name, unit) in names.items():
        if figures.get(key) is not None:
            table.add_row(f"[dim]{name}[/]", escape(f"{figures[key]} {unit}".strip()))
    if out is not None:
        table.add_row("[dim]written to[/]", str(out))
    console.print(table)


def _check_folder(path: Path) -> None:
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {path}: the folder {path.parent} does not exist, make it first")


@app.command("voices")
def voices_command(as_json: AsJson = False) -> None:
    """Lists the voices that can be used right away."""
    found = installed_voices()
    if as_json:
        typer.echo(json.dumps([voice.as_dict() for voice in found], ensure_ascii=False))
        return
    table = Table("model", "voice", "language", "rate", "licence")
    for voice in found:
        table.add_row(voice.model, voice.name, voice.language, f"{voice.sample_rate} Hz", voice.licence)
    Console().print(table)


@app.command("doctor")
def doctor_command(as_json: AsJson = False) -> None:
    """Tells what is installed, what is missing, and how to get it."""
    checks = diagnose()
    if as_json:
        typer.echo(json.dumps([check.as_dict() for check in checks], ensure_ascii=False))
    else:
        table = Table("", "what", "found", "how to get it", box=None, padding=(0, 2, 0, 0))
        for check in checks:
            mark = "[green]ok[/]" if check.ok else ("[red]missing[/]" if check.required else "[dim]absent[/]")
            table.add_row(mark, check.name, check.found, "" if check.ok else escape(check.cure))
        Console(highlight=False).print(table)
    if any(check.required and not check.ok for check in checks):
        raise typer.Exit(1)


def _add_plugin_commands(arguments: Sequence[str] = ()) -> None:
    """Plugins hang their commands under the app by the entry point groups `voxagent.commands` and `.benchmarks`.

    A plugin may take a second to import: only what `arguments` name is added, or all of the level that they ask about.
    """
    named = [argument for argument in arguments if not argument.startswith("-")]
    first = named[0] if named else ""
    if first == "bench":
        group, parent, wanted = "voxagent.benchmarks", bench, named[1:2]
    elif first in {command.name for command in app.registered_commands}:
        return
    else:
        group, parent, wanted = "voxagent.commands", app, named[:1]
    for point in entry_points(group=group):
        if not wanted or point.name in wanted:
            _add_command(point, parent)


def _add_command(point: EntryPoint, parent: typer.Typer) -> None:
    try:
        loaded = point.load()
    except ImportError as error:
        whatever = {"ignore_unknown_options": True, "allow_extra_args": True}
        parent.command(point.name, context_settings=whatever)(_missing(point, error))
        return
    if isinstance(loaded, typer.Typer):
        parent.add_typer(loaded, name=point.name)
    else:
        parent.command(point.name)(loaded)


def _missing(point: EntryPoint, error: ImportError) -> Callable[[], None]:
    extras = ",".join(point.extras)

    def command() -> None:
        cure = f"'pipecat-voxagent[{extras}]'" if extras else "the package of that command again"
        raise fail(f"`{point.name}` needs {error.name}: pip install {cure}")

    command.__doc__ = f"Not available: {error.name} is not installed."
    return command


def main() -> None:
    """The console script."""
    _add_plugin_commands(sys.argv[1:])
    app()
