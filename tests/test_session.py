"""The transition table of a turn: every cell."""

import pytest

from voxagent.errors import SessionStateError
from voxagent.session import TRANSITIONS, Position, SessionEvent, SessionState, transition

S, E = SessionState, SessionEvent

EXPECTED = {
    #            PHRASE         CHUNK          SPOKEN         END_INPUT      INTERRUPT      FAIL
    S.WAITING: (S.SPEAKING, None, S.WAITING, S.ENDED, S.INTERRUPTED, S.FAILED),
    S.SPEAKING: (S.SPEAKING, S.SPEAKING, S.WAITING, S.DRAINING, S.INTERRUPTED, S.FAILED),
    S.DRAINING: (None, S.DRAINING, S.ENDED, S.DRAINING, S.INTERRUPTED, S.FAILED),
    S.ENDED: (None, None, None, S.ENDED, S.INTERRUPTED, S.ENDED),
    S.INTERRUPTED: (S.INTERRUPTED,) * 6,
    S.FAILED: (S.FAILED,) * 6,
}
CELLS = [(s, e, after) for s, row in EXPECTED.items() for e, after in zip(SessionEvent, row, strict=True)]


@pytest.mark.parametrize(("state", "event", "after"), CELLS)
def test_every_cell_of_the_table(state, event, after):
    if after is None:
        with pytest.raises(SessionStateError, match=state.value):
            transition(state, event)
    else:
        assert transition(state, event) is after


def test_the_expectations_cover_the_whole_table():
    assert len(CELLS) == len(SessionState) * len(SessionEvent)
    assert len(TRANSITIONS) == sum(after is not None for _, _, after in CELLS)


def test_what_is_over_never_comes_back_to_life():
    for state in SessionState:
        if state.over:
            assert all(after.over for (before, _), after in TRANSITIONS.items() if before is state)


def test_a_position_knows_its_milliseconds():
    assert Position(24000, 48000).ms == 500.0
