"""The demonstration that `make run` shows: a real pipeline, the real voice, an interruption."""

from __future__ import annotations

import subprocess
import sys
import wave

import numpy as np


def test_the_demonstration_speaks_is_interrupted_and_goes_on(tmp_path):
    command = [sys.executable, "-m", "voxagent", "demo", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    text = " ".join(done.stdout.split())
    heard = text.split("heard: '")[1].split("'")[0]
    assert heard.startswith("Good morning! I looked")
    committed = text.split("in the LLM's context: '")[1].split("'")[0]
    assert committed.startswith(heard) or heard.startswith(committed)
    assert abs(len(committed.split()) - len(heard.split())) <= 1
    assert "The first one costs $25." in text
    with wave.open(str(tmp_path / "demo.wav")) as file:
        pcm = np.frombuffer(file.readframes(file.getnframes()), np.int16)
        assert 8 < len(pcm) / file.getframerate() < 25
    assert np.abs(pcm).max() > 3000
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
