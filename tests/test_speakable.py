"""What is said for what is written, and the way back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxagent.speakable import Piece, Speakable, speakable

ENGLISH = [
    ("The rent is $950.", "The rent is nine hundred fifty dollars."),
    ("It was £2.40 then.", "It was two pounds and forty pence then."),
    ("They paid $3.2M.", "They paid three point two million dollars."),
    ("About 12.5% agree.", "About twelve point five percent agree."),
    ("Pi is 3.14.", "Pi is three point one four."),
    ("Half of 1,250 is 625.", "Half of one thousand two hundred fifty is six hundred twenty-five."),
    ("Add 3/4 cup.", "Add three quarters cup."),
    ("See pages 4-9.", "See pages four to nine."),
    ("Due 04/30/2025.", "Due April thirtieth, twenty twenty-five."),
    ("From Oct. 3, 1999 on.", "From October third, nineteen ninety-nine on."),
    ("Back in 1905.", "Back in nineteen oh five."),
    ("At 6:05 a.m. sharp", "At six oh five a.m. sharp"),
    ("The 3rd and 22nd floors", "The third and twenty-second floors"),
    ("It weighs 4 kg.", "It weighs four kilograms."),
    ("A speed of 1 km/h", "A speed of one kilometer per hour"),
    ("King Edward VII", "King Edward the Seventh"),
    ("World War II ended.", "World War two ended."),
    ("Ask Dr. Bell on Elm St.", "Ask Doctor Bell on Elm Street."),
    ("He lives in St. Paul.", "He lives in Saint Paul."),
    ("e.g. tea, rice, etc.", "for example tea, rice, et cetera."),
    ("Call 555-0177.", "Call five five five, zero one seven seven."),
    ("Order ZK-4410-B", "Order Z K dash four four one zero dash B"),
    ("My code is 9075.", "My code is nine zero seven five."),
    ("See shop.example.com/sale now", "See shop dot example dot com slash sale now"),
    ("Mail ann@example.org.", "Mail ann at example dot org."),
    ("Version v1.12.0 is out", "Version version one point twelve point zero is out"),
    ("WARNING: do NOT open", "warning: do not open"),
    ("The FBI and NASA", "The FBI and NASA"),
    ("Tag it #BlueSky", "Tag it hashtag Blue Sky"),
    ("Well done! 🎉🎉", "Well done!"),
    ("Nice 👍 I'll add it", "Nice I'll add it"),
]


@pytest.mark.parametrize(("written", "spoken"), ENGLISH)
def test_english_is_said_as_a_reader_would(written, spoken):
    assert speakable(written, "en").text == spoken


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("**Bold**, _soft_ and `code`", "Bold, soft and code"),
        ("See [the form](https://example.com/f?x=1).", "See the form."),
        ("# Title\nBody", "Title. Body"),
        ("> quoted", "quoted"),
        ("- milk\n- eggs", "milk. eggs"),
        ("1. Stir.\n2. Wait.", "One. Stir. Two. Wait."),
        ("| a | b |\n|---|---|\n| c | d |", "a, b. c, d"),
        ("Run:\n```sh\nrm x\n```\nDone.", "Run: Done."),
        ("<think>no, 5 > 3</think>Yes.", "Yes."),
        ("Hold. <break time='1s'/> Thanks.", "Hold. Thanks."),
        ("[pause] Well [sighs] yes", "Well yes"),
        ("2 * 3 is 6", "two times three is six"),
        ("a snake_case name", "a snake_case name"),
    ],
)
def test_markup_is_silent(written, spoken):
    assert speakable(written, "en").text == spoken


@pytest.mark.parametrize(
    "text", ["", " ", "\n\n", "...", "**", "🎉", "\x00\x1b", "\ufffd", "<think>secret", "```\ncode"]
)
def test_what_has_no_word_is_silent(text):
    found = speakable(text)
    assert found.text == ""
    assert found.written_span(0, 0) == (len(text) if text else 0,) * 2


@pytest.mark.parametrize(
    ("language", "written", "spoken"),
    [
        ("de", "Das sind 3,5 %.", "Das sind drei Komma fünf Prozent."),
        ("de", "Um 18.05 Uhr", "Um achtzehn Uhr fünf"),
        ("fr", "Il y a 21 places", "Il y a vingt et une places"),
        ("es", "Son 1.500 € hoy", "Son mil quinientos euros hoy"),
        ("it", "Costa 8,20 €", "Costa otto euro e venti centesimi"),
        ("pt-BR", "São R$ 12,50", "São doze reais e cinquenta centavos"),
        ("nl", "Het is 7 km", "Het is zeven kilometer"),
        ("pl", "Mam 5 kg", "Mam pięć kilogramów"),
        ("ru", "Ещё 3 км", "Ещё три километра"),
        ("tr", "Tam 47 kişi", "Tam kırk yedi kişi"),
        ("zh", "有30%的人", "有百分之三十的人"),
        ("zh", "共10,250元。", "共一万零二百五十元。"),
        ("hi", "कुल 99 लोग", "कुल निन्यानवे लोग"),
        ("ja", "3.5kgです", "三点五キログラムです"),
        ("ko", "20% 할인", "이십 퍼센트 할인"),
        ("xx", "Still 5 left", "Still 5 left"),
    ],
)
def test_other_languages_say_numbers_in_their_words(language, written, spoken):
    assert speakable(written, language).text == spoken


def test_a_rewritten_unit_counts_whole_both_ways():
    found = speakable("Pay **$5** today")
    assert found.text == "Pay five dollars today"
    low = found.text.index("dollars")
    assert found.written_span(low, low + 7) == (6, 8)
    assert found.spoken_span(7, 8) == (4, 16)
    assert not found.text[slice(*found.spoken_span(4, 5))].strip()  # markup has no sound


def test_a_copied_word_maps_character_by_character():
    found = speakable("One 👍 two three")
    at = found.text.index("two")
    assert found.written_span(at + 1, at + 3) == (7, 9)
    assert found.spoken_span(6, 9) == (at, at + 3)


def test_spans_beyond_either_end_are_clamped():
    found = Speakable("ab", (Piece(0, 3, 0, 0), Piece(3, 5, 0, 2)))
    assert found.written_span(0, 99) == (3, 5)
    assert found.written_span(5, 9) == (5, 5)
    assert Speakable("", ()).written_span(0, 3) == (0, 0)


def test_leading_text_of_a_silent_block_is_not_spoken():
    text = "still thinking 5</think> Hello 5"
    found = speakable(text, silent=24)
    assert found.text == "Hello five"
    assert found.written_span(0, 5) == (25, 30)


LANGUAGES = ["en", "de", "fr", "es", "it", "nl", "pl", "pt", "ru", "tr", "ar", "hi", "ja", "ko", "th", "vi", "zh", "xx"]
MARKS = st.sampled_from(
    [
        *" \n\t.,:;!?-–—…'\"*_`~#|<>[](){}$€%&@/+=0123456789aBcé你です่นि한👍🏽\u200d\ufe0f\u0301\ufffd\x00",
        *(
            "31.12.2026",
            "14h05",
            "9:30",
            "1 280",
            "3-5",
            "2e",
            "21 ",
            "½",
            "V2.1.3",
            "1999 r.",
            "5-й",
            "3개",
            "2个",
            "'te",
        ),
        *("12/3", "1,000", "3.5", "a.m.", "Dr. ", "```", "<think>", "https://x.io/a", "a@b.co", "VIII", "**", "\n- "),
    ]
)


@settings(max_examples=400, deadline=None)
@given(
    st.one_of(st.text(max_size=60), st.lists(MARKS, max_size=40).map("".join)),
    st.sampled_from([*LANGUAGES, None]),
)
def test_pieces_cover_both_texts_without_gaps_for_any_text(text, language):
    found = speakable(text, language)
    written = spoken = 0
    for piece in found.pieces:
        assert (piece.w0, piece.s0) == (written, spoken)
        assert piece.w1 >= piece.w0
        assert piece.s1 >= piece.s0
        written, spoken = piece.w1, piece.s1
    assert (written, spoken) == (len(text), len(found.text))
    assert found.text == found.text.strip()
    for start in range(len(found.text)):
        low, high = found.written_span(start, start + 1)
        assert 0 <= low <= high <= len(text)


@pytest.mark.timeout(5)
@pytest.mark.parametrize("unit", ["1", "a.", "* ", "[", "<", "a@", "1,", "- ", "|", "\n", " ", "😀", "A1", "_", "(1"])
@pytest.mark.parametrize("language", ["en", "pl", "ja"])
def test_long_runs_of_marks_take_no_excessive_time(unit, language):
    assert speakable(unit * (4000 // len(unit)), language).pieces


@pytest.mark.parametrize("mark", ["¹", "²", "①", "º", "½", "٣", "привет", "日本"])
@pytest.mark.parametrize("before", ["#", "№", "", "3", "v", "A-"])
@pytest.mark.parametrize("language", ["en", "de", "zh"])
def test_signs_that_only_look_like_digits_are_no_error(before, mark, language):
    found = speakable(f"x {before}{mark} y", language)
    assert found.text.startswith("x")
    assert found.text.endswith("y")
    alone = speakable(before + mark, language).text
    assert alone == alone.strip()
