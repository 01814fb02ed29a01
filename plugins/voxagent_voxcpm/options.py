"""What a user may set, and what follows from the machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

_DTYPES = {
    "bfloat16": torch.bfloat16, "bf16": torch.bfloat16, "float16": torch.float16, "fp16": torch.float16,
    "float32": torch.float32, "fp32": torch.float32,
}  # fmt: skip


class VoxOptions(BaseModel):
    """What `--option name=value` may set.

    Attributes:
        device: ``auto`` takes a CUDA device, then MPS, then the CPU; ``cuda:1`` names one.
        dtype: Of all but the audio codec, which is float32; ``auto`` is the checkpoint's, float32 on MPS.
        steps: Solver steps a patch. N steps make N - 1 calls of the DiT.
        first_steps: For the first two patches of a turn, which the listener waits for.
        short_steps: When less than 0.2 s of audio is ahead; 0 is like `steps`. With this or the next one set, what a
            turn sounds like depends on time, too.
        spare_steps: While a second of audio is ahead; 0 is like `steps`.
        cfg: Guidance.
        strategy: How the phrases of a turn belong together: ``continue`` gives the model the last phrases' text and
            sound, ``independent`` only the voice.
        history_s: Most seconds of sound that are given along.
        slots: Sessions open at once.
        batch: Sessions that one step may advance.
        positions: Room of a session: reference, text, history and what it says, a position a token or patch; 0 takes
            768, or 1,536 for patches of 80 ms.
        piece: Positions of a new phrase taken in at once, so that other sessions' steps fit in between.
        most_per_token: See `Limits`.
        min_len: See `Limits`.
        reference: Recording of the default voice (VoxCPM2).
        prompt_wav: Recording that the default voice goes on from.
        prompt_text: What is said in it.
        compile: Put the calls of a step through `torch.compile` as well, on CUDA: minutes at start, faster steps.
        threads: Of PyTorch on a CPU; None leaves them as they are.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    device: str = "auto"
    dtype: Literal["auto", "bfloat16", "bf16", "float16", "fp16", "float32", "fp32"] = "auto"
    steps: int = Field(default=10, le=100)
    first_steps: int = Field(default=4, le=100)
    short_steps: int = Field(default=0, le=100)
    spare_steps: int = Field(default=0, le=100)
    cfg: float = Field(default=2.0, ge=1.0, le=10.0)
    strategy: Literal["continue", "independent"] = "continue"
    history_s: float = Field(default=6.0, ge=0.0, le=30.0)
    slots: int = Field(default=8, ge=1, le=1024)
    batch: int = Field(default=8, ge=1, le=1024)
    positions: int = Field(default=0, ge=0, le=32768)
    piece: int = Field(default=64, ge=1, le=4096)
    most_per_token: float = Field(default=4.0, gt=0, le=20)
    min_len: int = Field(default=2, ge=0, le=100)
    reference: str | None = None
    prompt_wav: str | None = None
    prompt_text: str = ""
    compile: bool = False
    threads: int | None = Field(default=None, ge=1, le=256)

    @field_validator("steps", "first_steps")
    @classmethod
    def _enough(cls, value: int) -> int:
        if value < 2:
            raise ValueError("at least 2: a single step gives noise")
        return value

    @field_validator("short_steps", "spare_steps")
    @classmethod
    def _none_or_enough(cls, value: int) -> int:
        if value == 0 or value >= 2:
            return value
        raise ValueError("0, or at least 2: a single step gives noise")


def parse_options(options: Mapping[str, object]) -> VoxOptions:
    """Checks options by name.

    Raises:
        ValueError: An unknown or bad one; the message lists those that exist.
    """
    try:
        return VoxOptions.model_validate(dict(options))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        known = ", ".join(VoxOptions.model_fields)
        raise ValueError(f"voxcpm option {name!r}: {first['msg']}. Options: {known}") from error


def choose_device(wanted: str) -> torch.device:
    """The device to run on.

    Raises:
        ValueError: It does not exist here.
    """
    if wanted == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(wanted)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"the device {wanted!r} cannot be used ({reason}): try auto, cpu, cuda, cuda:1 or mps"
        ) from error
    return device


def choose_dtype(wanted: str, checkpoint: str, device: torch.device) -> torch.dtype:
    """The dtype to compute in.

    Raises:
        ValueError: An unknown one in the checkpoint.
    """
    if wanted == "auto" and device.type == "mps":
        return torch.float32
    name = checkpoint if wanted == "auto" else wanted
    if name not in _DTYPES:
        raise ValueError(f"the checkpoint's dtype {name!r} is not known: set the option dtype")
    return _DTYPES[name]
