"""The command line as a user types it, over the fake model and over the embedded voice."""

from __future__ import annotations

import json
import subprocess
import sys
import wave
from importlib.metadata import EntryPoint

import pytest
import typer
from typer.testing import CliRunner

from voxagent import cli
from voxagent.cli import app
from voxagent.say import tokens

run = CliRunner()


def last_json(result):
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout.strip().splitlines()[-1])


def test_say_writes_what_was_heard_and_tells_the_figures(tmp_path):
    out = tmp_path / "x.wav"
    text = "Hello there, my friend. How are you?"
    result = run.invoke(app, ["say", text, "--model", "fake", "--out", str(out), "--json", "--tokens-per-s", "100"])
    figures = last_json(result)
    assert "".join(phrase["text"] for phrase in figures["phrases"]) == text
    assert " ".join(word["text"] for word in figures["words"]) == text
    assert {"ttfa_ms", "first_phrase_ms", "audio_s", "rtf", "underruns"} <= set(figures)
    with wave.open(str(out)) as file:
        assert (file.getframerate(), file.getnchannels()) == (48000, 1)
        assert file.getnframes() / 48000 == pytest.approx(figures["audio_s"], abs=0.05)


def test_say_with_an_interrupt_tells_what_was_heard():
    text = "One two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen."
    result = run.invoke(
        app, ["say", text, "--model", "fake", "--json", "--tokens-per-s", "200", "--interrupt-after", "0.8"]
    )
    figures = last_json(result)
    assert figures["heard"].startswith("One")
    assert text.startswith(figures["heard"])
    assert figures["heard"] + " " + figures["unheard"] == text
    assert figures["silence_ms"] >= 0
    assert figures["model_idle_ms"] >= 0


def test_say_renders_at_once_when_the_text_comes_at_once():
    figures = last_json(run.invoke(app, ["say", "Hello you.", "--model", "fake", "--json", "--tokens-per-s", "0"]))
    assert figures["audio_s"] > 0


def test_say_reads_standard_input():
    result = run.invoke(app, ["say", "-", "--model", "fake", "--json", "--tokens-per-s", "0"], input="From a pipe.")
    assert last_json(result)["phrases"][0]["text"] == "From a pipe."


@pytest.mark.parametrize("text", ["", "   ", "…", "\N{WAVING HAND SIGN}"])
def test_say_of_nothing_is_a_turn_without_audio(text):
    figures = last_json(run.invoke(app, ["say", text, "--model", "fake", "--json"]))
    assert (figures["audio_s"], figures["phrases"], figures["ttfa_ms"]) == (0, [], None)


@pytest.mark.parametrize(
    ("arguments", "cure"),
    [
        (["--model", "nope"], "installed are"),
        (["--model", "fake", "--option", "speed"], "name=value"),
        (["--model", "fake", "--option", "colour=red"], "step_ms and prefill_ms"),
        (["--model", "fake", "--voice", "missing"], "missing"),
        (["--model", "fake", "--speed", "9"], "between 0.5 and 2.0"),
        (["--model", "fake", "--out", "/nowhere/x.wav"], "does not exist"),
        (["--model", "piper:/nowhere.onnx"], "nowhere.onnx"),
    ],
)
def test_bad_arguments_name_the_cause_in_one_line_and_exit_with_2(arguments, cure):
    result = run.invoke(app, ["say", "Hi.", "--tokens-per-s", "0", *arguments])
    assert result.exit_code == 2
    assert cure in result.stderr
    assert "Traceback" not in result.stderr


def test_doctor_and_voices_tell_what_is_there():
    checks = json.loads(run.invoke(app, ["doctor", "--json"]).stdout)
    assert all(check["ok"] for check in checks if check["required"])
    assert all(check["cure"] for check in checks)
    voices = json.loads(run.invoke(app, ["voices", "--json"]).stdout)
    joe = next(voice for voice in voices if voice["name"] == "en_US-joe-medium")
    assert (joe["model"], joe["sample_rate"]) == ("piper", 22050)
    assert "lessac" in joe["licence"].lower()
    assert run.invoke(app, ["doctor"]).exit_code == 0
    assert "en_US-joe" in run.invoke(app, ["voices"]).stdout


def test_the_console_script_speaks_with_the_embedded_voice(tmp_path):
    out = tmp_path / "joe.wav"
    command = [sys.executable, "-m", "voxagent", "say", "Good morning.", "--out", str(out), "--json"]
    done = subprocess.run(command, capture_output=True, timeout=90, check=True)
    figures = json.loads(done.stdout.strip().splitlines()[-1])
    assert 0.4 < figures["audio_s"] < 2.5
    assert [word["text"] for word in figures["words"]] == ["Good", "morning."]
    assert out.stat().st_size > 40_000


@pytest.mark.parametrize("text", ["Hello there, my friend.", " a  b\n\nc ", "", "x" * 50])
def test_tokens_join_to_the_text(text):
    assert "".join(tokens(text)) == text


def test_the_turn_benchmark_runs():
    arguments = ["bench", "turn", "--model", "fake", "--turns", "1", "--interrupts", "20", "--no-peers", "--json"]
    figures = last_json(run.invoke(app, [*arguments, "--seconds", "1"]))
    assert figures["first_phrase_ms"]["5_words"]["n"] == 1
    assert figures["interrupt"]["silence_ms"]["median"] is not None
    assert [row["underruns"] for row in figures["at_once"]] == [0, 0, 0]
    assert figures["many_interrupts"]["slots_taken"] == 0


def test_say_reads_by_the_dictionary_and_the_policies(tmp_path):
    words = tmp_path / "words.toml"
    words.write_text('[any]\nnginx = "engine x"\n', encoding="utf-8")
    text = "Restart nginx as example.com/docs says."
    options = ["--model", "fake", "--json", "--tokens-per-s", "0", "--pronunciations", str(words), "--url", "domain"]
    figures = last_json(run.invoke(app, ["say", text, *options]))
    spoken = " ".join(phrase["spoken"] for phrase in figures["phrases"])
    assert spoken == "Restart engine x as example dot com says."


@pytest.mark.parametrize(
    ("options", "cure"),
    [
        (["--code", "loud"], "skip, announce, read"),
        (["--url", "all"], "domain, short, full"),
        (["--pronunciations", "gone.toml"], "check the path"),
    ],
)
def test_say_refuses_a_reading_that_does_not_exist(options, cure):
    result = run.invoke(app, ["say", "Hello.", "--model", "fake", *options])
    assert result.exit_code == 2
    assert cure in result.stderr


def test_a_command_whose_packages_are_missing_names_its_extra_whatever_the_arguments(monkeypatch):
    point = EntryPoint("sing", "no_such_package.songs:sing [music]", "voxagent.commands")
    monkeypatch.setattr(cli, "entry_points", lambda group: [point] if group == point.group else [])
    monkeypatch.setattr(cli, "app", typer.Typer())
    cli.app.command("say")(lambda: None)
    cli._add_plugin_commands()
    for arguments in (["sing"], ["sing", "high", "--loud", "3"]):
        result = run.invoke(cli.app, arguments)
        assert result.exit_code != 0
        assert "pip install 'pipecat-voxagent[music]'" in result.output


@pytest.mark.parametrize(
    ("arguments", "added"),
    [
        ([], {"sing", "dance"}),
        (["--help"], {"sing", "dance"}),
        (["sing", "--loud"], {"sing"}),
        (["say", "sing"], set()),
        (["bench"], set()),
        (["no-such-command"], set()),
    ],
)
def test_only_what_the_arguments_name_is_imported(monkeypatch, arguments, added):
    points = [EntryPoint(name, "no_such_package:songs [music]", "voxagent.commands") for name in ("sing", "dance")]
    monkeypatch.setattr(cli, "entry_points", lambda group: points if group == "voxagent.commands" else [])
    monkeypatch.setattr(cli, "app", typer.Typer())
    cli.app.command("say")(lambda: None)
    cli._add_plugin_commands(arguments)
    assert {command.name for command in cli.app.registered_commands} == {"say"} | added
