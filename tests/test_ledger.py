"""Which written words were heard."""

import itertools
import re

import pytest

from voxagent.ledger import Ledger
from voxagent.model import WordTime
from voxagent.phrases import Phrase
from voxagent.speakable import Piece, Speakable, speakable

RATE = 1000


def copied(text, start=0, reason="sentence"):
    return Phrase(text, start, Speakable(text.strip(), _pieces(text)), reason)


def _pieces(text):
    body = text.strip()
    lead = text.index(body)
    pieces = [Piece(0, lead, 0, 0), Piece(lead, lead + len(body), 0, len(body))]
    return tuple([*pieces, Piece(lead + len(body), len(text), len(body), len(body))])


def timed(text, ms_per_character=10):
    words, at = [], 0
    for word in text.split():
        start = text.index(word, at)
        at = start + len(word)
        words.append(WordTime(start, at, start * ms_per_character, at * ms_per_character))
    return words


def two_phrases():
    ledger = Ledger(RATE)
    first, second = copied("One two, three."), copied(" Four five.", 15)
    ledger.write(first)
    ledger.add(first, 0, timed(first.spoken))
    ledger.finish(first, 150)
    ledger.write(second)
    ledger.add(second, 150, timed(second.spoken))
    ledger.finish(second, 250)
    return ledger


@pytest.mark.parametrize(
    ("position", "heard", "partly", "unheard"),
    [
        (0, "", "", "One two, three. Four five."),
        (10, "", "One", "One two, three. Four five."),
        (30, "One", "", "two, three. Four five."),
        (50, "One", "two,", "two, three. Four five."),
        (80, "One two,", "", "three. Four five."),
        (150, "One two, three.", "", "Four five."),
        (170, "One two, three.", "Four", "Four five."),
        (10_000, "One two, three. Four five.", "", ""),
    ],
)
def test_the_text_is_split_at_the_last_word_heard_whole(position, heard, partly, unheard):
    split = two_phrases().split(position)
    assert (split.heard, split.partly, split.unheard) == (heard, partly, unheard)
    assert split.words == len(heard.split())


def test_text_no_phrase_holds_yet_is_unheard():
    assert two_phrases().split(10_000, pending=" And so").unheard == "And so"


def test_a_phrase_that_was_written_and_never_sounded_is_unheard():
    ledger = two_phrases()
    ledger.write(copied(" Six.", 26))
    assert ledger.split(10_000).unheard == "Six."


def test_a_silent_phrase_goes_with_the_words_before_it():
    ledger = two_phrases()
    ledger.write(Phrase(" \N{WAVING HAND SIGN}", 26, Speakable("", (Piece(0, 2, 0, 0),)), "end"))
    assert ledger.split(10_000).unheard == ""


def test_the_words_of_a_rewritten_unit_count_as_one_written_word():
    phrase = Phrase(
        "Pay $5 now.",
        0,
        Speakable("Pay five dollars now.", (Piece(0, 4, 0, 4), Piece(4, 6, 4, 16), Piece(6, 11, 16, 21))),
        "end",
    )
    ledger = Ledger(RATE)
    ledger.write(phrase)
    words = ledger.add(phrase, 0, timed(phrase.spoken))
    assert [(w.text, w.start_sample, w.end_sample) for w in words] == [
        ("Pay", 0, 30),
        ("$5", 40, 160),
        ("now.", 170, 210),
    ]
    assert ledger.split(100).partly == "$5"
    assert ledger.split(160).heard == "Pay $5"


def test_untimed_words_are_spread_by_length_and_corrected_at_the_end():
    phrase = copied("aa bb cc dd")
    ledger = Ledger(RATE)
    ledger.write(phrase)
    guessed = ledger.estimate(phrase, 100)
    assert [w.text for w in guessed] == ["aa", "bb", "cc", "dd"]
    ledger.finish(phrase, 100 + 1100)
    words = ledger.words
    assert (words[0].start_sample, words[-1].end_sample) == (100, 1200)
    lengths = [word.end_sample - word.start_sample for word in words]
    assert max(lengths) - min(lengths) <= 1
    gaps = [later.start_sample - word.end_sample for word, later in itertools.pairwise(words)]
    assert all(0 <= gap < min(lengths) for gap in gaps)


def test_a_slow_voice_is_expected_to_stay_slow():
    first, second = copied("one two three four"), copied(" five six seven eight", start=18)
    ends = []
    for length in (500, 5000):
        ledger = Ledger(RATE)
        ledger.write(first)
        ledger.estimate(first, 0)
        ledger.finish(first, length)
        ledger.write(second)
        ends.append(ledger.estimate(second, length)[-1].end_sample - length)
    assert ends[0] < ends[1]


def test_untimed_chinese_is_spread_by_character():
    phrase = copied("你好吗")
    ledger = Ledger(RATE)
    ledger.write(phrase)
    ledger.estimate(phrase, 0)
    ledger.finish(phrase, 300)
    assert ledger.split(200).heard == "你好"


def test_marks_cling_to_their_word_as_written():
    text = '"Well-known (or so)," *he* said.'
    phrase = copied(text)
    ledger = Ledger(RATE)
    ledger.write(phrase)
    bare = [("Well", 1), ("known", 6), ("or", 13), ("so", 16), ("he", 23), ("said", 27)]
    times = [WordTime(at, at + len(word), at, at + len(word)) for word, at in bare]
    words = ledger.add(phrase, 0, times)
    assert [w.text for w in words] == ['"Well-known', "(or", 'so),"', "*he*", "said."]


def spoken_turn(*texts):
    """A turn of real phrases, each word 100 samples long; returns the ledger and the turn's length."""
    ledger, at, start = Ledger(RATE), 0, 0
    for text in texts:
        phrase = Phrase(text, start, speakable(text), "sentence")
        start += len(text)
        ledger.write(phrase)
        if phrase.spoken:
            found = list(re.finditer(r"\S+", phrase.spoken))
            ledger.add(phrase, at, [WordTime(m.start(), m.end(), 100 * i, 100 * i + 100) for i, m in enumerate(found)])
            at += 100 * len(found)
            ledger.finish(phrase, at)
    return ledger, at


MARKED = [
    ["**Hi** there."],
    ['"Hello," he said.', ' "Two more."'],
    ["# Title\n", "And text."],
    ["<b>bold</b> text <br/>"],
    ["Read this:\n", "```python\nx = 1\n```"],
    ["It costs $5", " or -7 degrees."],
    ["\N{WAVING HAND SIGN}", " Hello."],
]


@pytest.mark.parametrize("texts", MARKED)
def test_before_the_first_word_nothing_was_heard_whatever_the_markup(texts):
    ledger, _ = spoken_turn(*texts)
    assert (ledger.split(0).heard, ledger.split(0).unheard) == ("", "".join(texts).lstrip())


@pytest.mark.parametrize("texts", MARKED)
def test_a_turn_that_was_played_to_its_end_was_heard_whole(texts):
    ledger, end = spoken_turn(*texts)
    assert (ledger.split(end).heard, ledger.split(end).unheard) == ("".join(texts).rstrip(), "")


@pytest.mark.parametrize("texts", MARKED)
def test_heard_and_unheard_make_up_the_text_at_every_position(texts):
    ledger, end = spoken_turn(*texts)
    whole = "".join("".join(texts).split())
    for position in range(0, end + 50, 50):
        split = ledger.split(position)
        assert "".join((split.heard + split.unheard).split()) == whole


def test_an_opening_quote_belongs_to_the_word_behind_it():
    ledger, _ = spoken_turn("He told me.", ' "Two more."')
    assert ledger.split(300).heard == "He told me."
    assert ledger.split(300).unheard == '"Two more."'


def test_words_that_become_known_later_are_added():
    phrase = copied("one two three four")
    ledger = Ledger(RATE)
    ledger.write(phrase)
    times = timed(phrase.spoken)
    ledger.add(phrase, 0, times[:2])
    assert ledger.split(70).unheard == "three four"
    ledger.add(phrase, 0, times[2:])
    ledger.finish(phrase, 180)
    assert [w.text for w in ledger.words] == ["one", "two", "three", "four"]
    assert ledger.split(180).unheard == ""
