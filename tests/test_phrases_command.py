"""`voxagent phrases` as a user types it."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console
from typer.testing import CliRunner

from voxagent.cli import app
from voxagent.phrases import PhraseSplitter
from voxagent.phrases_command import _show, rehearse

run = CliRunner()
TEXT = "Sure, Dr. Kim. Your order ships on 3/14 for $42.50, and the courier will call you before. Anything else?"


def as_json(*args, text=TEXT):
    result = run.invoke(app, ["phrases", "-", "--json", *args], input=text)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout.strip().splitlines()[-1])


def test_the_phrases_are_the_text_with_reasons_and_times():
    found = as_json()
    assert "".join(p["text"] for p in found["phrases"]) == TEXT
    assert [p["reason"] for p in found["phrases"]][-1] == "end"
    times = [p["released_s"] for p in found["phrases"]]
    assert times == sorted(times)
    assert found["phrases"][1]["spoken"].endswith("March fourteenth for forty-two dollars and fifty cents,")
    assert found["first_release_chars"] < 25
    assert found["underruns"] == 0


def test_a_stall_releases_words_and_the_rest_follows():
    text = "The next free appointment with the doctor is on Tuesday at ten in the morning."
    found = as_json("--stall", "30:3", text=text)
    assert found["phrases"][0]["reason"] == "stall"
    assert "".join(p["text"] for p in found["phrases"]) == text


def test_a_stall_counts_when_the_text_comes_at_once_and_at_its_very_end():
    at_once = as_json("--tokens-per-s", "0", "--stall", "60:30")
    assert at_once["phrases"][-1]["released_s"] >= 30
    assert at_once["underruns"] == 1
    at_the_end = as_json("--stall", f"{len(TEXT)}:30")
    assert (as_json()["phrases"][-1]["reason"], at_the_end["phrases"][-1]["reason"]) == ("end", "stall")


def test_a_terminal_gets_lines_that_fit_and_no_word_is_lost_in_wrapping():
    file = io.StringIO()
    console = Console(file=file, width=80, force_terminal=True, color_system=None, soft_wrap=True, highlight=False)
    _show(console, rehearse(TEXT, PhraseSplitter("en")))
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert lines == [line.rstrip() for line in lines]
    for word in TEXT.split():
        assert word in file.getvalue()


def test_the_same_text_at_once_is_cut_the_same_when_nothing_runs_dry():
    slow, at_once = as_json("--tokens-per-s", "60"), as_json("--tokens-per-s", "0")
    assert [p["text"] for p in slow["phrases"]] == [p["text"] for p in at_once["phrases"]]


def test_spoken_prints_what_is_said_a_phrase_a_line(tmp_path):
    path = tmp_path / "reply.txt"
    path.write_text("It is **5 km** away.\n\nThat takes 2 hrs.\n", encoding="utf-8")
    result = run.invoke(app, ["phrases", str(path), "--spoken"])
    assert result.stdout.splitlines() == ["It is five kilometers away.", "That takes two hours."]


def test_the_picture_shows_the_cut_and_what_was_rewritten():
    result = run.invoke(app, ["phrases", "-"], input=TEXT)
    assert result.exit_code == 0
    assert "Sure, Dr. Kim.‖" in result.stdout
    assert "Sure, Doctor Kim." in result.stdout
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize(
    ("args", "text", "cure"),
    [
        (["gone.txt"], "", "there is no file gone.txt"),
        (["-"], "  \n", "the text is empty"),
        (["-", "--stall", "soon"], TEXT, "AT:SECONDS"),
        (["-", "--stall", "9999:1"], TEXT, "only 104 characters"),
        (["-", "--stall", "4:nan"], TEXT, "seconds above 0"),
        (["-"], b"\xff\xfe", "standard input is not UTF-8"),
        (["-", "--code", "loud"], TEXT, "skip, announce, read"),
        (["-", "--first-s", "0"], TEXT, "positive"),
    ],
)
def test_bad_input_says_what_to_do(args, text, cure):
    result = run.invoke(app, ["phrases", *args], input=text)
    assert result.exit_code == 2
    assert cure in result.stderr


def test_a_file_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "x.bin"
    path.write_bytes(b"\xff\xfe\x00")
    result = run.invoke(app, ["phrases", str(path)])
    assert result.exit_code == 2
    assert "not UTF-8" in result.stderr


def test_a_folder_is_refused(tmp_path):
    result = run.invoke(app, ["phrases", str(tmp_path)])
    assert result.exit_code == 2
    assert "is a folder: give a text file" in result.stderr.replace("\n", "")
