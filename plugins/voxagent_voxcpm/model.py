"""VoxCPM as the engine sees it: sessions that are opened, take phrases in, and step together.

Called by the engine's one thread, but for `load_voice` and `cancel`. Owns text, guards and voices; the step loop is
`Sessions`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from voxagent.errors import EngineFull, ModelError
from voxagent.model import ModelSpec, Pcm, SpeechOptions, Step, Voice
from voxagent.pcm import read_audio, silent_head
from voxagent.phrases import Phrase
from voxagent.speakable import Speakable
from voxagent_voxcpm.casing import calm
from voxagent_voxcpm.config import read_config
from voxagent_voxcpm.guards import Guard, Limits
from voxagent_voxcpm.hub import checkpoint_directory
from voxagent_voxcpm.network import AUDIO_START, Network, load_network
from voxagent_voxcpm.options import VoxOptions, choose_device, choose_dtype, parse_options
from voxagent_voxcpm.sessions import Patch, Sessions
from voxagent_voxcpm.slots import Intake, Slot, joined
from voxagent_voxcpm.stored import voice_path
from voxagent_voxcpm.tokens import Tokens
from voxagent_voxcpm.voice import MAX_SECONDS, VoxVoice, encode_recording, make_voice, read_voice, revision

_HURRY_PATCHES = 2  # of a turn: the listener waits for them
_SHORT_S, _PLENTY_S = 0.2, 1.0
_LEAD_S = 0.3  # audio ahead that allows to wait and see
_TAIL_S = 0.06  # of silence after a phrase's last sound: breath and reverberation fade in it
_POSITIONS, _PATCHES_PER_S = 768, 6.25
_PHRASE_S = 8.0
_LEAST_S = 0.9  # its training had hardly anything below a second (upstream's documentation)
_DESIGN_TEXT = (
    "Hello, it is good to hear from you. Let me have a look at that, it will only take a moment, and then I can tell "
    "you what we have found and what comes next."
)
_GOLDEN = 0x9E3779B97F4A7C15  # spreads the phrases of a turn over all seeds
_NOTHING: Pcm = np.zeros(0, np.float32)

T = TypeVar("T")
R = TypeVar("R")


class VoxModel:
    """A VoxCPM checkpoint for many sessions.

    Args:
        network: The weights.
        tokens: The tokenizer.
        options: What the user set.
        revision: Of the checkpoint: stored voices of another are refused.

    Attributes:
        network: See there.
        revision: See there.
    """

    def __init__(self, network: Network, tokens: Tokens, options: VoxOptions, revision: str = "") -> None:
        config = network.config
        self.network, self.revision = network, revision
        self._tokens, self._options = tokens, options
        self._limits = replace(Limits(), min_len=options.min_len, most_per_token=options.most_per_token)
        # Releases with shorter patches need more of them for the same seconds.
        self._positions = options.positions or round(_POSITIONS * config.patches_per_s / _PATCHES_PER_S)
        if options.compile and network.device.type != "cuda":
            raise ValueError(f"the option compile is for CUDA; this model runs on {network.device}")
        compiler = "inductor" if options.compile else None
        self._sessions = Sessions(network, options.slots, self._positions, compiler=compiler)
        self._history_patches = round(options.history_s * config.patches_per_s)
        self._spec = ModelSpec(
            "voxcpm",
            config.audio.decode_rate,
            config.chunk_samples,
            slots=options.slots,
            max_batch=options.batch,
            max_phrase_s=_PHRASE_S,
            min_phrase_s=_LEAST_S,
            languages=() if config.v2 else ("zh", "en"),
            clones=True,
            continues=options.strategy == "continue",
            foresees=True,
            tags=("laughing", "sigh") if config.v2 else (),
        )

    @property
    def spec(self) -> ModelSpec:
        """Rates and limits."""
        return self._spec

    @property
    def free_slots(self) -> int:
        """Slots that nobody has."""
        return self._sessions.free

    def warm_up(self) -> None:
        """Captures the calls of a step, where the device replays them."""
        self._sessions.warm_up()

    # Voices.

    def load_voice(self, source: str | None) -> VoxVoice:
        """Loads a voice.

        Args:
            source: A voice that was added, by name or file, or a recording of 0.5 to 60 s in any format that FFmpeg
                reads; None is the voice of the options, or none at all: each turn then sounds as the seed has it.
        """
        options = self._options
        if source is None:
            return self.record_voice("voxcpm", options.reference, options.prompt_wav, options.prompt_text)
        path = Path(source)
        if not path.is_file() and "/" not in source:
            path = voice_path(source)
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

    def design_voice(self, name: str, description: str, text: str = "", seed: int = 0) -> VoxVoice:
        """Invents a voice: says a text once as described, and keeps that as the recording.

        Without a recording each phrase of a VoxCPM model has a voice of its own.

        Args:
            name: For people.
            description: Such as "a young woman, warm"; VoxCPM2 heeds it.
            text: What to say; a neutral text of about eight seconds when empty.
            seed: Another seed, another voice.

        Raises:
            ValueError: What came out is too short to be a voice.
        """
        said = text.strip() or _DESIGN_TEXT
        described = f"({description.strip('() ')}){said}"
        slot = self.open(make_voice(self.network, name), SpeechOptions(), seed)
        try:
            while not self.prefill(slot, Phrase(described, 0, Speakable(described, ()), "end")):
                pass
            while slot.speaks and not slot.last:
                (step,) = self.step([slot])
                if isinstance(step, Exception):
                    raise step
            reason = slot.ending or "it stopped at once"
            sound = torch.stack(slot.patches) if slot.patches else None
        finally:
            self.close(slot)
        if sound is None or len(sound) < 0.5 * self.network.config.patches_per_s:
            raise ValueError(f"the model said nothing that can be a voice ({reason}): try another seed")
        if self.network.config.v2:
            return make_voice(self.network, name, reference=sound.float())
        return make_voice(self.network, name, prompt=sound.float(), prompt_text=said)

    def _encode(self, path: str, *, pad_left: bool) -> Tensor:
        rate = self.network.config.audio.encode_rate
        audio = torch.from_numpy(read_audio(Path(path), rate, max_s=MAX_SECONDS + 1))
        return encode_recording(self.network, audio, rate, path, pad_left=pad_left)

    # Sessions.

    def open(self, voice: Voice, options: SpeechOptions, seed: int) -> Slot:
        """Takes a slot and puts the voice's reference at its start."""
        if not isinstance(voice, VoxVoice):
            raise TypeError(f"not a VoxCPM voice: {voice!r}")
        if options.speed != 1.0:
            raise ModelError(
                "VoxCPM has no setting for speed: leave it at 1, and use a recording that speaks as it should"
            )
        if not self._sessions.free:
            raise EngineFull("all slots of the model are taken", retry_after_s=1.0)
        return Slot(self._sessions.open(voice), seed)

    def cancel(self, slot: Slot) -> None:
        """Ends a running call of this slot at its next solver call."""
        slot.session.cancelled = True

    def close(self, slot: Slot) -> None:
        """Gives the slot back; nothing is zeroed."""
        self._sessions.close(slot.session)
        slot.history.clear()
        slot.patches = []

    # Phrases.

    @torch.inference_mode()
    def prefill(self, slot: Slot, phrase: Phrase) -> bool:
        """Takes the next piece of the phrase in; True when all of it is."""
        intake = slot.intake
        if intake is None or intake.phrase != phrase:
            intake = slot.intake = self._begin(slot, phrase)
        if intake.size and not slot.session.cancelled:
            self._sessions.take_in(slot.session, *intake.next(self._options.piece))
        if intake.done < intake.size and not slot.session.cancelled:
            return False
        slot.intake = None
        return True

    def _begin(self, slot: Slot, phrase: Phrase) -> Intake:
        """Leaves the last phrase behind and lays out what stands before the sound of this one."""
        slot.remember(self._history_patches if self._spec.continues else 0)
        slot.text = calm(phrase.spoken, phrase.text).strip()
        slot.ending, slot.emitted, slot.last, slot.held = "", False, False, []
        tokens = len(self._tokens.encode(slot.text))
        guard = Guard(tokens, self.network.config.patches_per_s, self._limits)
        slot.guard = guard if tokens else None
        if not tokens:
            return Intake(phrase, [], self._sessions.nothing[None][:0])
        intake = self._lay_out(slot, phrase)
        while slot.history and self._room(slot, intake) < guard.cap:
            slot.history.popleft()
            intake = self._lay_out(slot, phrase)
        if (room := self._room(slot, intake)) < guard.cap:
            raise ModelError(
                f"a phrase of {tokens} tokens needs {guard.cap - room} more positions than the "
                f"{self._positions} of a session: cut it into phrases, or raise the option positions"
            )
        latest = intake.patches[-1] if len(intake.patches) else self._sessions.nothing
        # By place, not drawn on: a phrase that was foreseen and did not come leaves no trace.
        self._sessions.restart(slot.session, latest, slot.seed + _GOLDEN * phrase.start)
        return intake

    def _lay_out(self, slot: Slot, phrase: Phrase) -> Intake:
        """Prompt, history and phrase: all texts, then all sound."""
        voice, nothing = slot.session.voice, self._sessions.nothing
        texts = [voice.prompt_text, *(spoken.text for spoken in slot.history), slot.text]
        parts = [spoken.patches for spoken in slot.history]
        if voice.prompt is not None:
            parts.insert(0, voice.prompt)
        patches = torch.cat([nothing[None][:0], *(part.to(nothing) for part in parts)])
        return Intake(phrase, [*self._tokens.encode(joined(texts)), AUDIO_START], patches)

    def _room(self, slot: Slot, intake: Intake) -> int:
        """Patches that the slot has room for once the phrase is taken in."""
        prefix = slot.session.voice.prefix
        return self._positions - (prefix.positions if prefix is not None else 0) - intake.size

    # Steps.

    @torch.inference_mode()
    def step(self, slots: Sequence[Slot], ahead_s: Sequence[float] = ()) -> list[Step | Exception]:
        """The next patch of each slot."""
        pairs = list(zip(slots, ahead_s or [0.0] * len(slots), strict=True))
        return self._each(pairs, self._step)

    def _step(self, pairs: Sequence[tuple[Slot, float]]) -> list[Step | Exception]:
        for slot, ahead_s in pairs:
            slot.ahead_s = ahead_s
        live = [(slot, self._steps(slot)) for slot, _ in pairs if slot.speaks]
        counts = [count for _, count in live]
        patches = self._sessions.step([slot.session for slot, _ in live], counts, self._options.cfg)
        made = {id(slot): patch for (slot, _), patch in zip(live, patches, strict=True)}
        return [self._settle(slot, made.get(id(slot))) for slot, _ in pairs]

    def _steps(self, slot: Slot) -> int:
        """Fewer while somebody waits, more while there is time."""
        options = self._options
        if slot.made < _HURRY_PATCHES:
            return min(options.first_steps, options.steps)
        if options.short_steps and slot.ahead_s < _SHORT_S:
            return options.short_steps
        return options.spare_steps if options.spare_steps and slot.ahead_s >= _PLENTY_S else options.steps

    def _settle(self, slot: Slot, patch: Patch | None) -> Step | Exception:
        if patch is None or slot.guard is None:
            return Step(None, True, reason=slot.ending)
        if not np.isfinite(patch.values).all():
            self._sessions.scrub(slot.session)
            return ModelError("the model made a patch that is no numbers: damaged weights, or fp16 is too narrow")
        slot.patches.append(patch.latents)
        slot.made += 1
        slot.ending = slot.guard.take(patch.values)
        if slot.ending:
            slot.patches = []  # nothing to go on from
        slot.last = bool(slot.ending) or (patch.stop and slot.guard.may_stop())
        return Step(patch.latents, slot.last, reason=slot.ending)

    @torch.inference_mode()
    def decode(self, slots: Sequence[Slot], latents: Sequence[Tensor]) -> list[Pcm | Exception]:
        """Patches to PCM, each with its session's decoder state."""
        return self._each(list(zip(slots, latents, strict=True)), self._decode)

    def _decode(self, pairs: Sequence[tuple[Slot, Tensor]]) -> list[Pcm | Exception]:
        audio = self._sessions.decode([slot.session for slot, _ in pairs], [patch for _, patch in pairs])
        return [self._given_out(slot, pcm) for (slot, _), pcm in zip(pairs, audio.cpu().numpy(), strict=True)]

    def _given_out(self, slot: Slot, pcm: Pcm) -> Pcm:
        """What of a decoded patch is heard now.

        The silence before a phrase's first sound is left out, and so is what follows its last one. What may turn out
        to be the end of the phrase, or a repetition, is held back while enough audio is ahead.
        """
        guard = slot.guard
        if slot.session.cancelled or guard is None:
            return _NOTHING
        silence = guard.hear(pcm)
        if slot.ending == "repetition" and slot.held:
            return _NOTHING
        if silence and not slot.ending:
            slot.ending = silence
            slot.patches = slot.patches[: -guard.silent]  # the turn goes on from what was said
        if not slot.emitted:
            pcm = pcm[silent_head(pcm, self._spec.sample_rate) :]
            slot.emitted = len(pcm) > 0
        if slot.last:
            whole = np.concatenate([*slot.held, pcm])
            return whole[: len(whole) - silent_head(whole[::-1], self._spec.sample_rate, preroll_s=_TAIL_S)]
        if guard.suspicious and slot.ahead_s >= _LEAD_S:
            slot.held.append(pcm)
            return _NOTHING
        held, slot.held = slot.held, []
        return np.concatenate([*held, pcm]) if held else pcm

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


def _no_room(error: Exception) -> Exception:
    failure = ModelError("out of memory on the device: lower the options slots, positions or batch")
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
    directory = checkpoint_directory(source)
    if parsed.threads is not None:
        torch.set_num_threads(parsed.threads)
    device = choose_device(parsed.device)
    dtype = choose_dtype(parsed.dtype, read_config(directory / "config.json").dtype, device)
    tokens = Tokens(directory / "tokenizer.json")
    model = VoxModel(load_network(directory, device, dtype), tokens, parsed, revision(directory))
    model.warm_up()
    return model
