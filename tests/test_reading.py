"""What is read how: code, addresses, voice tags, and the language of the script."""

from __future__ import annotations

import pytest

from voxagent.phrases import PhraseSplitter
from voxagent.reading import Reading
from voxagent.scripts import first_letter_language, script_language
from voxagent.speakable import speakable

BLOCK = "Try this line:\n```python\nprint(1)\n```\nThen start it again."


def phrases(text, language="en", size=3, **options):
    splitter = PhraseSplitter(language, reading=Reading(**options))
    found = [p for i in range(0, len(text), size) for p in splitter.push(text[i : i + size])] + splitter.end()
    assert "".join(p.text for p in found) == text
    return found


def test_a_block_of_code_is_left_out_named_or_read():
    assert [p.spoken for p in phrases(BLOCK)] == ["Try this line:", "", "Then start it again."]
    assert [p.spoken for p in phrases(BLOCK, code="announce")][1] == "code omitted."
    read = " ".join(p.spoken for p in phrases(BLOCK, code="read"))
    assert "print" in read
    assert "```" not in read
    assert "python" not in read


def test_a_long_block_is_named_once():
    text = "Look at this example:\n```\n" + "x = 1\n" * 2000 + "```\nDone with that."
    spoken = [p.spoken for p in phrases(text, size=50, code="announce")]
    assert spoken.count("code omitted.") == 1
    assert all(s in ("Look at this example:", "code omitted.", "Done with that.", "") for s in spoken)


@pytest.mark.parametrize(
    ("url", "spoken"),
    [
        ("domain", "See example dot com."),
        ("short", "See example dot com."),
        ("full", "See example dot com slash docs slash setup slash linux slash install."),
    ],
)
def test_an_address_is_said_by_its_host_or_in_full(url, spoken):
    text = "See https://www.example.com/docs/setup/linux/install."
    assert speakable(text, "en", reading=Reading(url=url)).text == spoken
    assert speakable("On example.com/help.", "en", reading=Reading(url="short")).text.endswith("slash help.")


@pytest.mark.parametrize("tag", ["[pause]", "[pause:0.5]", "[laughs]", '<break time="500ms"/>'])
def test_a_voice_tag_reaches_only_an_engine_that_knows_it(tag):
    text = f"One moment {tag} please."
    assert speakable(text, "en").text.replace(",", "") == "One moment please."
    knows = Reading(tags=frozenset({"pause", "laughs", "break"}))
    assert speakable(text, "en", reading=knows).text == f"One moment {tag} please."
    assert speakable(text, "en", reading=Reading(tags=frozenset({"sighs"}))).text.replace(",", "") == (
        "One moment please."
    )


def test_a_link_in_brackets_is_no_voice_tag():
    assert speakable("See [pause](https://example.com) now.", "en").text == "See pause now."


@pytest.mark.parametrize("options", [{"code": "loud"}, {"url": "all"}])
def test_an_unknown_policy_is_refused_with_the_known_ones(options):
    with pytest.raises(ValueError, match=r"must be one of .*, not"):
        Reading(**options)


@pytest.mark.parametrize(
    ("text", "tag"),
    [
        ("Hello there", "en"),
        ("Привет", "ru"),
        ("مرحبا", "ar"),
        ("नमस्ते", "hi"),
        ("สวัสดี", "th"),
        ("안녕하세요", "ko"),
        ("東京に行きます", "ja"),
        ("我去北京", "zh"),
        ("", "en"),
        ("12:30 🙂", "en"),
        ("The word привет means hello in Russian", "en"),
        ("Нажмите Ctrl и подождите немного", "ru"),
    ],
)
def test_the_script_tells_the_language(text, tag):
    assert script_language(text) == tag


def test_the_first_letter_decides_for_the_turn():
    assert first_letter_language("3. ") is None
    assert first_letter_language("3. Да") == "ru"
    russian = "Чиним часы, лампы и т. д. Что у вас сломалось?"
    assert [p.text for p in phrases(russian, None, size=1)] == [p.text for p in phrases(russian, "ru")]
    assert phrases("Это стоит 5 рублей.", None)[0].spoken == "Это стоит пять рублей."


@pytest.mark.parametrize(
    "language", ["en", "de", "fr", "es", "it", "nl", "pl", "pt", "ru", "tr", "ar", "hi", "ja", "ko", "th", "vi", "zh"]
)
def test_a_left_out_block_is_named_in_the_language(language):
    assert len(speakable("```\nx = 1\n```", language, reading=Reading(code="announce")).text) > 5
