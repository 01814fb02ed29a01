"""VoxCPM from the command line, and through the engine's real thread."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import threading

import pytest
import typer
from typer.testing import CliRunner

from tests.test_voxcpm_model import write_wav
from tests.voxcpm_rig import make_checkpoint
from voxagent.cli import app
from voxagent.engine import Engine, EngineSettings
from voxagent.errors import EngineFull
from voxagent.models import model_load
from voxagent_voxcpm.commands import bench_sessions, voice

run = CliRunner()
benchmark = typer.Typer()
benchmark.command()(bench_sessions)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return make_checkpoint(tmp_path_factory.mktemp("cli") / "v2", stops=True)


@pytest.fixture(autouse=True)
def voices(tmp_path, monkeypatch):
    monkeypatch.setenv("VOXAGENT_VOICES", str(tmp_path / "voices"))


def say(checkpoint, *arguments):
    fast = ["--tokens-per-s", "0", "--json", "--option", "dtype=float32"]
    return run.invoke(
        app, ["say", "Good morning, what can I do for you?", "--model", f"voxcpm:{checkpoint}", *fast, *arguments]
    )


def test_say_takes_a_reference_a_prompt_and_the_solver_as_flags(checkpoint, tmp_path):
    recording = write_wav(tmp_path / "a.wav", 1.5)
    for flags in (
        ["--reference", recording, "--steps", "5", "--first-steps", "3", "--cfg", "1.5", "--device", "cpu"],
        ["--prompt-wav", recording, "--prompt-text", "So it is.", "--seed", "7"],
    ):
        result = say(checkpoint, *flags)
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout.strip().splitlines()[-1])["audio_s"] > 0.3


def test_say_refuses_one_solver_step(checkpoint):
    result = say(checkpoint, "--steps", "1")
    assert result.exit_code != 0
    assert "a single step gives noise" in result.output


def test_a_voice_is_added_listed_spoken_and_removed(checkpoint, tmp_path):
    recording = write_wav(tmp_path / "a.wav", 2.0, 44100, 2)
    added = run.invoke(voice, ["add", "amy", recording, "--model", f"voxcpm:{checkpoint}"])
    assert added.exit_code == 0, added.output
    (listed,) = json.loads(run.invoke(voice, ["list", "--json"]).stdout)
    assert (listed["name"], listed["model"], listed["sample_rate"]) == ("amy", "voxcpm", 48000)
    assert say(checkpoint, "--voice", "amy").exit_code == 0
    again = run.invoke(voice, ["add", "amy", recording, "--model", f"voxcpm:{checkpoint}"])
    assert again.exit_code == 2
    assert "--replace" in again.output
    assert run.invoke(voice, ["remove", "amy"]).exit_code == 0
    assert json.loads(run.invoke(voice, ["list", "--json"]).stdout) == []
    gone = say(checkpoint, "--voice", "amy")
    assert gone.exit_code != 0
    assert "voxagent voice add" in gone.output


def test_an_invented_voice_is_kept_as_a_recording_is(checkpoint):
    added = run.invoke(voice, ["add", "guide", "--design", "a calm man", "--model", f"voxcpm:{checkpoint}"])
    assert added.exit_code == 0, added.output
    assert say(checkpoint, "--voice", "guide").exit_code == 0


def test_a_voice_cannot_be_invented_by_a_text_that_does_not_fit_or_never_ends(checkpoint, tmp_path):
    endless = make_checkpoint(tmp_path / "c")  # its stop head never stops
    for model, text, message in ((checkpoint, "word " * 900, "more positions"), (endless, "Good morning.", "cap")):
        made = run.invoke(voice, ["add", "x", "--design", "a man", "--text", text, "--model", f"voxcpm:{model}"])
        assert made.exit_code == 2
        assert message in " ".join(made.output.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["add", "a/b", "x.wav"], "cannot name a voice"),
        (["add", "amy"], "a recording, or --design"),
        (["add", "amy", "x.wav", "--design", "a man"], "a recording, or --design"),
        (["add", "amy", "x.wav", "--model", "piper"], "not for 'piper'"),
        (["add", "amy", "x.wav", "--model", "voxcpm:/nowhere"], "no directory with a VoxCPM checkpoint"),
        (["remove", "amy"], "there is no voice 'amy'"),
    ],
)
def test_a_voice_that_cannot_be_made_says_why(arguments, message):
    result = run.invoke(voice, arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_bench_sessions_prints_steps_packets_and_cancels(checkpoint):
    small = [
        "--calls",
        "1,3",
        "--patches",
        "2",
        "--steps",
        "3",
        "--rounds",
        "1",
        "--dtype",
        "float32",
        "--no-upstream",
        "--json",
    ]
    result = run.invoke(benchmark, ["--model", f"voxcpm:{checkpoint}", *small])
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout.strip().splitlines()[-1])
    assert set(figures["step_ms"]) == {"1", "3"}
    assert figures["cancel"] == {"calls": figures["cancel"]["calls"], "ms": figures["cancel"]["ms"], "reusable": True}
    assert figures["cancel"]["calls"] <= 1


@pytest.mark.parametrize(
    "arguments", [["--calls", "0"], ["--calls", "x"], ["--model", "piper"], ["--device", "cuda:9"]]
)
def test_bench_sessions_refuses_what_it_cannot_measure(arguments, checkpoint):
    result = run.invoke(benchmark, ["--model", f"voxcpm:{checkpoint}", *arguments])
    assert result.exit_code == 2


def test_the_command_line_starts_without_pytorch():
    adding = "cli._add_plugin_commands(); cli._add_plugin_commands(['bench'])"
    code = f"import sys; from voxagent import cli; {adding}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


class TestEngine:
    @pytest.fixture
    async def engine(self, checkpoint):
        engine = Engine(
            model_load(f"voxcpm:{checkpoint}", {"dtype": "float32", "steps": 3, "slots": 4}), EngineSettings()
        )
        await engine.start()
        await engine.load_voice(None)
        yield engine
        await engine.aclose()

    async def test_turns_opened_spoken_and_cancelled_at_random_leave_nothing_behind(self, engine):
        draw = random.Random(3)
        threads = threading.active_count()

        async def turn(seed):
            session = engine.open(seed=seed)
            session.push_text("Good morning, what can I do for you? Your table is reserved.")
            session.end_input()
            most = draw.choice([0, 1, 3, 99])
            async for _ in session:
                most -= 1
                if most <= 0:
                    session.interrupt()
                    break
            await session.released()

        refused = 0
        for group in range(25):
            turns = [turn(10 * group + index) for index in range(draw.randint(1, 5))]
            for outcome in await asyncio.gather(*turns, return_exceptions=True):
                assert outcome is None or isinstance(outcome, EngineFull), outcome
                refused += outcome is not None
        assert refused > 0
        assert engine.stats.sessions == 0
        assert engine.stats.slots_taken == 0
        assert threading.active_count() <= threads

    async def test_ten_thousand_characters_are_spoken_phrase_by_phrase(self, checkpoint):
        engine = Engine(model_load(f"voxcpm:{checkpoint}", {"dtype": "float32", "steps": 2}), EngineSettings())
        await engine.start()
        session = engine.open(seed=1)
        text = "Your table is reserved for seven people on Thursday evening and the kitchen closes at ten. " * 110
        session.push_text(text[:10_000])
        session.end_input()
        phrases = [chunk.phrase.text async for chunk in session if chunk.first]
        assert "".join(phrases) == text[:10_000]
        await engine.aclose()
