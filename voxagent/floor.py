"""`Floor`: who has the floor. Hears the caller while the bot speaks, and ducks, pauses, cancels or resumes it.

Acts on the playout directly, so that nothing stands between the caller's voice and the bot's silence. Knows no
clocks, sockets or pipelines: audio comes in as it arrives, decisions go out by a callback.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol

import numpy as np

from voxagent.bargein import Action, BargeIn, Cause, Rung, Thresholds
from voxagent.echo import EchoVeto
from voxagent.pcm import Pcm16, Resampler, power, to_int16
from voxagent.playout import Frame, Playout
from voxagent.session import Position
from voxagent.vad import VoiceActivity, pitched

RATE = 16000
"""Of the caller's audio, Hz."""
_FRAME_MS = 20
_FRAME = RATE * _FRAME_MS // 1000
# Three frames: two periods of the lowest voice.
_PITCH_FRAMES = 3
# A bot that is silent for this long has ended its turn, or waits for its language model: the floor is free.
_GAP_MS = 200
# A transcript comes 0.3 to 1.5 s after the words, later when the machine is busy.
_MEMORY_MS = 6000
# Silence for so long parts what is said into two utterances.
_BETWEEN_WORDS_MS = 400


@dataclass(frozen=True, slots=True)
class BargeInPolicy:
    """Everything that decides when a caller takes the floor.

    Attributes:
        thresholds: When the ladder moves.
        language: Of the caller's backchannels and stop words.
        duck_db: How much quieter the bot gets. At -12 dB it is still understood, and plainly steps back.
        aggressiveness: Of the voice detector: 0 takes most sounds for voice, 3 the fewest.
        quiet_dbfs: Softer than this nothing is the caller's voice: other people, the street, line noise.
        echo_veto: Whether the bot's own voice may come back by the caller's microphone.
    """

    thresholds: Thresholds = field(default_factory=Thresholds)
    language: str | None = None
    duck_db: float = -12.0
    aggressiveness: int = 2
    quiet_dbfs: float = -50.0
    echo_veto: bool = True

    def __post_init__(self) -> None:
        if not -60 <= self.duck_db <= 0:
            raise ValueError(f"duck_db lies between -60 and 0, not {self.duck_db}")
        if not -90 <= self.quiet_dbfs <= -20:
            raise ValueError(f"quiet_dbfs lies between -90 and -20, not {self.quiet_dbfs}")

    @staticmethod
    def preset(name: str, language: str | None = None) -> BargeInPolicy:
        """The policy for a kind of device.

        Args:
            name: ``headset``, ``speakerphone`` or ``phone``.
            language: Of the caller.

        Raises:
            ValueError: No such preset.
        """
        if name not in PRESETS:
            raise ValueError(f"no preset {name!r}: choose one of {', '.join(PRESETS)}")
        return replace(PRESETS[name], language=language)


PRESETS = {
    # A close microphone, or a browser's echo canceller before it: fast, and soft speech counts.
    "headset": BargeInPolicy(Thresholds(duck_ms=80), echo_veto=False),
    # Echo, reverberation and the rest of the room: the detector is strict, and takes a little longer.
    "speakerphone": BargeInPolicy(Thresholds(duck_ms=120, pause_ms=250, cancel_ms=1000), aggressiveness=3),
    # Narrow band, automatic gain and comfort noise; handsets and car kits send echo back.
    "phone": BargeInPolicy(Thresholds(duck_ms=100, pause_ms=220, cancel_ms=900), quiet_dbfs=-45.0),
}


@dataclass(frozen=True, slots=True)
class Decision:
    """One step on the ladder.

    Attributes:
        action: What was done.
        cause: Why.
        voice_ms: How long the caller had been heard then.
        position: How far the bot was heard, when it was cancelled.
    """

    action: Action
    cause: Cause
    voice_ms: int
    position: Position | None = None


class Verdict(Enum):
    """What a transcript is."""

    TURN = "turn"
    BACKCHANNEL = "backchannel"
    ECHO = "echo"


class _Sound(Enum):
    """What one frame of the caller's audio held."""

    NOTHING = "nothing"
    OWN = "our own echo"
    OVER = "the caller's voice over the bot's"
    BETWEEN = "the caller's voice in a pause of the bot's, or just after its end"
    ALONE = "the caller's voice, and no bot"


class Bot(Protocol):
    """What a floor needs of the bot's voice: `voxagent.output.VoiceOutput`, or a pipeline's playhead."""

    @property
    def playout(self) -> Playout: ...

    @property
    def audible(self) -> bool:
        """Whether the bot sounds, or would if it were not held back."""
        ...

    @property
    def interruptible(self) -> bool:
        """Whether what it says may be interrupted."""
        ...

    def interrupt(self) -> Position | None: ...


class Floor:
    """Decides between a bot and its caller.

    Args:
        bot: The bot's voice.
        policy: See `BargeInPolicy`.
        on_decision: Told of every decision, after it was carried out.
        recogniser: Whether `words` will be called with what the caller says.
    """

    def __init__(
        self,
        bot: Bot,
        policy: BargeInPolicy | None = None,
        on_decision: Callable[[Decision], None] = lambda _: None,
        recogniser: bool = False,
    ) -> None:
        self.policy = policy or BargeInPolicy()
        self.enabled = True
        """Off while the caller is muted: the bot then speaks on."""
        self.recogniser = recogniser
        self.voice = False
        """Whether the caller's last frame was voice, and not our own."""
        self._bot = bot
        self._on_decision = on_decision
        self._activity = VoiceActivity(RATE, _FRAME_MS, self.policy.aggressiveness)
        self._echo = EchoVeto(RATE) if self.policy.echo_veto else None
        self._down: Resampler | None = None
        self._ladder = self._new_ladder()
        self._rest = np.zeros(0, np.int16)
        self._recent = np.zeros(_FRAME * _PITCH_FRAMES, np.int16)
        self._quiet = 10 ** (self.policy.quiet_dbfs / 10)
        self._speaking = False
        self._gap_ms = 0
        self._sounds: deque[_Sound] = deque(maxlen=_MEMORY_MS // _FRAME_MS)

    # --- what is heard -------------------------------------------------------------------------------------------

    def played(self, frame: Frame) -> None:
        """A frame of the bot's voice was sent: the caller's microphone may bring it back."""
        if self._echo is None:
            return
        if self._down is None:
            self._down = Resampler(self._bot.playout.sample_rate, RATE)
        self._echo.played(to_int16(self._down.push(frame.pcm)))

    def hear(self, pcm: Pcm16) -> Pcm16:
        """Takes the caller's audio, 16 kHz mono, as it arrives.

        Returns:
            The same, silenced where it is nothing but our own echo: a recogniser would take it for the caller's words.
        """
        samples = np.concatenate((self._rest, pcm))
        whole = len(samples) // _FRAME * _FRAME
        self._rest = samples[whole:]
        heard = [self._hear_frame(frame) for frame in samples[:whole].reshape(-1, _FRAME)]
        return np.concatenate(heard) if heard else np.zeros(0, np.int16)

    def _hear_frame(self, frame: Pcm16) -> Pcm16:
        self._recent = np.concatenate((self._recent, frame))[-len(self._recent) :]
        loud = power(frame) > self._quiet
        own = self._echo is not None and self._echo.heard(frame)
        self.voice = self._activity.push(frame)[0] and loud and not own
        self._watch_bot()
        self._remember(own)
        if not (self.enabled and self._bot.interruptible):
            self._act(self._ladder.no_say())
        elif self._speaking:
            pitch = self.voice and pitched(self._recent, RATE)
            self._act(self._ladder.frame(self.voice, _FRAME_MS, pitch))
        return np.zeros_like(frame) if own and self._ladder.rung is Rung.CLEAR else frame

    def judge(self, transcript: str) -> Verdict:
        """Judges what a recogniser heard the caller say, and acts on it.

        Returns:
            What the transcript is.
        """
        over, alone = self._last_said()
        if self._echo is not None and not over and not alone and (self._speaking or _Sound.OWN in self._sounds):
            # The veto let nothing of it pass: the recogniser heard the bot.
            return Verdict.ECHO
        backchannel = self._ladder.kind(transcript) is Cause.BACKCHANNEL
        if backchannel and over > alone and self._ladder.rung is not Rung.CANCELLED:
            self._act(self._ladder.words(transcript))
            return Verdict.BACKCHANNEL
        if self._speaking and self._bot.interruptible:
            self._act(self._ladder.words(transcript))
        return Verdict.TURN

    def no_words(self) -> None:
        """The recogniser found no words in what it was given."""
        self._act(self._ladder.no_words())

    @property
    def speaking(self) -> bool:
        """Whether the bot has the floor."""
        return self._speaking

    # --- what follows --------------------------------------------------------------------------------------------

    def _watch_bot(self) -> None:
        """A new turn of the bot's begins at the bottom of the ladder, and leaves nothing behind."""
        if self._bot.audible:
            self._gap_ms = 0
            if not self._speaking:
                self._speaking = True
                self._start_over()
        elif self._speaking:
            self._gap_ms += _FRAME_MS
            if self._gap_ms >= _GAP_MS:
                self._speaking = False
                if self._ladder.rung is not Rung.CANCELLED and self._ladder.voice_ms >= self.policy.thresholds.duck_ms:
                    self._act(self._ladder.concede())
                else:
                    self._release()

    def _remember(self, own: bool) -> None:
        if not self.voice:
            self._sounds.append(_Sound.OWN if own else _Sound.NOTHING)
        elif self._bot.audible:
            self._sounds.append(_Sound.OVER)
        else:
            self._sounds.append(_Sound.BETWEEN if self._speaking else _Sound.ALONE)

    def _last_said(self) -> tuple[int, int]:
        """Of the caller's last words: how many frames sounded over the bot, and how many while it was silent."""
        over = between = alone = silent_ms = 0
        for sound in reversed(self._sounds):
            over += sound is _Sound.OVER
            between += sound is _Sound.BETWEEN
            alone += sound is _Sound.ALONE
            silent_ms = silent_ms + _FRAME_MS if sound in (_Sound.NOTHING, _Sound.OWN) else 0
            if (over or between or alone) and silent_ms >= _BETWEEN_WORDS_MS:
                break
        # If the bot went on, it was a pause.
        return (over + between, alone) if self._speaking else (over, alone + between)

    def _start_over(self) -> None:
        self._ladder = self._new_ladder()
        self._release()

    def _release(self) -> None:
        self._bot.playout.duck(0.0)
        self._bot.playout.resume()

    def _new_ladder(self) -> BargeIn:
        return BargeIn(self.policy.thresholds, self.policy.language, self.recogniser)

    def _act(self, action: Action | None) -> None:
        if action is None:
            return
        voice_ms, position = self._ladder.voice_ms, None
        match action:
            case Action.DUCK:
                self._bot.playout.duck(self.policy.duck_db)
            case Action.PAUSE:
                self._bot.playout.pause()
            case Action.RESUME:
                self._release()
            case Action.CANCEL:
                position = self._bot.interrupt()
        self._on_decision(Decision(action, self._ladder.cause, voice_ms, position))
