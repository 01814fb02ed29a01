"""Voices: a reference recording, a prompt with its text, or neither; with everything that can be computed once.

A reference (V2) stands before the text, so the keys and values of its positions are the same for every phrase of
every session. A prompt (all releases) stands after the text and has to be taken in with each phrase.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from voxagent_voxcpm.audio_vae import State
from voxagent_voxcpm.kv import Span
from voxagent_voxcpm.network import REFERENCE_END, REFERENCE_START, Network

MIN_SECONDS, MAX_SECONDS = 0.5, 60.0
"""Recordings that are taken. 5 to 30 s are best."""

_PRIMING_FRAMES = 24  # the decoder hears 22 frames back
FORMAT = "voxagent-voxcpm-voice-1"
"""Mark of a voice file."""
_SILENT = 10 ** (-50 / 20)
_PIECE = 64  # positions taken in at once


@dataclass(frozen=True, slots=True)
class Prefix:
    """Keys and values of a reference, of both LMs, and how many positions they are."""

    lm: tuple[Tensor, Tensor]
    residual: tuple[Tensor, Tensor]
    positions: int


@dataclass(frozen=True, slots=True, eq=False)
class VoxVoice:
    """A voice that any number of sessions share.

    Attributes:
        name: For people.
        language: None: the model speaks the text's.
        reference: Patches (count, frames, feat dim), or None.
        prompt: Patches that follow the text, or None.
        prompt_text: What is said in them.
        prefix: The reference taken in, if there is one.
        primed: The audio decoder after the prompt.
    """

    name: str
    language: str | None
    reference: Tensor | None
    prompt: Tensor | None
    prompt_text: str
    prefix: Prefix | None
    primed: State


def make_voice(
    network: Network, name: str, *, reference: Tensor | None = None, prompt: Tensor | None = None, prompt_text: str = ""
) -> VoxVoice:
    """Computes what every session needs of the voice.

    Args:
        network: The model that will speak.
        name: For people.
        reference: Patches (count, frames, feat dim).
        prompt: The same, with its text.
        prompt_text: What is said in the prompt.

    Raises:
        ValueError: A reference for a model without reference mode, or a prompt without a text.
    """
    if reference is not None and not network.config.v2:
        raise ValueError("this release takes no reference without its text: give --prompt-wav and --prompt-text")
    if prompt is not None and not prompt_text.strip():
        raise ValueError("a prompt needs the text that is said in it: give --prompt-text")
    with torch.inference_mode():
        prefix = None if reference is None else _take_in(network, reference)
        state = network.decoder.fresh()
        if prompt is not None:
            frames = prompt.float().flatten(0, 1)[-_PRIMING_FRAMES:].T.unsqueeze(0)
            _, (state,) = network.decoder.decode(frames.contiguous(), [state])
    said = prompt_text.strip() if prompt is not None else ""  # a reference needs none, and it must not be spoken
    return VoxVoice(name, None, reference, prompt, said, prefix, state)


def _take_in(network: Network, reference: Tensor) -> Prefix:
    """Runs both LMs over the reference, in a pool of its own: other sessions go on meanwhile."""
    count = len(reference) + 2
    pools = network.pools(1, count)
    patches = torch.cat([network.embed_patches(part) for part in reference.to(network.dtype).split(_PIECE)])
    marks = network.embed_tokens((REFERENCE_START, REFERENCE_END))
    embedded = torch.cat((marks[:1], patches, marks[1:]))
    audio = torch.ones(count, dtype=torch.bool, device=network.device)
    audio[[0, -1]] = False
    for start in range(0, count, _PIECE):
        end = min(start + _PIECE, count)
        network.advance(embedded[start:end], audio[start:end], [Span(0, start, end - start)], pools)
    return Prefix(pools.lm.read(0, count), pools.residual.read(0, count), count)


def encode_recording(network: Network, audio: Tensor, rate: int, name: str, *, pad_left: bool = False) -> Tensor:
    """A recording as patches (count, frames, feat dim), float32.

    Args:
        network: Its encoder is used.
        audio: Mono (samples,) at `rate`, which must be the encoder's.
        rate: Hz.
        name: For error messages.
        pad_left: Fill the first patch instead of the last, so that real sound touches what follows (prompts).

    Raises:
        ValueError: Empty, too short, too long, silent, or no numbers.
    """
    seconds = len(audio) / rate
    if not MIN_SECONDS <= seconds <= MAX_SECONDS:
        raise ValueError(
            f"{name} lasts {seconds:.1f} s; {MIN_SECONDS:g} to {MAX_SECONDS:g} s can be used, best are 5 to 30 s"
        )
    if not bool(torch.isfinite(audio).all()):
        raise ValueError(f"{name} holds samples that are no numbers: record it again")
    if float(audio.abs().max()) < _SILENT:
        raise ValueError(f"{name} is silent: record it again, louder")
    config = network.config
    size = config.patch * config.audio.encode_hop
    short = -len(audio) % size
    padded = torch.nn.functional.pad(audio, (short, 0) if pad_left else (0, short))
    with torch.inference_mode():
        latents = network.encoder.encode(padded.to(network.device, torch.float32))
    return latents.T.reshape(-1, config.patch, config.feat_dim).contiguous()


def revision(directory: Path) -> str:
    """A short name of a checkpoint: latents of one encoder mean nothing to another."""
    digest = hashlib.sha256((directory / "config.json").read_bytes())
    for name in ("audiovae.safetensors", "audiovae.pth"):
        path = directory / name
        if path.is_file():
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
            break
    return digest.hexdigest()[:16]


def save_voice(path: Path, voice: VoxVoice, made_by: str, sample_rate: int = 0) -> None:
    """Stores what a voice is made of: patches and text, no keys and values."""
    parts = {"reference": voice.reference, "prompt": voice.prompt}
    tensors = {name: part.float().cpu().contiguous() for name, part in parts.items() if part is not None}
    if not tensors:
        raise ValueError("a voice without a recording cannot be stored")
    path.parent.mkdir(parents=True, exist_ok=True)
    made = {
        "format": FORMAT,
        "revision": made_by,
        "name": voice.name,
        "prompt_text": voice.prompt_text,
        "sample_rate": str(sample_rate),
    }
    save_file(tensors, path, metadata=made)


def read_voice(path: Path, network: Network, made_by: str) -> VoxVoice:
    """Loads what `save_voice` stored.

    Raises:
        ValueError: No voice file, damaged, or of another model.
    """
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            meta = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is no voice file ({error}): make one with `voxagent voice add`") from error
    if meta.get("format") != FORMAT:
        raise ValueError(f"{path} is no voice of this model family: make one with `voxagent voice add`")
    if meta.get("revision") != made_by:
        raise ValueError(f"{path} was made with another checkpoint: add the voice again with this one")
    shape = (network.config.patch, network.config.feat_dim)
    if any(tensor.shape[1:] != shape for tensor in tensors.values()):
        raise ValueError(f"{path} is damaged: add the voice again")
    on_device = {name: tensor.to(network.device) for name, tensor in tensors.items()}
    return make_voice(
        network, meta.get("name", path.stem), reference=on_device.get("reference"), prompt=on_device.get("prompt"),
        prompt_text=meta.get("prompt_text", ""),
    )  # fmt: skip
