"""`voxagent demo`: a conversation through a real Pipecat pipeline, with an interruption, a WAV and a picture of it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import numpy as np
import typer
from loguru import logger
from matplotlib.figure import Figure
from numpy.typing import NDArray
from pipecat.frames.frames import AggregatedTextFrame, TTSTextFrame
from pipecat.observers.base_observer import BaseObserver, FramePushed
from pipecat.processors.aggregators.llm_context import LLMContext
from rich.console import Console

from voxagent.engine import Engine
from voxagent.errors import ModelError, VoxagentError
from voxagent.ledger import Heard
from voxagent.model import LatentModel, ModelSpec, Pcm, Step
from voxagent.models import model_load
from voxagent.pcm import write_wav
from voxagent_pipecat.gate import BargeInGate
from voxagent_pipecat.rehearsal import Rehearsal, Reply, rehearsal, replies_in
from voxagent_pipecat.service import VoxAgentTTSService

_RATE = 24000
_CUT_AFTER_S = 4.2
_LONG = (
    "Good morning! I looked at your booking for May 3rd, and there are two ways to change it. The first one costs "
    "$25, and it moves you to the evening train at 7:45 p.m. The second one is free, but you would have to travel a "
    "day later and change trains twice on the way."
)


@dataclass(slots=True)
class _Record:
    """What happened when, on the event loop's clock."""

    phrases: list[tuple[float, str]] = field(default_factory=list)
    chunks: list[tuple[float, float]] = field(default_factory=list)
    interrupted_s: float = 0.0
    heard: list[Heard] = field(default_factory=list)


class _Watched:
    """A model that notes when it makes chunks, and is otherwise the one it stands for."""

    def __init__(self, model: LatentModel[Any], record: _Record) -> None:
        self._model = model
        self._record = record
        self.load_voice, self.open, self.prefill = model.load_voice, model.open, model.prefill
        self.cancel, self.close = model.cancel, model.close

    @property
    def spec(self) -> ModelSpec:
        return self._model.spec

    def step(self, slots: Sequence[Any], ahead_s: Sequence[float] = ()) -> Sequence[Step | Exception]:
        return self._model.step(slots, ahead_s)

    def decode(self, slots: Sequence[Any], latents: Sequence[Any]) -> Sequence[Pcm | Exception]:
        started_s = monotonic()
        pcm = self._model.decode(slots, latents)
        self._record.chunks.append((started_s, monotonic()))
        return pcm


class _PhraseObserver(BaseObserver):
    """Notes the phrases as the service announces them."""

    def __init__(self, record: _Record) -> None:
        super().__init__()
        self._record = record
        self._seen: set[int] = set()

    async def on_push_frame(self, data: FramePushed) -> None:
        frame = data.frame
        if not isinstance(frame, AggregatedTextFrame) or isinstance(frame, TTSTextFrame):
            return
        if frame.id not in self._seen:
            self._seen.add(frame.id)
            self._record.phrases.append((asyncio.get_running_loop().time(), frame.text))


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the WAV and the picture.")] = Path("out"),
    model: Annotated[str, typer.Option(help="Model, as name or name:source.")] = "piper",
) -> None:
    """Speaks a reply token by token through a Pipecat pipeline, is interrupted, and goes on."""
    logger.remove()
    logger.add(sys.stderr, level="WARNING")
    console = Console(highlight=False)
    out.mkdir(parents=True, exist_ok=True)
    try:
        asyncio.run(_converse(console, model, out))
    except (ValueError, VoxagentError) as error:
        console.print(f"[bold red]error:[/] {error}", markup=True)
        raise typer.Exit(2) from error


async def _converse(console: Console, model: str, out: Path) -> None:
    record = _Record()
    load = model_load(model)
    engine = Engine(lambda: _Watched(load(), record))
    with console.status(f"loading {model} …"):
        await engine.start()
    record.chunks.clear()
    tts = VoxAgentTTSService(model, engine=engine)
    tts.add_event_handler("on_turn_spoken", lambda _service, _context, heard, _cut: record.heard.append(heard))
    observer = _PhraseObserver(record)
    replies: list[str | Reply] = [_LONG, _second_reply]
    try:
        async with rehearsal(tts, replies, gate=BargeInGate(), sample_rate=_RATE, observers=[observer]) as call:
            async with asyncio.timeout(60):
                await _first_turn(console, call, record)
                await _second_turn(console, call, record)
            start_s = call.llm.token_times_s[0]
            pcm = _played(call, start_s)
            write_wav(out / "demo.wav", pcm, _RATE)
            _draw(out / "demo.png", call, record, pcm, start_s)
    except TimeoutError:
        raise ModelError("the bot did not speak within a minute: run `voxagent doctor`") from None
    finally:
        await engine.aclose()
    console.print(f"written: {out / 'demo.wav'} ({len(pcm) / _RATE:.1f} s), {out / 'demo.png'}")


async def _first_turn(console: Console, call: Rehearsal, record: _Record) -> None:
    loop = asyncio.get_running_loop()
    console.print("[bold]caller[/]  Can I change my booking?")
    await call.ask("Can I change my booking?")
    while not call.transport.stamps:
        await asyncio.sleep(0.01)
    first_ms = 1000 * (call.transport.stamps[0].start_s - call.llm.token_times_s[0])
    console.print(f"[bold]bot[/]     {_LONG}\n        [dim]first token to first audio {first_ms:.0f} ms[/]")
    await asyncio.sleep(call.transport.stamps[0].start_s + _CUT_AFTER_S - loop.time())
    record.interrupted_s = await call.interrupt()
    await asyncio.sleep(0.3)
    last_s = call.transport.last_audible_s() or record.interrupted_s
    heard = record.heard[-1]
    console.print(
        f"[bold red]cut[/]     heard: {heard.heard!r}\n        cut in: {heard.partly!r}\n"
        f"        in the LLM's context: {call.committed()[-1]!r}\n"
        f"        [dim]interrupt to silence {1000 * (last_s - record.interrupted_s):.0f} ms[/]"
    )


async def _second_turn(console: Console, call: Rehearsal, record: _Record) -> None:
    question = "Sorry, how much was the first one?"
    console.print(f"[bold]caller[/]  {question}")
    await call.ask(question)
    while len(record.heard) < 2:
        await asyncio.sleep(0.05)
    console.print(f"[bold]bot[/]     {record.heard[-1].heard}")


def _second_reply(context: LLMContext) -> str:
    said = replies_in(context)
    where = said[-1].split()[-1].strip(".,") if said and said[-1] else "nothing"
    return f"You stopped me at the word {where}. The first one costs $25. Shall I book it for you?"


def _played(call: Rehearsal, start_s: float) -> NDArray[np.int16]:
    """What the loudspeaker played, its silences included, from a moment on."""
    stamps, pcm = call.transport.stamps, call.transport.pcm
    length = round((stamps[-1].end_s - start_s) * _RATE) + 1
    line = np.zeros(length, np.int16)
    for stamp in stamps:
        at = round((stamp.start_s - start_s) * _RATE)
        piece = pcm[stamp.first_sample : stamp.first_sample + stamp.samples][: length - at]
        line[at : at + len(piece)] = piece
    return line


def _draw(path: Path, call: Rehearsal, record: _Record, pcm: NDArray[np.int16], start_s: float) -> None:
    """Five lanes over one clock: tokens, phrases, chunks, playout, and the interruption through all of them."""
    figure = Figure(figsize=(16, 6), layout="constrained")
    tokens, phrases, chunks, playout = figure.subplots(4, 1, sharex=True, height_ratios=[1, 2.4, 1, 3])
    tokens.vlines([at - start_s for at in call.llm.token_times_s], 0, 1, color="tab:blue", linewidth=1)
    for index, (at_s, text) in enumerate(record.phrases):
        phrases.axvline(at_s - start_s, color="tab:orange", linewidth=0.8)
        label = text if len(text) <= 34 else text[:33] + "…"
        phrases.text(at_s - start_s + 0.03, 0.88 - 0.24 * (index % 4), label, fontsize=7.5, va="center")
    chunks.broken_barh(
        [(begin - start_s, max(end - begin, 0.01)) for begin, end in record.chunks], (0, 1), color="tab:green"
    )
    times = np.arange(0, len(pcm), 24) / _RATE
    playout.plot(times, pcm[::24] / 32768, color="tab:gray", linewidth=0.5)
    for axes, name in ((tokens, "tokens"), (phrases, "phrases"), (chunks, "chunks"), (playout, "playout")):
        axes.axvline(record.interrupted_s - start_s, color="tab:red", linewidth=1.6)
        axes.set_ylabel(name)
        axes.set_yticks([])
    tokens.set_title("LLM tokens in, phrases cut, latent chunks decoded, audio played; red: the caller interrupts")
    playout.set_xlabel("seconds since the first token")
    figure.savefig(path, dpi=110)
