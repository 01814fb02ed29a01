"""Finds a checkpoint: a directory as it is, or a hub id by huggingface_hub's cache and download."""

from __future__ import annotations

import os
import re
from pathlib import Path

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_FILES = ("*.json", "*.safetensors", "*.bin", "*.pth")


def checkpoint_directory(source: str | None) -> Path:
    """The directory of a checkpoint.

    Args:
        source: A directory, a hub id such as ``openbmb/VoxCPM2``, or None for `VOXAGENT_VOXCPM`.

    Raises:
        ValueError: Neither exists. The message names the cure.
    """
    wanted = source or os.environ.get("VOXAGENT_VOXCPM")
    if not wanted:
        raise ValueError("name a checkpoint: voxcpm:DIRECTORY or voxcpm:openbmb/VoxCPM2, or set VOXAGENT_VOXCPM")
    path = Path(wanted).expanduser()
    if path.is_dir():
        return path
    if path.exists() or not _HUB_ID.fullmatch(wanted):
        raise ValueError(f"{wanted} is no directory with a VoxCPM checkpoint, and no hub id such as openbmb/VoxCPM2")
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ValueError(f"to download {wanted}, install huggingface_hub; or give a directory") from error
    try:
        return Path(snapshot_download(wanted, allow_patterns=list(_FILES)))
    except Exception as error:  # of many kinds: network, access, name
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{wanted} cannot be downloaded ({reason}): give the directory of a checkpoint") from error
