"""The dictionary of pronunciations: whole words, capitals, languages, phonemes, and reading the file again."""

from __future__ import annotations

import os

import pytest

from voxagent.phrases import PhraseSplitter
from voxagent.pronunciations import PronunciationFile, Pronunciations
from voxagent.reading import Reading
from voxagent.speakable import speakable

FILE = """
[any]
nginx = "engine x"
US = "U S"
"C++" = "see plus plus"
"New York" = "Noo York"
tomato = { say = "tomahto", ipa = "təmˈɑːtəʊ" }

[de]
nginx = "Engin-Ix"

[zh]
"重庆" = "虫庆"
"""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "words.toml"
    path.write_text(FILE, encoding="utf-8")
    return path


def said(path, text, language="en", **options):
    return speakable(text, language, reading=Reading(pronunciations=Pronunciations.load(path), **options)).text


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("Restart nginx, then wait.", "Restart engine x, then wait."),
        ("Nginx is up; NGINX too.", "engine x is up; engine x too."),
        ("My nginxes are up.", "My nginxes are up."),
        ("In the US they told us.", "In the U S they told us."),
        ("He writes C++ and C++.", "He writes see plus plus and see plus plus."),
        ("From New York to new york.", "From Noo York to new york."),
        ("A tomato's skin", "A tomahto's skin"),
        ("Write to nginx@example.com today.", "Write to nginx at example dot com today."),
        ("nginx", "engine x"),
        ("**nginx** is `nginx`", "engine x is engine x"),
        ("It takes 5 nginx, nginx 6", "It takes five engine x, engine x six"),
    ],
)
def test_whole_words_are_replaced_and_capitals_count_where_the_entry_has_some(path, written, spoken):
    assert said(path, written) == spoken


def test_a_language_has_its_own_words_before_those_of_all(path):
    assert said(path, "Starten Sie nginx neu.", "de") == "Starten Sie Engin-Ix neu."
    assert said(path, "我去重庆出差", "zh") == "我去虫庆出差"


def test_phonemes_go_only_to_an_engine_that_takes_them(path):
    assert said(path, "A tomato.") == "A tomahto."
    assert said(path, "A tomato.", phonemes=True) == "A [[təmˈɑːtəʊ]]."


def test_a_replaced_word_maps_back_to_the_written_one(path):
    reading = Reading(pronunciations=Pronunciations.load(path))
    text = "Restart nginx now."
    found = speakable(text, "en", reading=reading)
    start = found.text.index("engine")
    assert found.written_span(start, start + len("engine x")) == (8, 13)
    assert found.spoken_span(8, 13) == (start, start + len("engine x"))


def test_phrases_use_the_dictionary_however_the_word_is_split_over_tokens(path):
    for size in (1, 3, 100):
        splitter = PhraseSplitter("en", reading=Reading(pronunciations=Pronunciations.load(path)))
        text = "Please restart nginx for me. It is slow."
        out = [p for i in range(0, len(text), size) for p in splitter.push(text[i : i + size])] + splitter.end()
        assert out[0].spoken == "Please restart engine x for me."


def test_a_changed_file_is_used_without_a_restart_and_a_broken_one_keeps_the_last(path, caplog):
    file = PronunciationFile(path)
    reading = Reading(pronunciations=file)
    assert speakable("nginx", "en", reading=reading).text == "engine x"
    path.write_text('[any]\nnginx = "en jinx"\n', encoding="utf-8")
    os.utime(path, ns=(1, 1))
    assert speakable("nginx", "en", reading=reading).text == "en jinx"
    path.write_text("[any]\nnginx = \n", encoding="utf-8")
    os.utime(path, ns=(2, 2))
    assert speakable("nginx", "en", reading=reading).text == "en jinx"
    assert file.error is not None
    assert "no TOML" in caplog.text
    path.unlink()
    assert speakable("nginx", "en", reading=reading).text == "en jinx"
    assert "no pronunciation dictionary" in (file.error or "")
    path.write_text('[any]\nnginx = "engine eks"\n', encoding="utf-8")
    assert speakable("nginx", "en", reading=reading).text == "engine eks"
    assert file.error is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("nginx = 'x'", "outside of a section"),
        ("[any]\nnginx = 3", "needs say or ipa"),
        ("[any]\nnginx = {}", "needs say or ipa"),
        ("[any]\nnginx = { spell = 'x' }", "use say, ipa, case"),
        ("[any]\nnginx = { ipa = 'a]]b' }", "brackets"),
        ("[any]\nnginx = { say = 'x', case = 1 }", "true or false"),
        ("[any]\n' ' = 'x'", "must not be empty"),
        ("[any", "no TOML"),
    ],
)
def test_a_wrong_file_says_where_and_what(tmp_path, content, message):
    path = tmp_path / "w.toml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message) as error:
        Pronunciations.load(path)
    assert "w.toml" in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match="gone\\.toml"):
        PronunciationFile(tmp_path / "gone.toml")
