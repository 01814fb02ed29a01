"""Piper as a `LatentModel`: phonemes and durations in prefill, a chunk of latents a step, exact decoding.

Owns what a session's slot holds. All state is in the slot; voices are immutable and shared.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import onnxruntime as ort
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from voxagent.errors import ModelError
from voxagent.model import ModelSpec, Pcm, SpeechOptions, Step, Voice, WordTime
from voxagent.pcm import silent_head
from voxagent.phrases import Phrase
from voxagent_piper.cache import cut_voice
from voxagent_piper.espeak import EspeakG2P
from voxagent_piper.g2p import G2P, LetterG2P, Token, Word, pronounce, tokenize
from voxagent_piper.lexicon import LexiconG2P
from voxagent_piper.prosody import cue, take, write
from voxagent_piper.runtime import Floats, Parts, Scales, Stretch, Window, expand
from voxagent_piper.voices import BUNDLED_NAMES, CURE, VoiceConfig, VoiceFile, find_voice

CHUNK_FRAMES = 14
"""Latent frames a step decodes: 162.5 ms at 22,050 Hz."""

# New frames of one flow call after the first. Each call also recomputes the reach on both sides (64 frames), so
# small blocks waste, and large ones keep other sessions waiting: about 30 ms on two cores.
_FLOW_FRAMES = 12 * CHUNK_FRAMES
_TOKENS_AT_ONCE = 40
_MAX_PHRASE_S = 7.0
_KNEE = np.float32(0.9)
_NOTHING: Pcm = np.zeros(0, np.float32)

T = TypeVar("T")


class PiperOptions(BaseModel):
    """What `--option name=value` may set.

    Attributes:
        threads: Of onnxruntime; None means two, or one on a single core.
        noise_scale: Variation of timbre; None is the voice's own.
        noise_w: Variation of rhythm; None is the voice's own. 0 for both gives repeatable audio.
        g2p: ``lexicon`` (English, permissive), ``espeak`` (GPL extra) or ``auto``.
        slots: Sessions open at once.
        gain: Applied to every sample. Raw Piper peaks at 0.5 to 0.75.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    threads: int | None = Field(default=None, ge=1, le=64)
    noise_scale: float | None = Field(default=None, ge=0, le=2)
    noise_w: float | None = Field(default=None, ge=0, le=2)
    g2p: Literal["auto", "lexicon", "espeak"] = "auto"
    slots: int = Field(default=16, ge=1, le=1024)
    gain: float = Field(default=1.25, gt=0, le=8)


@dataclass(frozen=True, slots=True)
class PiperVoice:
    """A loaded voice.

    Attributes:
        name: File name, with the speaker's where there are several.
        language: BCP 47 tag.
        config: The voice's JSON.
        parts: Its graphs.
        g2p: Its pronunciation.
        speaker: Number of the speaker.
    """

    name: str
    language: str | None
    config: VoiceConfig
    parts: Parts
    g2p: G2P
    speaker: int = 0


@dataclass(slots=True)
class _Piece:
    """A stretch of a phrase between the front and the last chunk."""

    prior: Floats
    latents: Floats
    first: int
    known: int
    next: int
    end: int
    words: tuple[WordTime, ...]


@dataclass(frozen=True, slots=True)
class _Opening:
    """A phrase's first chunk, decoded already, because its silence decides when the words sound."""

    pcm: Pcm


@dataclass(slots=True)
class PiperSlot:
    """All state of one session."""

    voice: PiperVoice
    speed: float
    seed: int
    run: ort.RunOptions = field(default_factory=ort.RunOptions)
    cancelled: bool = False
    final: bool = False
    tokens: deque[Token] = field(default_factory=deque)
    words: deque[Word] = field(default_factory=deque)
    piece: _Piece | None = None
    emitted: int = 0
    rng: np.random.Generator = field(default_factory=np.random.default_rng)


class PiperModel:
    """Piper voices behind the `LatentModel` protocol."""

    def __init__(self, source: str | None, options: PiperOptions) -> None:
        """Loads the default voice.

        Raises:
            ValueError: No such voice, or not one; the message names the cure.
        """
        self._options = options
        self._threads = options.threads or min(2, os.cpu_count() or 1)
        self._gain = np.float32(options.gain)
        self._default = self._load(find_voice(source))
        self._voices: dict[Path, PiperVoice] = {}
        config, hop = self._default.config, self._default.parts.layout.hop
        self._spec = ModelSpec(
            name="piper",
            sample_rate=config.audio.sample_rate,
            chunk_samples=CHUNK_FRAMES * hop,
            slots=options.slots,
            max_phrase_s=_MAX_PHRASE_S,
            languages=(config.primary,) if config.primary else (),
            times_words=True,
            foresees=True,
            phonemes=config.phoneme_type != "text",
        )

    @property
    def spec(self) -> ModelSpec:
        """The fixed facts."""
        return self._spec

    def load_voice(self, source: str | None) -> PiperVoice:
        """Loads a voice.

        Args:
            source: None for the default, a speaker's name or number, or the path of another Piper voice.

        Raises:
            ValueError: No such voice, or one of another sample rate.
        """
        default = self._default
        if source is None or source == default.name:
            return default
        speaker = default.config.speaker_id_map.get(source)
        if speaker is None and source.isdecimal() and int(source) < default.config.num_speakers:
            speaker = int(source)
        if speaker is not None:
            return replace(default, name=f"{default.name}:{source}", speaker=speaker)
        path = Path(source).expanduser()
        if not path.is_file() and source not in BUNDLED_NAMES:
            speakers = ", ".join(default.config.speaker_id_map) or "none has a name"
            raise ValueError(
                f"There is no voice {source!r}: neither a file nor a speaker of {default.name} ({speakers}). {CURE}"
            )
        if path not in self._voices:
            file = find_voice(source)
            rate = file.config.audio.sample_rate
            if rate != self._spec.sample_rate:
                raise ValueError(
                    f"The voice {path} speaks at {rate} Hz and this engine runs at {self._spec.sample_rate} Hz. "
                    f"Start the engine with it instead: --model piper:{path}"
                )
            self._voices[path] = self._load(file)
        return self._voices[path]

    def open(self, voice: Voice, options: SpeechOptions, seed: int) -> PiperSlot:
        """Takes a slot. Equal seeds give equal audio, whatever other sessions do meanwhile."""
        if not isinstance(voice, PiperVoice):
            raise TypeError(f"not a Piper voice: {voice!r}")
        return PiperSlot(voice, options.speed, seed)

    def prefill(self, slot: PiperSlot, phrase: Phrase) -> bool:
        """Pronounces the phrase and lays out its first stretch; an unspeakable phrase is a silent one."""
        slot.tokens = deque(tokenize(phrase.spoken, slot.voice.config.primary or "en"))
        slot.words.clear()
        slot.piece, slot.emitted, slot.final = None, 0, phrase.final
        # By place, not drawn on: a phrase that was foreseen and did not come leaves no trace.
        slot.rng = np.random.default_rng((slot.seed, phrase.start))
        _unless_cancelled(slot, partial(self._lay_out, slot))
        return True

    def step(self, slots: Sequence[PiperSlot], ahead_s: Sequence[float] = ()) -> list[Step]:
        """Latents of the next chunk of each slot."""
        return [_unless_cancelled(slot, partial(self._step, slot)) or Step(None, True) for slot in slots]

    def decode(self, slots: Sequence[PiperSlot], latents: Sequence[Window | _Opening]) -> list[Pcm]:
        """Chunks of PCM, equal to the same frames of a whole decode to float rounding."""
        return [self._decode(slot, chunk) for slot, chunk in zip(slots, latents, strict=True)]

    def cancel(self, slot: PiperSlot) -> None:
        """Ends a running call of this slot at its next graph node, and makes later ones return at once."""
        slot.cancelled = True
        slot.run.terminate = True

    def close(self, slot: PiperSlot) -> None:
        """Drops what the slot holds."""
        slot.tokens.clear()
        slot.words.clear()
        slot.piece = None

    def decode_whole(self, slot: PiperSlot, phrase: Phrase) -> Pcm:
        """What the steps of a phrase add up to, by one flow and one decoder call a stretch. For tests.

        The silence before the first sound, which the steps leave out, is still there.
        """
        self.prefill(slot, phrase)
        layout, parts, sid = slot.voice.parts.layout, slot.voice.parts, slot.voice.speaker
        heard: list[Pcm] = [np.zeros(0, np.float32)]
        while slot.piece:
            piece = slot.piece
            everything = Stretch(0, piece.prior.shape[2], piece.prior.shape[2])
            latents = parts.flow(piece.prior, everything, sid, slot.run)
            pcm = parts.decode(Window(latents, everything), sid, slot.run)
            heard.append(_limit(pcm[piece.next * layout.hop : piece.end * layout.hop] * self._gain))
            slot.piece = None
            self._lay_out(slot)
        return np.concatenate(heard)

    def _load(self, file: VoiceFile) -> PiperVoice:
        try:
            parts = Parts(cut_voice(file), self._threads)
        except ValueError:
            raise
        except Exception as error:  # onnxruntime has no common base of its errors
            raise ValueError(f"onnxruntime cannot run the voice {file.path}: {error}. {CURE}") from error
        g2p = _g2p_for(file.config, self._options.g2p)
        return PiperVoice(file.name, file.config.tag or None, file.config, parts, g2p)

    def _scales(self, slot: PiperSlot) -> Scales:
        own = slot.voice.config.inference
        noise, noise_w = self._options.noise_scale, self._options.noise_w
        return Scales(
            own.noise_scale if noise is None else noise,
            own.length_scale / slot.speed,
            own.noise_w if noise_w is None else noise_w,
        )

    def _lay_out(self, slot: PiperSlot) -> None:
        """Runs the front for the next stretch of the phrase that can be spoken, if any."""
        voice, parts, config = slot.voice, slot.voice.parts, slot.voice.config
        while not slot.cancelled and (slot.words or slot.tokens):
            if not slot.words:
                slot.words.extend(pronounce(slot.tokens, _TOKENS_AT_ONCE, voice.g2p))
                continue
            count = take(slot.words)
            line = write([slot.words.popleft() for _ in range(count)], config.phoneme_id_map)
            if line is None:
                continue
            scales = self._scales(slot)
            encoded = parts.encode(line.ids, scales, slot.rng, voice.speaker, slot.run)
            final = slot.final and not slot.words and not slot.tokens
            plan = cue(line, encoded.durations, parts.layout.hop, config.audio.sample_rate, final)
            prior = expand(encoded, scales.noise, slot.rng)
            first = max(0, plan.start - parts.layout.decoder.source.left)
            words = tuple(_later(word, slot.emitted) for word in plan.words)
            slot.piece = _Piece(prior, np.empty_like(prior), first, first, plan.start, plan.end, words)
            return

    def _step(self, slot: PiperSlot) -> Step:
        if slot.piece is None:
            self._lay_out(slot)
        piece, layout = slot.piece, slot.voice.parts.layout
        if piece is None or slot.cancelled:
            return Step(None, True)
        start = piece.next
        end = min(start + max(1, self._spec.chunk_samples // layout.hop), piece.end)
        stretch = Stretch(start, end, piece.prior.shape[2])
        low, high = layout.decoder.source.span(start, end, stretch.total)
        self._flow_to(slot, piece, high)
        window = Window(piece.latents[:, :, low:high].copy(), stretch)
        words, piece.words, piece.next = piece.words, (), end
        opens = slot.emitted == 0
        slot.emitted += (end - start) * layout.hop
        if end == piece.end:
            slot.piece = None
        last = slot.piece is None and not slot.words and not slot.tokens
        if not opens:
            return Step(window, last, words)
        pcm = self._decode(slot, window)
        silent = silent_head(pcm, self._spec.sample_rate, float(self._gain))  # durations leave up to 22 ms of it
        slot.emitted -= silent
        return Step(_Opening(pcm[silent:]), last, tuple(_later(word, -silent) for word in words))

    def _flow_to(self, slot: PiperSlot, piece: _Piece, needed: int) -> None:
        """Makes the latents known up to a frame: just what the first chunk needs, then in blocks."""
        if piece.known >= needed:
            return
        parts, total = slot.voice.parts, piece.prior.shape[2]
        last = min(total, piece.end + parts.layout.decoder.source.right)
        target = needed
        if piece.known > piece.first:
            target = min(last, max(needed, piece.known + _FLOW_FRAMES))
        elif last - needed < parts.layout.flow.source.right // 2:
            target = last  # A second call for a few frames costs more than the wait.
        stretch = Stretch(piece.known, target, total)
        piece.latents[:, :, piece.known : target] = parts.flow(piece.prior, stretch, slot.voice.speaker, slot.run)
        piece.known = target

    def _decode(self, slot: PiperSlot, chunk: Window | _Opening) -> Pcm:
        if isinstance(chunk, _Opening):
            return chunk.pcm if not slot.cancelled else _NOTHING
        voice = slot.voice
        pcm = _unless_cancelled(slot, partial(voice.parts.decode, chunk, voice.speaker, slot.run))
        return _NOTHING if pcm is None else _limit(pcm * self._gain)


def create(source: str | None, options: Mapping[str, object]) -> PiperModel:
    """Loads Piper: the `voxagent.models` entry point.

    Args:
        source: Path of a Piper `.onnx` file, or None for the environment's or the installed voice.
        options: See `PiperOptions`; strings are parsed.

    Raises:
        ValueError: An unknown or bad option, or no usable voice. The message names the cure.
    """
    try:
        parsed = PiperOptions.model_validate(dict(options))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        known = ", ".join(PiperOptions.model_fields)
        raise ValueError(f"piper option {name!r}: {first['msg']}. Options: {known}") from error
    return PiperModel(source, parsed)


def _unless_cancelled(slot: PiperSlot, work: Callable[[], T]) -> T | None:
    """Runs a call for a slot; None when it was cancelled before or meanwhile."""
    if slot.cancelled:
        return None
    try:
        return work()
    except Exception as error:  # onnxruntime has no common base of its errors
        if slot.cancelled:
            return None
        raise ModelError(f"Piper failed: {error}") from error


def _later(word: WordTime, samples: int) -> WordTime:
    return WordTime(word.start, word.end, max(0, word.start_sample + samples), max(0, word.end_sample + samples))


def _limit(pcm: Pcm) -> Pcm:
    """Bends what a fixed gain drives beyond the knee below full scale; everything else stays exact."""
    over = np.abs(pcm) - _KNEE
    if over.max(initial=-1.0) <= 0:
        return pcm
    bent = _KNEE + (1 - _KNEE) * np.tanh(over / (1 - _KNEE))
    return np.where(over > 0, np.sign(pcm) * bent, pcm).astype(np.float32)


def _g2p_for(config: VoiceConfig, wanted: str) -> G2P:
    """The pronunciation for a voice.

    Raises:
        ValueError: The wanted one does not speak the voice's language, or is not installed.
    """
    if config.phoneme_type == "text":
        return LetterG2P()
    english = config.primary == "en"
    if wanted == "lexicon" and not english:
        raise ValueError(f"g2p=lexicon is English only and this voice speaks {config.tag or '?'}: use g2p=espeak")
    if english and wanted != "espeak":
        return LexiconG2P.shared()
    if config.espeak is None:
        raise ValueError("The voice's JSON names no espeak voice, so espeak-ng cannot pronounce for it")
    return EspeakG2P(config.espeak.voice)
