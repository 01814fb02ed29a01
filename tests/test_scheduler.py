"""Who is served next."""

from hypothesis import given
from hypothesis import strategies as st

from voxagent.scheduler import Bounds, Candidate, Need, admit, plan

BOUNDS = Bounds(max_ahead_s=0.6, guard_s=0.12, max_batch=2)


def step(key, ahead_s, speaking=True):
    return Candidate(key, Need.STEP, ahead_s, speaking)


def prefill(key, ahead_s=0.0, speaking=False):
    return Candidate(key, Need.PREFILL, ahead_s, speaking)


def test_the_session_with_least_audio_ahead_goes_first():
    assert plan([step(1, 0.4), step(2, 0.2), step(3, 0.3)], BOUNDS).keys == (2, 3)


def test_a_session_that_is_far_enough_ahead_rests():
    assert plan([step(1, 0.6), step(2, 0.9)], BOUNDS) is None
    assert plan([], BOUNDS) is None


def test_an_arrival_goes_before_listeners_who_have_audio_left():
    chosen = plan([step(1, 0.3), prefill(2)], BOUNDS)
    assert (chosen.need, chosen.keys) == (Need.PREFILL, (2,))


def test_a_first_step_waits_for_nobody_who_has_time():
    waiting = [step(1, 0.0, speaking=False), step(2, 0.3), step(3, 0.05), step(4, 0.0, speaking=False)]
    found = plan(waiting, Bounds(max_batch=8))
    assert found.need is Need.STEP
    assert set(found.keys) == {1, 3, 4}


def test_a_listener_about_to_run_dry_goes_before_an_arrival():
    chosen = plan([prefill(2), step(1, 0.1)], BOUNDS)
    assert (chosen.need, chosen.keys) == (Need.STEP, (1,))


def test_a_session_nobody_hears_yet_is_not_endangered():
    assert plan([prefill(2), step(1, 0.05, speaking=False)], BOUNDS).keys == (2,)


candidates = st.lists(
    st.builds(Candidate, st.integers(), st.sampled_from(Need), st.floats(0, 2), st.booleans()),
    unique_by=lambda candidate: candidate.key,
)


@given(candidates, st.integers(1, 5))
def test_a_plan_is_sound_for_any_candidates(some, max_batch):
    chosen = plan(some, Bounds(max_batch=max_batch))
    hungry = [c for c in some if c.ahead_s < 0.6]
    assert (chosen is None) == (not hungry)
    if chosen is not None:
        by_key = {c.key: c for c in hungry}
        assert all(by_key[key].need is chosen.need for key in chosen.keys)
        assert 1 <= len(chosen.keys) <= (1 if chosen.need is Need.PREFILL else max_batch)


def test_admission_counts_live_sessions_only():
    assert admit(3, 4)
    assert not admit(4, 4)
