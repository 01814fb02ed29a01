"""The user's cache of cut voices, keyed by the SHA-256 of the whole graph.

Entries appear atomically, are checked when read, and are rebuilt when anything about them is wrong. Knows nothing of
onnxruntime.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from voxagent_piper.layout import Crop, Layout, Reach, Stencil
from voxagent_piper.voices import VoiceFile

ENV_CACHE = "VOXAGENT_CACHE"
_FORMAT = 4  # Raise when cut.py changes what it writes.
_PARTS = ("front", "flow", "decoder")
_MANIFEST = "manifest"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CutVoice:
    """A cut voice: the three serialised graphs, as paths or as bytes when nothing could be written."""

    front: Path | bytes
    flow: Path | bytes
    decoder: Path | bytes
    layout: Layout


def cache_dir() -> Path:
    """The folder for everything that can be made again."""
    named = os.environ.get(ENV_CACHE)
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "voxagent"


def cut_voice(voice: VoiceFile) -> CutVoice:
    """The cut parts of a voice, from the cache when it has them.

    Raises:
        ValueError: The file is no complete Piper graph.
    """
    entry = cache_dir() / "piper" / f"{voice.sha256[:32]}-{_FORMAT}"
    found = _read(entry)
    if found:
        return found
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with _lock(entry.with_suffix(".lock")):
            # Another process may have cut it while this one waited.
            return _read(entry) or _write(voice, entry)
    except OSError as error:
        _log.warning("Cannot write %s (%s): the voice is cut again at every start", entry, error.strerror)
        blobs, layout = _cut(voice)
        return CutVoice(blobs["front"], blobs["flow"], blobs["decoder"], layout)


def _cut(voice: VoiceFile) -> tuple[dict[str, bytes], Layout]:
    """Cuts the voice in memory; needs the onnx package, which nothing else here imports."""
    from voxagent_piper.cut import cut_file  # onnx takes 0.3 s to import and only the first start needs it

    _log.info("Cutting the voice %s", voice.name)
    return cut_file(voice.path)


def _write(voice: VoiceFile, entry: Path) -> CutVoice:
    blobs, layout = _cut(voice)
    temporary = Path(tempfile.mkdtemp(prefix=f"{entry.name}.", dir=entry.parent))
    try:
        for part, blob in blobs.items():
            (temporary / f"{part}.onnx").write_bytes(blob)
        sums = {part: [len(blob), zlib.crc32(blob)] for part, blob in blobs.items()}
        body = json.dumps({"format": _FORMAT, "layout": asdict(layout), "parts": sums})
        (temporary / _MANIFEST).write_text(f"{zlib.crc32(body.encode())}\n{body}\n", encoding="utf-8")
        if entry.exists():
            _log.warning("The cached voice %s is damaged and is replaced", entry)
            shutil.rmtree(entry)
        temporary.rename(entry)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return _at(entry, layout)


def _read(entry: Path) -> CutVoice | None:
    """The entry, or None when it is absent, of another format, or damaged. Checking takes about 25 ms."""
    try:
        check, body = (entry / _MANIFEST).read_bytes().splitlines()
        manifest = json.loads(body)
        if int(check) != zlib.crc32(body) or manifest["format"] != _FORMAT:
            return None
        for part in _PARTS:
            blob = (entry / f"{part}.onnx").read_bytes()
            if [len(blob), zlib.crc32(blob)] != manifest["parts"][part]:
                return None
        layout = _layout(manifest["layout"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return _at(entry, layout)


def _at(entry: Path, layout: Layout) -> CutVoice:
    return CutVoice(entry / "front.onnx", entry / "flow.onnx", entry / "decoder.onnx", layout)


def _layout(raw: dict[str, Any]) -> Layout:
    return Layout(raw["hop"], raw["noise"], _stencil(raw["flow"]), _stencil(raw["decoder"]))


def _stencil(raw: dict[str, Any]) -> Stencil:
    crops = tuple(Crop(Reach(**crop["have"]), Reach(**crop["want"])) for crop in raw["crops"])
    return Stencil(Reach(**raw["source"]), crops, Reach(**raw["result"]))


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Lets one process at a time cut; the lock goes with its process."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
