"""Where voices that a user added lie, and which there are. Reads names only, without PyTorch."""

from __future__ import annotations

import os
import re
from pathlib import Path

from safetensors import SafetensorError, safe_open

from voxagent.voices import VoiceInfo

SUFFIX = ".safetensors"
_FORMAT = "voxagent-voxcpm-voice-1"  # as `voice` has it, which imports PyTorch
_NAME = re.compile(r"[\w][\w.-]{0,63}")


def voices_directory() -> Path:
    """`VOXAGENT_VOICES`, or a folder for the user's data (XDG)."""
    own = os.environ.get("VOXAGENT_VOICES")
    if own:
        return Path(own).expanduser()
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "voxagent" / "voices"


def voice_path(name: str) -> Path:
    """Where a voice of that name lies, or would.

    Raises:
        ValueError: The name cannot be a file's.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot name a voice: use letters, digits, dots and dashes, at most 64")
    return voices_directory() / f"{name}{SUFFIX}"


def stored_voices() -> list[VoiceInfo]:
    """Every voice that was added; files that are something else are passed over."""
    found = []
    for path in sorted(voices_directory().glob(f"*{SUFFIX}")):
        try:
            with safe_open(path, framework="np") as file:
                meta = file.metadata() or {}
        except (SafetensorError, OSError):
            continue
        if meta.get("format") == _FORMAT:
            rate = int(meta.get("sample_rate", 0))
            found.append(VoiceInfo("voxcpm", path.stem, "any", rate, "your own", str(path)))
    return found


def remove_voice(name: str) -> None:
    """Removes a voice.

    Raises:
        ValueError: There is none of that name.
    """
    path = voice_path(name)
    if not path.is_file():
        known = ", ".join(each.name for each in stored_voices()) or "none"
        raise ValueError(f"there is no voice {name!r}; added are: {known}")
    path.unlink()
