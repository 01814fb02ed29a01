"""`voxagent phrases`: how a text is cut and said, in virtual time: a stand-in for an LLM, and one for a player."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from voxagent.phrases import FIRST_S, Phrase, PhraseSplitter, speech_seconds
from voxagent.pronunciations import PronunciationFile
from voxagent.reading import Reading
from voxagent.say import tokens
from voxagent.virtual_player import VirtualPlayer

_COLOURS = {
    "sentence": "green",
    "line": "green",
    "clause": "cyan",
    "silent": "bright_black",
    "runway": "yellow",
    "stall": "magenta",
    "cap": "red",
    "flush": "blue",
    "end": "blue",
}
_MARGIN = 46  # columns before the text
_LEAST_WIDTH = 24


@dataclass(frozen=True, slots=True)
class Released:
    """One phrase as it was released.

    Attributes:
        phrase: The phrase.
        at_s: When, after the first token.
        runway_s: Audio left to play at that moment.
        fed: Characters that had come by then.
    """

    phrase: Phrase
    at_s: float
    runway_s: float
    fed: int


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A text fed to the splitter as an LLM would.

    Attributes:
        released: What came out, in order.
        gaps: Times the player ran dry in mid-turn.
        silent_s: Seconds it was dry.
    """

    released: tuple[Released, ...]
    gaps: int
    silent_s: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        sounding = [one for one in self.released if one.phrase.spoken]
        return {
            "phrases": [
                {
                    "text": one.phrase.text,
                    "start": one.phrase.start,
                    "end": one.phrase.end,
                    "spoken": one.phrase.spoken,
                    "reason": one.phrase.reason,
                    "released_s": round(one.at_s, 3),
                    "runway_s": round(one.runway_s, 3),
                    "seconds": round(speech_seconds(one.phrase.spoken), 3),
                }
                for one in self.released
            ],
            "first_release_chars": sounding[0].fed if sounding else None,
            "first_release_s": round(sounding[0].at_s, 3) if sounding else None,
            "underruns": self.gaps,
            "underruns_s": round(self.silent_s, 3),
        }


def rehearse(
    text: str,
    splitter: PhraseSplitter,
    tokens_per_s: float = 25.0,
    stalls: Sequence[tuple[int, float]] = (),
    first_audio_s: float = 0.05,
) -> Rehearsal:
    """Feeds a text token by token, in virtual time, beside a player that asks for more when it runs low.

    Args:
        text: The whole text.
        splitter: A fresh one.
        tokens_per_s: Speed of the LLM; 0 gives the text at once, but for its stalls.
        stalls: After how many characters the LLM pauses, and for how many seconds.
        first_audio_s: From a phrase's release to its first sound.
    """
    player = VirtualPlayer(first_audio_s)
    released: list[Released] = []
    due_s, fed, pauses = 0.0, 0, sorted(stalls)

    def note(phrases: list[Phrase]) -> None:
        for phrase in phrases:
            released.append(Released(phrase, player.now_s, player.runway_s, fed))
            player.take([phrase])

    def wait(until_s: float) -> None:
        while (poll_s := splitter.next_deadline_s) is not None and poll_s < until_s:
            player.now_s = max(player.now_s + 0.001, poll_s)
            note(splitter.poll(player.now_s, player.runway_s))
        player.now_s = max(player.now_s, until_s)

    for token in tokens(text) if tokens_per_s > 0 or stalls else [text]:
        while pauses and pauses[0][0] <= fed:
            due_s += pauses.pop(0)[1]
        wait(due_s)
        fed += len(token)
        note(splitter.push(token, player.now_s))
        due_s += 1 / tokens_per_s if tokens_per_s > 0 else 0
    if pauses:
        wait(due_s + sum(seconds for _, seconds in pauses))
    note(splitter.end(player.now_s))
    return Rehearsal(tuple(released), player.gaps, player.silent_s)


def phrases(
    file: Annotated[str, typer.Argument(help="Text file, or - for standard input.")] = "-",
    language: Annotated[str | None, typer.Option(help="Language of the text; by its script if not given.")] = None,
    tokens_per_s: Annotated[float, typer.Option(help="Speed of the stand-in LLM; 0: all at once.", min=0)] = 25.0,
    stall: Annotated[
        list[str] | None, typer.Option(help="AT:SECONDS, the LLM pauses after AT characters; repeatable.")
    ] = None,
    first_audio_ms: Annotated[float, typer.Option(help="From a release to its first sound.", min=0)] = 50.0,
    first_s: Annotated[float, typer.Option(help="Shortest first phrase, seconds of speech.")] = FIRST_S,
    code: Annotated[str, typer.Option(help="Blocks of code: skip, announce, read.")] = "skip",
    url: Annotated[str, typer.Option(help="Addresses: domain, short (host and short path), full.")] = "short",
    pronunciations: Annotated[Path | None, typer.Option(help="TOML file of pronunciations.")] = None,
    spoken: Annotated[bool, typer.Option("--spoken", help="Print only what is said, a phrase a line.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on the last line of stdout.")] = False,
) -> None:
    """Shows where a text is cut, why and when, and what is said. Nothing is synthesised and nothing waits."""
    try:
        text = _read(file)
        words = None if pronunciations is None else PronunciationFile(pronunciations)
        reading = Reading(code, url, words)  # type: ignore[arg-type]  # checked there
        splitter = PhraseSplitter(language, first_s=first_s, reading=reading)
        pauses = [_pause(value, len(text)) for value in stall or []]
        found = rehearse(text, splitter, tokens_per_s, pauses, first_audio_ms / 1000)
    except (ValueError, OSError) as error:
        console = Console(stderr=True, highlight=False)
        console.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(2) from error
    if spoken:
        for one in found.released:
            if one.phrase.spoken:
                typer.echo(one.phrase.spoken)
    elif not as_json:
        _show(Console(highlight=False, soft_wrap=True), found)
    if as_json:
        typer.echo(json.dumps(found.as_dict(), ensure_ascii=False))


def _read(file: str) -> str:
    try:
        content = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        text = io.TextIOWrapper(io.BytesIO(content), "utf-8").read()
    except FileNotFoundError as error:
        raise ValueError(f"there is no file {file}: give a text file, or - for standard input") from error
    except IsADirectoryError as error:
        raise ValueError(f"{file} is a folder: give a text file, or - for standard input") from error
    except UnicodeDecodeError as error:
        name = "standard input" if file == "-" else file
        raise ValueError(f"{name} is not UTF-8 (byte {error.start}): convert it first") from error
    if not text.strip():
        raise ValueError("the text is empty: give a file with text, or pipe some in")
    return text


def _pause(value: str, size: int) -> tuple[int, float]:
    at, _, seconds = value.partition(":")
    try:
        pause = int(at), float(seconds)
    except ValueError:
        raise ValueError(f"--stall takes AT:SECONDS, e.g. 40:1.5, not {value!r}") from None
    if pause[0] < 0 or not 0 < pause[1] < 3600:
        raise ValueError(f"--stall {value!r}: a place in the text, and seconds above 0")
    if pause[0] > size:
        raise ValueError(f"--stall {value!r}: the text has only {size} characters, name a place in it")
    return pause


def _show(console: Console, found: Rehearsal) -> None:
    for one in found.released:
        phrase, colour = one.phrase, _COLOURS.get(one.phrase.reason, "white")
        head = Text(f"{one.at_s:7.2f} s  ", style="dim")
        head.append(f"{phrase.reason:<8}", style=colour)
        head.append(f" runway {one.runway_s:4.1f} s  says {speech_seconds(phrase.spoken):4.1f} s  ", style="dim")
        console.print(head + _hanging(console, _written(phrase).append("‖", style=f"bold {colour}")))
        if not phrase.spoken:
            console.print(Text(f"{'':{_MARGIN}}silent", style="dim italic"))
        elif phrase.spoken != phrase.text.strip():
            console.print(Text(f"{'':{_MARGIN}}") + _hanging(console, _said(phrase)))
    figures = found.as_dict()
    first = figures["first_release_s"]
    lead = "nothing to say" if first is None else f"first phrase after {figures['first_release_chars']} characters, "
    lead += "" if first is None else f"{first:.2f} s"
    console.print(Text(f"{lead}; {found.gaps} gaps, {found.silent_s:.2f} s", style="dim"))


def _hanging(console: Console, text: Text) -> Text:
    """Wraps beside the margin on a terminal; a pipe gets whole lines."""
    if not console.is_terminal:
        return text
    lines = text.wrap(console, max(console.width - _MARGIN, _LEAST_WIDTH))
    for line in lines:
        line.rstrip()
    return Text(f"\n{'':{_MARGIN}}").join(lines)


def _written(phrase: Phrase) -> Text:
    shown = phrase.text.strip().replace("\n", "⏎")
    return Text(shown, style="" if phrase.spoken else "bright_black")


def _said(phrase: Phrase) -> Text:
    """What is said; what was rewritten stands out."""
    out = Text()
    for piece in phrase.speakable.pieces:
        same = phrase.text[piece.w0 : piece.w1] == phrase.spoken[piece.s0 : piece.s1]
        out.append(phrase.spoken[piece.s0 : piece.s1], style="dim" if same else "bold yellow")
    return out
