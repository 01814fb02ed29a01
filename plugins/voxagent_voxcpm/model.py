"""VoxCPM as the engine sees it: sessions that are opened, take phrases in, and step together.

Called by the engine's one thread, but for `load_voice` and `cancel`. The order inside a step is what makes the first
audio early: solver, then out; the language models take a patch in at the start of the step after.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from voxagent.errors import EngineFull
from voxagent.model import ModelSpec, Pcm, SpeechOptions, Step, Voice
from voxagent.pcm import read_audio, silent_head
from voxagent.phrases import Phrase
from voxagent_voxcpm.casing import calm
from voxagent_voxcpm.config import read_config
from voxagent_voxcpm.guards import Guard, Limits
from voxagent_voxcpm.hub import checkpoint_directory
from voxagent_voxcpm.kv import Span
from voxagent_voxcpm.network import AUDIO_START, Hidden, Network, load_network
from voxagent_voxcpm.options import VoxOptions, choose_device, choose_dtype, parse_options
from voxagent_voxcpm.slots import Intake, Slot, joined
from voxagent_voxcpm.solver import Task, solve
from voxagent_voxcpm.tokens import Tokens
from voxagent_voxcpm.voice import MAX_SECONDS, VoxVoice, encode_recording, make_voice, read_voice, revision

_HURRY_PATCHES = 2  # of a turn: the listener waits for them
_SHORT_S, _PLENTY_S = 0.2, 1.0
_PHRASE_S = 8.0
_NOTHING: Pcm = np.zeros(0, np.float32)

T = TypeVar("T")
R = TypeVar("R")


class VoxModel:
    """A VoxCPM checkpoint for many sessions.

    Args:
        directory: Of the checkpoint.
        options: What the user set.

    Raises:
        ValueError: An unusable checkpoint, device or voice. The message names the cure.
    """

    def __init__(self, directory: Path, options: VoxOptions) -> None:
        if options.threads is not None:
            torch.set_num_threads(options.threads)
        device = choose_device(options.device)
        config = read_config(directory / "config.json")
        self.network: Network = load_network(directory, device, choose_dtype(options.dtype, config.dtype, device))
        self._tokens = Tokens(directory / "tokenizer.json")
        self._options = options
        self._limits = replace(Limits(), min_len=options.min_len, most_per_token=options.most_per_token)
        self.revision = revision(directory)
        self._pools = self.network.pools(options.slots, options.positions)
        self._free = list(range(options.slots))[::-1]
        self._history_patches = round(options.history_s * config.patches_per_s)
        self._spec = ModelSpec(
            "voxcpm",
            config.audio.decode_rate,
            config.chunk_samples,
            slots=options.slots,
            max_batch=options.batch,
            max_phrase_s=_PHRASE_S,
            languages=() if config.v2 else ("zh", "en"),
            clones=True,
            continues=options.strategy == "continue",
            foresees=True,
        )

    @property
    def spec(self) -> ModelSpec:
        """Rates and limits."""
        return self._spec

    @property
    def free_slots(self) -> int:
        """Slots that nobody has."""
        return len(self._free)

    # Voices.

    def load_voice(self, source: str | None) -> VoxVoice:
        """Loads a voice.

        Args:
            source: A file of `voxagent voice add`, or a recording of 0.5 to 60 s in any format that FFmpeg reads; None
                is the voice of the options, or none at all: each turn then sounds as the seed has it.
        """
        options = self._options
        if source is None:
            return self.record_voice("voxcpm", options.reference, options.prompt_wav, options.prompt_text)
        path = Path(source)
        if not path.is_file():
            raise ValueError(
                f"there is no voice {source!r}: give a voice file or a recording, or add one by `voxagent voice add`"
            )
        if path.suffix == ".safetensors":
            return read_voice(path, self.network, self.revision)
        return self.record_voice(path.stem, source, None, "")

    def record_voice(self, name: str, reference: str | None, prompt_wav: str | None, prompt_text: str) -> VoxVoice:
        """Makes a voice of recordings; a reference whose text is known serves a release without reference mode."""
        if reference is not None and prompt_wav is None and prompt_text and not self.network.config.v2:
            reference, prompt_wav = None, reference
        return make_voice(
            self.network,
            name,
            reference=None if reference is None else self._encode(reference, pad_left=False),
            prompt=None if prompt_wav is None else self._encode(prompt_wav, pad_left=True),
            prompt_text=prompt_text,
        )

    def _encode(self, path: str, *, pad_left: bool) -> Tensor:
        rate = self.network.config.audio.encode_rate
        audio = torch.from_numpy(read_audio(Path(path), rate, max_s=MAX_SECONDS + 1))
        return encode_recording(self.network, audio, rate, path, pad_left=pad_left)

    # Sessions.

    def open(self, voice: Voice, options: SpeechOptions, seed: int) -> Slot:
        """Takes a slot and puts the voice's reference at its start."""
        if not isinstance(voice, VoxVoice):
            raise TypeError(f"not a VoxCPM voice: {voice!r}")
        if not self._free:
            raise EngineFull("all slots of the model are taken", retry_after_s=1.0)
        row = self._free.pop()
        config = self.network.config
        silence = torch.zeros(config.patch, config.feat_dim, device=self.network.device, dtype=self.network.dtype)
        if voice.past is not None:
            self._pools.lm.write(row, voice.past.lm)
            self._pools.residual.write(row, voice.past.residual)
        return Slot(row, voice, seed, voice.primed, silence)

    def cancel(self, slot: Slot) -> None:
        """Ends a running call of this slot at its next solver call."""
        slot.cancelled = True

    def close(self, slot: Slot) -> None:
        """Gives the slot back; the next owner overwrites what lies in it."""
        slot.cancelled = True
        if slot.row >= 0:
            self._free.append(slot.row)
            slot.row = -1
        slot.history.clear()
        slot.patches = []

    # Phrases.

    @torch.inference_mode()
    def prefill(self, slot: Slot, phrase: Phrase) -> bool:
        """Takes the next piece of the phrase in; True when all of it is."""
        intake = slot.intake
        if intake is None or intake.phrase != phrase:
            intake = slot.intake = self._begin(slot, phrase)
        count = min(self._options.piece, intake.size - intake.done)
        if count and not slot.cancelled:
            slot.hidden = self._take_in(slot, intake, count)
        if intake.done < intake.size and not slot.cancelled:
            return False
        slot.intake = None
        return True

    def _begin(self, slot: Slot, phrase: Phrase) -> Intake:
        """Leaves the last phrase behind and lays out what stands before the sound of this one."""
        voice = slot.voice
        slot.remember(self._history_patches if self._spec.continues else 0)
        # By place, not drawn on: a phrase that was foreseen and did not come leaves no trace.
        slot.random.manual_seed((slot.seed + 0x9E3779B97F4A7C15 * phrase.start) % (1 << 63))
        slot.text = calm(phrase.spoken, phrase.text).strip()
        slot.noise, slot.hidden, slot.ending, slot.emitted = None, None, "", False
        slot.position = voice.past.positions if voice.past is not None else 0
        tokens = len(self._tokens.encode(slot.text))
        guard = Guard(tokens, self.network.config.patches_per_s, self._limits)
        slot.guard = guard if tokens else None
        if not tokens:
            return Intake(phrase, [], slot.latest[None][:0])
        intake = self._lay_out(slot, phrase)
        while slot.history and self._room(slot, intake) < guard.cap:
            slot.history.popleft()
            intake = self._lay_out(slot, phrase)
        if (room := self._room(slot, intake)) < guard.cap:
            raise ValueError(
                f"a phrase of {tokens} tokens needs {guard.cap - room} more positions than the "
                f"{self._options.positions} of a session: cut it into phrases, or raise the option positions"
            )
        slot.latest = intake.patches[-1] if len(intake.patches) else torch.zeros_like(slot.latest)
        return intake

    def _lay_out(self, slot: Slot, phrase: Phrase) -> Intake:
        """Prompt, history and phrase: all texts, then all sound."""
        texts = [slot.voice.prompt_text, *(spoken.text for spoken in slot.history), slot.text]
        parts = [spoken.patches for spoken in slot.history]
        if slot.voice.prompt is not None:
            parts.insert(0, slot.voice.prompt)
        patches = torch.cat([slot.latest[None][:0], *(part.to(slot.latest) for part in parts)])
        return Intake(phrase, [*self._tokens.encode(joined(texts)), AUDIO_START], patches)

    def _room(self, slot: Slot, intake: Intake) -> int:
        """Patches that the slot has room for once the phrase is taken in."""
        return self._options.positions - slot.position - intake.size

    def _take_in(self, slot: Slot, intake: Intake, count: int) -> Hidden:
        start, end, text = intake.done, intake.done + count, len(intake.ids)
        parts = []
        if start < text:
            parts.append(self.network.embed_tokens(intake.ids[start:end]))
        if end > text:
            parts.append(self.network.embed_patches(intake.patches[max(0, start - text) : end - text]))
        audio = torch.arange(start, end, device=self.network.device) >= text
        hidden = self.network.advance(torch.cat(parts), audio, [Span(slot.row, slot.position, count)], self._pools)
        slot.position += count
        intake.done = end
        return hidden

    # Steps.

    @torch.inference_mode()
    def step(self, slots: Sequence[Slot], ahead_s: Sequence[float] = ()) -> list[Step | Exception]:
        """The next patch of each slot."""
        pairs = list(zip(slots, ahead_s or [0.0] * len(slots), strict=True))
        return self._each(pairs, self._step)

    def _step(self, pairs: Sequence[tuple[Slot, float]]) -> list[Step | Exception]:
        live = [
            (slot, ahead) for slot, ahead in pairs if slot.guard is not None and not slot.cancelled and not slot.ending
        ]
        self._advance([slot for slot, _ in live if slot.hidden is None])
        made = self._solve(live)
        stops = self._stops([slot for slot, _ in live])
        out: list[Step | Exception] = []
        for slot, _ in pairs:
            patch = made.get(id(slot))
            out.append(
                Step(None, True, reason=slot.ending) if patch is None else self._settle(slot, patch, stops[id(slot)])
            )
        return out

    def _advance(self, slots: Sequence[Slot]) -> None:
        """Both LMs take each slot's latest patch in."""
        if not slots:
            return
        network = self.network
        embedded = network.embed_patches(torch.stack([slot.latest for slot in slots]))
        audio = torch.ones(len(slots), dtype=torch.bool, device=network.device)
        spans = [Span(slot.row, slot.position, 1) for slot in slots]
        hidden = network.advance(embedded, audio, spans, self._pools)
        for index, slot in enumerate(slots):
            slot.hidden = Hidden(hidden.lm[index : index + 1], hidden.residual[index : index + 1])
            slot.position += 1

    def _solve(self, live: Sequence[tuple[Slot, float]]) -> dict[int, Tensor]:
        network = self.network
        if not live:
            return {}
        guidance = network.guidance(_together([slot for slot, _ in live]))
        shape = (network.config.patch, network.config.feat_dim, network.dtype, network.device)
        tasks = [
            Task(slot.draw(*shape), guidance[index], slot.latest, self._steps(slot, ahead), self._options.cfg,
                 partial(_is_cancelled, slot),)
            for index, (slot, ahead) in enumerate(live)
        ]  # fmt: skip
        patches = solve(network.dit, tasks)
        return {id(slot): patch for (slot, _), patch in zip(live, patches, strict=True) if patch is not None}

    def _steps(self, slot: Slot, ahead_s: float) -> int:
        """Fewer while somebody waits, more while there is time."""
        options = self._options
        if slot.made < _HURRY_PATCHES:
            return min(options.first_steps, options.steps)
        if options.short_steps and ahead_s < _SHORT_S:
            return options.short_steps
        return options.spare_steps if options.spare_steps and ahead_s >= _PLENTY_S else options.steps

    def _stops(self, slots: Sequence[Slot]) -> dict[int, bool]:
        if not slots:
            return {}
        answers = self.network.stops(_together(slots)).tolist()
        return {id(slot): answer for slot, answer in zip(slots, answers, strict=True)}

    def _settle(self, slot: Slot, patch: Tensor, stop: bool) -> Step | Exception:
        assert slot.guard is not None
        values = patch.float().cpu().numpy()
        if not np.isfinite(values).all():
            return ValueError(
                "the model made a patch that is no numbers: its weights are damaged, or fp16 is too narrow"
            )
        slot.latest, slot.noise, slot.hidden = patch, None, None
        slot.patches.append(patch)
        slot.made += 1
        reason = slot.guard.take(values)
        if reason:
            slot.patches = []  # nothing to go on from
        return Step(patch, bool(reason) or (stop and slot.guard.may_stop()), reason=reason)

    @torch.inference_mode()
    def decode(self, slots: Sequence[Slot], latents: Sequence[Tensor]) -> list[Pcm | Exception]:
        """Patches to PCM, each with its session's decoder state."""
        return self._each(list(zip(slots, latents, strict=True)), self._decode)

    def _decode(self, pairs: Sequence[tuple[Slot, Tensor]]) -> list[Pcm | Exception]:
        patches = torch.stack([patch for _, patch in pairs]).float().transpose(1, 2).contiguous()
        audio, states = self.network.decoder.decode(patches, [slot.decoder for slot, _ in pairs])
        out: list[Pcm | Exception] = []
        for (slot, _), pcm, state in zip(pairs, audio.cpu().numpy(), states, strict=True):
            slot.decoder = state
            out.append(self._trimmed(slot, pcm))
        return out

    def _trimmed(self, slot: Slot, pcm: Pcm) -> Pcm:
        """Leaves out the silence before a phrase's first sound, and ends a phrase that has fallen silent."""
        if slot.cancelled:
            return _NOTHING
        if slot.guard is not None:
            slot.ending = slot.guard.hear(pcm)
        if slot.emitted:
            return pcm
        head = silent_head(pcm, self._spec.sample_rate)
        slot.emitted = head < len(pcm)
        return pcm[head:]

    def _each(self, work: Sequence[T], call: Callable[[Sequence[T]], list[R | Exception]]) -> list[R | Exception]:
        """Makes one call for all. Out of memory: one after another, so that only those fail who find no room."""
        try:
            return call(work)
        except torch.OutOfMemoryError as error:
            if len(work) == 1:
                return [_no_room(error)]
        out: list[R | Exception] = []
        for item in work:
            torch.cuda.empty_cache()
            out.extend(self._each([item], call))
        return out


def _is_cancelled(slot: Slot) -> bool:
    return slot.cancelled


def _together(slots: Sequence[Slot]) -> Hidden:
    hidden = [slot.hidden for slot in slots if slot.hidden is not None]
    return Hidden(torch.cat([each.lm for each in hidden]), torch.cat([each.residual for each in hidden]))


def _no_room(error: Exception) -> Exception:
    failure = MemoryError("out of memory on the device: lower the options slots, positions or batch")
    failure.__cause__ = error
    return failure


def create(source: str | None, options: Mapping[str, object]) -> VoxModel:
    """Loads VoxCPM: the `voxagent.models` entry point.

    Args:
        source: Directory of a checkpoint, or a hub id such as ``openbmb/VoxCPM2``.
        options: See `VoxOptions`; strings are parsed.

    Raises:
        ValueError: An unknown or bad option, or no usable checkpoint. The message names the cure.
    """
    parsed = parse_options(options)
    return VoxModel(checkpoint_directory(source), parsed)
