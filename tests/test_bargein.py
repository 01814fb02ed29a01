"""The ladder: duck, pause, cancel, resume."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxagent.bargein import Action, BargeIn, Cause, Rung, Thresholds, interjections

LANGUAGES = ["en", "de", "fr", "es", "it", "pt", "zh", "ja", "ko", "hi"]


def climb(ladder, voiced_ms, voiced=True, frame_ms=20):
    actions = [ladder.frame(voiced, frame_ms) for _ in range(voiced_ms // frame_ms)]
    return [action for action in actions if action is not None]


def test_lasting_speech_ducks_then_pauses_then_cancels():
    assert climb(BargeIn(), 1000) == [Action.DUCK, Action.PAUSE, Action.CANCEL]


@pytest.mark.parametrize(("ms", "actions"), [(80, []), (100, [Action.DUCK]), (240, [Action.DUCK, Action.PAUSE])])
def test_each_rung_has_its_time(ms, actions):
    assert climb(BargeIn(), ms) == actions


@pytest.mark.parametrize(("recogniser", "patience_ms"), [(False, 400), (True, 1200)])
def test_a_cough_resumes_after_silence_longer_while_words_may_come(recogniser, patience_ms):
    ladder = BargeIn(recogniser=recogniser)
    climb(ladder, 300)
    assert climb(ladder, patience_ms - 20, voiced=False) == []
    assert climb(ladder, 20, voiced=False) == [Action.RESUME]
    assert (ladder.rung, ladder.cause) == (Rung.CLEAR, Cause.NOISE)


def test_a_duck_alone_does_not_wait_for_words():
    ladder = BargeIn()
    climb(ladder, 120)
    assert climb(ladder, 400, voiced=False) == [Action.RESUME]


def test_no_words_resume_at_once_but_not_in_mid_speech():
    ladder = BargeIn()
    climb(ladder, 300)
    assert ladder.no_words() is None
    climb(ladder, 100, voiced=False)
    assert ladder.no_words() is Action.RESUME
    assert ladder.no_words() is None


def test_noise_without_pitch_never_cancels_and_does_not_hold_the_bot_for_ever():
    ladder = BargeIn()
    actions = [ladder.frame(True, 20, pitched=False) for _ in range(500)]
    assert [a for a in actions if a] == [Action.DUCK, Action.PAUSE, Action.RESUME]
    assert climb(ladder, 500, voiced=False) == []
    assert climb(ladder, 1000) == [Action.DUCK, Action.PAUSE, Action.CANCEL]


def test_a_bot_that_is_done_concedes_the_floor():
    ladder = BargeIn()
    climb(ladder, 120)
    assert (ladder.concede(), ladder.cause) == (Action.CANCEL, Cause.BOT_DONE)


@pytest.mark.parametrize(
    ("transcript", "cause"),
    [("Stop!", Cause.STOP_WORD), ("Mm-hm.", Cause.BACKCHANNEL), ("the red one", Cause.WORDS), ("...", Cause.NOISE)],
)
def test_words_are_told_apart(transcript, cause):
    assert BargeIn().kind(transcript) is cause


def test_a_short_gap_does_not_start_the_count_anew():
    ladder = BargeIn()
    climb(ladder, 80)
    climb(ladder, 60, voiced=False)
    assert climb(ladder, 20) == [Action.DUCK]


def test_single_clicks_never_add_up():
    ladder = BargeIn()
    for _ in range(50):
        assert climb(ladder, 40) == []
        assert climb(ladder, 100, voiced=False) == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_stop_phrase_cancels_at_once_in_every_language(language):
    for phrase in interjections(language).stops:
        text = "".join(phrase) if language in ("zh", "ja") else " ".join(phrase)
        assert BargeIn(language=language).words(text.capitalize() + "!") is Action.CANCEL


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_backchannel_lets_the_bot_go_on_in_every_language(language):
    lists = interjections(language)
    assert not lists.stops & lists.backchannels
    for phrase in lists.backchannels:
        ladder = BargeIn(language=language)
        climb(ladder, 240)
        text = "".join(phrase) if language in ("zh", "ja") else " ".join(phrase)
        assert ladder.words(text + ".") is Action.RESUME


@pytest.mark.parametrize(
    ("said", "action"),
    [
        ("Yeah, yeah, right.", Action.RESUME),
        ("I see. Okay.", Action.RESUME),
        ("Yeah, but what about Monday?", Action.CANCEL),
        ("mm-hm no wait", Action.CANCEL),
        ("What?", Action.CANCEL),
        ("...", None),
        ("", None),
    ],
)
def test_words_decide(said, action):
    ladder = BargeIn()
    climb(ladder, 240)
    assert ladder.words(said) is action


def test_a_backchannel_over_a_bot_that_was_not_touched_does_nothing():
    assert BargeIn().words("mm-hm") is None


def test_nothing_comes_after_a_cancel():
    ladder = BargeIn()
    assert ladder.words("stop") is Action.CANCEL
    assert climb(ladder, 2000) == []
    assert ladder.words("stop") is None
    assert climb(ladder, 2000, voiced=False) == []


def test_an_unknown_language_uses_the_english_lists():
    assert BargeIn(language="sv-SE").words("stop") is Action.CANCEL


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([10, 20, 30])), max_size=200))
def test_a_resume_always_answers_a_duck_or_a_pause(frames):
    ladder, held = BargeIn(), False
    for voiced, frame_ms in frames:
        action = ladder.frame(voiced, frame_ms)
        if action is Action.RESUME:
            assert held
        held = ladder.rung in (Rung.DUCKED, Rung.PAUSED)


@pytest.mark.parametrize("bad", [{"duck_ms": 0}, {"pause_ms": 50}, {"resume_ms": 50}])
def test_thresholds_that_make_no_ladder_are_refused(bad):
    with pytest.raises(ValueError, match=r"must (climb|be longer)"):
        Thresholds(**bad)
