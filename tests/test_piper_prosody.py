"""Words to ids, and durations back to word times and to what is worth decoding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxagent.model import WordTime
from voxagent_piper.g2p import Word
from voxagent_piper.prosody import MAX_PHONEMES, Line, cue, take, write

TABLE = {symbol: [index] for index, symbol in enumerate("_^$ abcdestmnɪˈː̃,.?!;:")}


def line(*words: Word) -> Line:
    written = write(words, TABLE)
    assert written is not None
    return written


def test_ids_have_blanks_between_and_marks_behind():
    written = line(Word(0, 2, "ab", ","), Word(4, 5, "c", "."))
    symbols = {index: symbol for symbol, (index,) in TABLE.items()}
    assert "".join(symbols[i] for i in written.ids.tolist()) == "^_a_b_,_ _c_._$"
    assert [(s.first, s.last) for s in written.spans] == [(2, 6), (10, 12)]


def test_phonemes_are_decomposed_and_unknown_ones_left_out():
    assert line(Word(0, 1, "ã?x")).ids.size == line(Word(0, 1, "ã?")).ids.size


def test_nothing_to_say():
    assert write([], TABLE) is None
    assert write([Word(0, 3, "xyz", ".")], TABLE) is None


@pytest.mark.parametrize(
    ("mark", "final", "tail"),
    [
        ("", False, 3),
        (",", False, 9),
        (";", False, 13),
        (".", False, 19),
        ("?", False, 19),
        (".", True, 5),
        ("", True, 3),
    ],
)
def test_tails_follow_the_punctuation(mark, final, tail):
    written = line(Word(0, 2, "ab", mark))
    durations = np.full(written.ids.size, 2)
    durations[-1] = 100
    plan = cue(written, durations, 256, 22050, final)
    assert plan.end == 2 * written.spans[-1].last + tail


def test_a_tail_is_never_longer_than_the_phrase():
    written = line(Word(0, 2, "ab", "."))
    assert cue(written, np.ones(written.ids.size, np.int64), 256, 22050, False).end == written.ids.size


@pytest.mark.parametrize(("opening", "lead"), [("s", 3), ("b", 1), ("ˈb", 1), ("a", 2), ("e", 2)])
def test_leads_follow_the_first_phoneme(opening, lead):
    written = line(Word(0, 1, opening + "a"))
    durations = np.full(written.ids.size, 10)
    assert cue(written, durations, 256, 22050, False).start == 20 - lead


def test_word_times_count_from_the_first_sample_emitted():
    written = line(Word(0, 2, "ab"), Word(3, 4, "c", "."))
    durations = np.array([4, 1, 2, 1, 2, 1, 1, 1, 5, 1, 3, 1, 9])
    plan = cue(written, durations, 256, 22050, False)
    assert plan.start == 3
    assert plan.words == (
        WordTime(0, 2, 2 * 256, 8 * 256),
        WordTime(3, 4, 10 * 256, 16 * 256),
    )


def test_the_words_of_one_number_are_one_word():
    written = line(Word(0, 2, "ab"), Word(0, 2, "cd"), Word(3, 4, "e"))
    plan = cue(written, np.full(written.ids.size, 1), 256, 22050, False)
    assert [(w.start, w.end) for w in plan.words] == [(0, 2), (3, 4)]


sizes = st.lists(st.tuples(st.integers(1, 60), st.sampled_from(["", "", "", ",", "."])), min_size=1, max_size=60)


@given(sizes)
def test_takes_are_bounded_and_lose_nothing(drawn):
    words = [Word(i, i + 1, "a" * size, mark) for i, (size, mark) in enumerate(drawn)]
    while words:
        count = take(words)
        assert 1 <= count <= len(words)
        assert count == 1 or sum(len(w.phonemes) + 2 for w in words[:count]) <= MAX_PHONEMES
        words = words[count:]


def test_takes_end_at_a_mark_where_they_can():
    words = [Word(i, i + 1, "a" * 8, "," if i == 11 else "") for i in range(20)]
    assert take(words) == 12


def test_takes_without_a_mark_are_even():
    words = [Word(i, i + 1, "a" * 8) for i in range(20)]
    assert take(words) == 10


@given(sizes, st.randoms(use_true_random=False))
def test_words_are_in_order_and_inside_the_audio(drawn, random):
    written = line(*(Word(i, i + 1, "a" * size, mark) for i, (size, mark) in enumerate(drawn)))
    durations = np.array([random.randint(1, 12) for _ in written.ids])
    plan = cue(written, durations, 256, 22050, random.random() < 0.5)
    assert 0 <= plan.start < plan.end <= durations.sum()
    assert len(plan.words) == len(drawn)
    edges = [edge for word in plan.words for edge in (word.start_sample, word.end_sample)]
    assert edges == sorted(edges)
    assert edges[0] >= 0
    assert edges[-1] <= (plan.end - plan.start) * 256
