"""The floor: what the caller's voice does to a bot that speaks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from voxagent.bargein import Action, Cause
from voxagent.floor import RATE, BargeInPolicy, Decision, Floor, Verdict
from voxagent.playout import Playout
from voxagent.session import Position

FRAME = RATE // 50


def voice(seconds: float, level: float = 0.3) -> np.ndarray:
    """A buzz with the harmonics, formants and syllables of a voice."""
    t = np.arange(int(seconds * RATE)) / RATE
    pitch = 2 * np.pi * np.cumsum(120 + 15 * np.sin(2 * np.pi * 1.3 * t)) / RATE
    buzz = sum(np.sin(k * pitch) / k * (1.5 if 400 < k * 120 < 900 else 1.0) for k in range(1, 25))
    syllables = 0.6 + 0.4 * np.sin(2 * np.pi * 4 * t)
    return np.round(32768 * level * buzz * syllables / 4).clip(-32768, 32767).astype(np.int16)


def silence(seconds: float) -> np.ndarray:
    return np.zeros(int(seconds * RATE), np.int16)


def noise(seconds: float, level: float = 0.2) -> np.ndarray:
    return np.round(32768 * level * np.random.default_rng(1).standard_normal(int(seconds * RATE))).clip(
        -32768, 32767
    ).astype(np.int16)  # fmt: skip


class Bot:
    """A bot that has always more to say, unless told otherwise."""

    def __init__(self) -> None:
        self.playout = Playout(48000, 20, 80)
        self.audible = self.interruptible = True
        self.interrupts = 0
        self._generation = self.playout.begin()
        self.heard: list[np.ndarray] = []

    def interrupt(self) -> Position | None:
        self.interrupts += 1
        self.audible = False
        position = Position(self.playout.interrupt(), 48000)
        self._generation = self.playout.begin()
        return position

    def speak(self) -> None:
        """Twenty milliseconds."""
        while self.audible and self.playout.wants:
            self.playout.push(np.full(960, 0.5, np.float32), self._generation)
        frame = self.playout.pull()
        self.heard.append(frame.pcm)


class Call:
    def __init__(self, policy: BargeInPolicy | None = None, *, recogniser: bool = True) -> None:
        self.bot = Bot()
        self.decisions: list[Decision] = []
        policy = policy or BargeInPolicy(echo_veto=False)
        self.floor = Floor(self.bot, policy, self.decisions.append, recogniser)

    def hear(self, *pieces: np.ndarray) -> list[Action]:
        """The caller's audio in packets, while the bot speaks; returns what was decided."""
        known = len(self.decisions)
        for frame in self._frames(np.concatenate(pieces)):
            self.floor.hear(frame)
            self.bot.speak()
        return [decision.action for decision in self.decisions[known:]]

    def fall_silent(self) -> None:
        """The bot has said what it had to say."""
        self.bot.audible = False
        while self.bot.playout.buffered_samples:
            self.bot.speak()

    @staticmethod
    def _frames(pcm: np.ndarray) -> Iterator[np.ndarray]:
        for at in range(0, len(pcm) - FRAME + 1, FRAME):
            yield pcm[at : at + FRAME]


def test_lasting_speech_ducks_pauses_and_cancels() -> None:
    call = Call()
    assert call.hear(silence(0.3), voice(1.2)) == [Action.DUCK, Action.PAUSE, Action.CANCEL]
    duck, pause, cancel = call.decisions
    assert (duck.voice_ms, pause.voice_ms, cancel.voice_ms) == (100, 200, 800)
    assert cancel.cause is Cause.LASTING_SPEECH
    assert cancel.position is not None
    assert call.bot.interrupts == 1


def test_the_bot_is_quieter_while_ducked_and_silent_while_paused() -> None:
    call = Call()
    call.hear(silence(0.2), voice(0.16))
    assert call.bot.heard[-1][-1] == pytest.approx(0.5 * 10 ** (-12 / 20), abs=0.01)
    call.hear(voice(0.12))
    assert call.bot.playout.paused
    assert not call.bot.heard[-1].any()


def test_a_short_sound_resumes_at_full_level() -> None:
    call = Call(recogniser=False)
    assert call.hear(voice(0.3), silence(0.6)) == [Action.DUCK, Action.PAUSE, Action.RESUME]
    assert call.bot.heard[-1][-1] == pytest.approx(0.5)
    assert call.bot.interrupts == 0


def test_noise_without_pitch_never_cancels() -> None:
    call = Call()
    assert Action.CANCEL not in call.hear(noise(4.0), silence(1.5))
    assert not call.bot.playout.paused


def test_soft_sounds_are_not_the_callers() -> None:
    assert Call().hear(voice(1.0, level=0.002)) == []


def test_a_backchannel_lets_the_bot_go_on() -> None:
    call = Call()
    call.hear(voice(0.3), silence(0.2))
    assert call.floor.judge("Mm-hm.") is Verdict.BACKCHANNEL
    assert [d.action for d in call.decisions] == [Action.DUCK, Action.PAUSE, Action.RESUME]
    assert call.decisions[-1].cause is Cause.BACKCHANNEL


@pytest.mark.parametrize(("said", "cause"), [("Stop.", Cause.STOP_WORD), ("The other one.", Cause.WORDS)])
def test_words_cancel(said: str, cause: Cause) -> None:
    call = Call()
    call.hear(voice(0.3), silence(0.2))
    assert call.floor.judge(said) is Verdict.TURN
    assert (call.decisions[-1].action, call.decisions[-1].cause) == (Action.CANCEL, cause)


def test_words_that_come_after_the_bot_went_on_still_cancel() -> None:
    call = Call(recogniser=False)
    call.hear(voice(0.3), silence(0.6))
    assert call.floor.judge("Stop.") is Verdict.TURN
    assert call.bot.interrupts == 1


def test_a_backchannel_recognised_after_the_bot_is_done_is_no_turn() -> None:
    call = Call()
    call.hear(voice(0.12), silence(0.5))
    call.bot.audible = False
    call.hear(silence(0.5))
    assert call.floor.judge("Right.") is Verdict.BACKCHANNEL
    assert call.floor.judge("Another thing.") is Verdict.TURN


def test_between_turns_everything_is_the_callers() -> None:
    call = Call()
    call.bot.audible = False
    assert call.hear(silence(0.3), voice(1.0)) == []
    assert call.floor.judge("Yeah.") is Verdict.TURN


def test_a_caller_who_speaks_when_the_bot_ends_gets_the_floor_and_nothing_stays_held() -> None:
    call = Call()
    call.hear(silence(0.2), voice(0.26))
    call.bot.audible = False
    call.bot.playout.interrupt()
    assert call.hear(voice(0.4)) == [Action.CANCEL]
    assert call.decisions[-1].cause is Cause.BOT_DONE
    call.bot.audible = True
    call.hear(silence(0.2))
    assert not call.bot.playout.paused
    assert call.bot.heard[-1][-1] == pytest.approx(0.5)


def test_a_duck_does_not_outlive_the_turn_it_was_for() -> None:
    call = Call()
    call.hear(silence(0.2), voice(0.12), silence(0.1))
    call.fall_silent()
    call.hear(silence(0.4))
    call.bot.audible = True
    call.hear(silence(0.1))
    assert call.bot.heard[-1][-1] == pytest.approx(0.5)


def test_uninterruptible_speech_is_left_alone() -> None:
    call = Call()
    call.bot.interruptible = False
    assert call.hear(voice(1.5)) == []
    assert call.floor.judge("Stop!") is Verdict.TURN
    assert call.bot.interrupts == 0


def test_a_muted_caller_decides_nothing() -> None:
    call = Call()
    call.floor.enabled = False
    assert call.hear(voice(1.5)) == []


def test_after_a_cancel_the_next_turn_starts_at_the_bottom() -> None:
    call = Call()
    call.hear(voice(1.0))
    call.hear(silence(0.5))
    call.bot.audible = True
    assert call.hear(silence(0.1), voice(0.14)) == [Action.DUCK]


def test_any_packet_length_gives_the_same_decisions() -> None:
    pcm = np.concatenate((silence(0.3), voice(0.3), silence(0.5), voice(1.0)))
    expected = None
    for size in (160, 320, 480, 960, 4000):
        call = Call(recogniser=False)
        for at in range(0, len(pcm), size):
            call.floor.hear(pcm[at : at + size])
        found = [(d.action, d.voice_ms) for d in call.decisions]
        expected = expected or found
        assert found == expected


def test_presets_differ_and_carry_the_language() -> None:
    assert BargeInPolicy.preset("phone", "de").language == "de"
    assert BargeInPolicy.preset("headset").thresholds.duck_ms < BargeInPolicy.preset("speakerphone").thresholds.duck_ms
    with pytest.raises(ValueError, match="headset, speakerphone, phone"):
        BargeInPolicy.preset("loudhailer")


@pytest.mark.parametrize("bad", [{"duck_db": 3.0}, {"quiet_dbfs": 0.0}])
def test_settings_out_of_range_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="lies between"):
        BargeInPolicy(**bad)


@pytest.mark.parametrize(("over_s", "alone_s"), [(0.1, 0.4), (0.0, 0.3)])
def test_an_answer_that_began_over_the_end_of_a_question_is_a_turn(over_s: float, alone_s: float) -> None:
    call = Call()
    call.hear(silence(0.3), voice(over_s))
    call.fall_silent()
    call.hear(voice(alone_s), silence(0.6))
    assert call.floor.judge("Okay.") is Verdict.TURN


def test_what_was_said_over_one_turn_is_forgotten_in_the_next() -> None:
    call = Call()
    call.hear(silence(0.3), voice(0.14), silence(0.5))
    call.fall_silent()
    call.hear(silence(0.6), voice(0.2), silence(0.4))
    assert call.floor.judge("Yeah.") is Verdict.TURN


@pytest.mark.parametrize("before", [0.5, 1.5])
def test_words_from_before_the_bot_began_are_no_echo(before: float) -> None:
    call = Call(BargeInPolicy())
    call.bot.audible = False
    call.hear(silence(0.3), voice(before), silence(0.2))
    call.bot.audible = True
    call.hear(silence(0.3))
    assert call.floor.judge("And another thing.") is Verdict.TURN
    assert call.bot.interrupts == 1


def test_words_over_uninterruptible_speech_are_no_echo() -> None:
    call = Call(BargeInPolicy())
    call.bot.interruptible = False
    call.hear(silence(0.3), voice(0.8), silence(0.3))
    assert call.floor.judge("But I want to know.") is Verdict.TURN
    assert call.bot.interrupts == 0


@pytest.mark.parametrize("rung_s", [0.14, 0.3])
@pytest.mark.parametrize("why", ["muted", "uninterruptible"])
def test_nothing_stays_held_when_the_caller_has_no_say_any_more(rung_s: float, why: str) -> None:
    call = Call()
    call.hear(silence(0.3), voice(rung_s))
    if why == "muted":
        call.floor.enabled = False
    else:
        call.bot.interruptible = False
    assert call.hear(voice(0.1), silence(0.1)) == [Action.RESUME]
    assert call.decisions[-1].cause is Cause.NO_SAY
    assert call.bot.heard[-1][-1] == pytest.approx(0.5)
    call.floor.enabled = call.bot.interruptible = True
    assert call.hear(voice(0.08)) == []


def test_a_quick_yes_at_the_end_of_a_question_is_an_answer_and_in_a_pause_a_backchannel() -> None:
    for goes_on, verdict in ((False, Verdict.TURN), (True, Verdict.BACKCHANNEL)):
        call = Call()
        call.hear(silence(0.3), voice(0.04))
        call.fall_silent()
        call.hear(voice(0.06))
        call.bot.audible = goes_on
        call.hear(silence(0.5))
        assert call.floor.judge("Yeah.") is verdict
