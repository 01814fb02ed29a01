"""The last buffer: nothing lost, nothing repeated, no click, nothing stale."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxagent.fake import encode, places
from voxagent.playout import Playout

RATE = 16000
FRAME = 320


def playout(**options):
    return Playout(RATE, **{"headroom_ms": 10_000, **options})


def tone(seconds=1.0, hz=200):
    return (0.5 * np.sin(2 * np.pi * hz * np.arange(int(RATE * seconds)) / RATE)).astype(np.float32)


def pulled(p, frames):
    return np.concatenate([np.zeros(0, np.float32), *(p.pull().pcm for _ in range(frames))])


def largest_step(pcm):
    return np.abs(np.diff(pcm)).max()


@settings(deadline=None)
@given(st.lists(st.integers(0, 1500), min_size=1, max_size=20))
def test_any_split_of_the_input_gives_the_same_frames(sizes):
    p = playout()
    generation, position = p.begin(), 0
    for size in sizes:
        p.push(encode(1, position, size), generation)
        position += size
    p.finish()
    out = pulled(p, position // FRAME + 2)
    assert np.array_equal(out[:position], encode(1, 0, position))
    assert p.turn_samples == p.stats.handed_samples == position
    assert p.stats.underruns == 0


def test_an_idle_playout_is_silent_and_counts_nothing():
    p = playout()
    frame = p.pull()
    assert not frame.pcm.any()
    assert frame.speech_samples == 0
    assert p.stats.underrun_samples == 0


def test_the_first_frame_after_silence_is_marked():
    p = playout()
    p.push(encode(1, 0, 3 * FRAME), p.begin())
    assert [p.pull().speaks_again for _ in range(3)] == [True, False, False]


def test_an_interrupt_fades_within_10_ms_and_then_is_silent():
    p = playout()
    p.push(tone(), p.begin())
    before = pulled(p, 5)
    assert p.interrupt() == 5 * FRAME
    after = pulled(p, 3)
    last = np.flatnonzero(np.abs(after) > 1e-4)[-1]
    assert last < RATE // 100
    assert largest_step(np.concatenate((before, after))) <= 1.05 * largest_step(before)
    assert p.stats.dropped_samples == RATE - 5 * FRAME - RATE // 100


def test_audio_of_an_old_turn_is_refused_and_counted():
    p = playout()
    old = p.begin()
    p.push(encode(0, 0, 2 * FRAME), old)
    p.pull()
    p.interrupt()
    assert not p.push(encode(0, FRAME, 500), old)
    new = p.begin()
    assert p.push(encode(1, 0, FRAME), new)
    p.finish()
    assert p.stats.refused_samples == 500
    out = pulled(p, 2)[FRAME // 2 : 3 * FRAME // 2]
    assert set(places(out)[1].tolist()) == {1}


def test_a_second_interrupt_changes_nothing():
    p = playout()
    p.push(tone(), p.begin())
    p.pull()
    assert p.interrupt() == FRAME
    pulled(p, 2)
    assert p.interrupt() == FRAME
    assert not pulled(p, 2).any()


@pytest.mark.parametrize("frames_before", [0, 1, 7])
@pytest.mark.parametrize("frames_held", [1, 30])
def test_a_pause_loses_and_repeats_no_sample(frames_before, frames_held):
    p = playout()
    total = 20 * FRAME
    p.push(encode(2, 0, total), p.begin())
    p.finish()
    before = pulled(p, frames_before)
    p.pause()
    held = pulled(p, frames_held)
    assert not held[RATE // 100 :].any()
    assert p.turn_samples == frames_before * FRAME
    p.resume()
    after = pulled(p, 20 - frames_before)
    position = frames_before * FRAME
    assert np.array_equal(before, encode(2, 0, position))
    wanted = encode(2, position, total - position)
    ramp = RATE // 500
    assert np.array_equal(after[ramp:], wanted[ramp:])
    assert (after[:ramp] <= wanted[:ramp]).all()
    assert p.stats.underruns == 0


def test_pause_and_resume_do_not_click():
    p = playout()
    p.push(tone(), p.begin())
    out = [pulled(p, 7)]
    p.pause()
    out.append(pulled(p, 3))
    p.resume()
    out.append(pulled(p, 7))
    # The ramp back in is 2 ms long, so a loud resume may step a little more than the tone itself.
    assert largest_step(np.concatenate(out)) <= 1.5 * largest_step(tone())


def test_ducking_acts_on_the_next_frame_and_ramps():
    p = playout()
    p.push(tone(hz=1000), p.begin())
    before = pulled(p, 3)
    p.duck(-12)
    after = pulled(p, 4)
    assert np.abs(after[RATE // 100 :]).max() == pytest.approx(0.5 * 10 ** (-12 / 20), rel=0.02)
    p.duck(0)
    again = pulled(p, 4)
    assert np.array_equal(again[-FRAME:], tone(hz=1000)[10 * FRAME : 11 * FRAME])
    assert largest_step(np.concatenate((before, after, again))) <= 1.1 * largest_step(before)


def test_an_underrun_is_counted_and_concealed():
    p = playout()
    generation = p.begin()
    p.push(tone()[: 3 * FRAME + 100], generation)
    out = pulled(p, 6)
    assert p.stats.underruns == 1
    assert p.stats.underrun_samples == 3 * FRAME - 100
    assert largest_step(out) <= 1.2 * largest_step(tone())
    assert np.abs(out[3 * FRAME + 100 : 3 * FRAME + 150]).max() > 0.1
    hush = out[5 * FRAME :]
    assert 0 < np.sqrt(np.mean(hush**2)) < 10 ** (-60 / 20)  # the noise of a room, not a dead line
    p.push(tone(), generation)
    assert p.pull().speaks_again
    assert p.stats.underruns == 1


def test_silence_before_the_first_sample_and_after_the_end_is_no_underrun():
    p = playout()
    generation = p.begin()
    pulled(p, 3)
    p.push(tone()[:FRAME], generation)
    p.finish()
    pulled(p, 3)
    assert p.stats.underruns == 0


def test_it_wants_audio_up_to_its_headroom():
    p = Playout(RATE, headroom_ms=40)
    generation = p.begin()
    assert p.wants
    p.push(encode(0, 0, 2 * FRAME), generation)
    assert not p.wants
    p.pull()
    assert p.wants
    assert p.stats.peak_samples == 2 * FRAME


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from(["push", "pull", "pause", "resume", "interrupt", "duck", "finish", "begin"])))
def test_any_order_of_calls_keeps_the_books(calls):
    p = playout()
    generation = p.begin()
    pushed = 0
    for call in calls:
        match call:
            case "push":
                pushed += 500 * p.push(tone()[:500], generation)
            case "begin":
                generation = p.begin()
            case "pull":
                assert len(p.pull().pcm) == FRAME
            case "duck":
                p.duck(-6)
            case _:
                getattr(p, call)()
    stats = p.stats
    fades = pushed - stats.handed_samples - stats.buffered_samples - stats.dropped_samples
    assert 0 <= fades <= calls.count("interrupt") * RATE // 100


@pytest.mark.parametrize(
    ("rate", "options", "cure"),
    [(22051, {}, "whole number"), (16000, {"headroom_ms": 5}, "at least one frame")],
)
def test_a_bad_configuration_is_refused(rate, options, cure):
    with pytest.raises(ValueError, match=cure):
        Playout(rate, **options)


def test_an_interrupt_while_nothing_sounds_is_silent():
    never_pulled, resumed = playout(), playout()
    never_pulled.push(tone(), never_pulled.begin())
    resumed.push(tone(), resumed.begin())
    pulled(resumed, 3)
    resumed.pause()
    pulled(resumed, 2)
    resumed.resume()
    for p in (never_pulled, resumed):
        p.interrupt()
        assert not pulled(p, 3).any()


def test_a_duck_ends_with_its_turn():
    p = playout()
    p.push(tone(), p.begin())
    p.duck(-20)
    pulled(p, 3)
    p.interrupt()
    pulled(p, 2)
    p.push(tone(), p.begin())
    assert np.array_equal(p.pull().pcm, tone()[:FRAME])
