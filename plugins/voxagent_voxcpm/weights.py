"""Reads a checkpoint's tensors one by one and makes sure that all of them, and nothing else, are used.

Owns files and names. Knows nothing of what the tensors do.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

_SHOWN = 6
_DRAWN = (1 << 22) - 3  # numbers drawn for a tensor; a larger one repeats them


class Weights:
    """The tensors of one or more files. Each is taken once, by name.

    Args:
        device: Where taken tensors go.
        dtype: What taken tensors are cast to.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device = device
        self.dtype = dtype
        self._readers: dict[str, Callable[[], Tensor]] = {}
        self._taken: set[str] = set()
        self._source = ""

    def add_file(self, directory: Path, names: Iterable[str], prefix: str = "") -> None:
        """Adds the first of the files that exists.

        Raises:
            ValueError: None exists, or the file is damaged.
        """
        names = tuple(names)
        path = next((directory / name for name in names if (directory / name).is_file()), None)
        if path is None:
            raise ValueError(f"{directory} holds none of {', '.join(names)}: the checkpoint is not complete")
        self._source = str(path)
        try:
            found = _safetensors(path) if path.suffix == ".safetensors" else _pickled(path)
        except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError) as error:
            raise ValueError(f"{path} is damaged or of another format ({error}): download it again") from error
        self._readers.update({prefix + name: read for name, read in found.items()})

    def take(
        self, name: str, *shape: int, dtype: torch.dtype | None = None, device: torch.device | None = None
    ) -> Tensor:
        """The tensor of that name and shape.

        Raises:
            ValueError: It is missing, has another shape, or holds a value that is no number.
        """
        read = self._readers.get(name)
        if read is None:
            raise ValueError(
                f"{self._source or 'the checkpoint'} lacks the weights {name}: it is another model or cut off"
            )
        tensor = read()
        if tuple(tensor.shape) != shape:
            raise ValueError(f"the weights {name} are of shape {tuple(tensor.shape)}; config.json asks for {shape}")
        if not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"the weights {name} hold values that are no numbers: download the checkpoint again")
        self._taken.add(name)
        return tensor.to(device or self.device, dtype or self.dtype)

    def drop(self, name: str) -> None:
        """Marks a tensor that is of no use at inference as known."""
        self._taken.add(name)

    def drop_all(self, prefix: str) -> None:
        """Marks all tensors whose names begin so as known."""
        self._taken.update(name for name in self._readers if name.startswith(prefix))

    def finish(self) -> None:
        """Raises `ValueError` when tensors are left over."""
        left = sorted(set(self._readers) - self._taken)
        if left:
            more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
            raise ValueError(f"the checkpoint has weights that nothing uses: {', '.join(left[:_SHOWN])}{more}")


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _safetensors(path: Path) -> dict[str, Callable[[], Tensor]]:
    file = safe_open(path, framework="pt", device="cpu")
    return {name: partial(file.get_tensor, name) for name in file.keys()}  # noqa: SIM118 - not a mapping


def _pickled(path: Path) -> dict[str, Callable[[], Tensor]]:
    loaded: Any = torch.load(path, map_location="cpu", weights_only=True)
    tensors = loaded.get("state_dict", loaded) if isinstance(loaded, dict) else None
    if not isinstance(tensors, dict) or not all(isinstance(value, Tensor) for value in tensors.values()):
        raise ValueError("it holds no dictionary of tensors")
    return {str(name): partial(_same, tensor) for name, tensor in tensors.items()}


class RandomWeights(Weights):
    """Invents every tensor that is asked for, so that a model of any shape can be run, measured and tested.

    Args:
        device: Where the tensors go.
        dtype: What they are cast to.
        seed: Equal seeds give equal tensors.

    Attributes:
        made: Every tensor made, by name, in float32 on the CPU; only with `keep`.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype, seed: int = 0, *, keep: bool = False) -> None:
        super().__init__(device, dtype)
        self.made: dict[str, Tensor] = {}
        self._keep = keep
        self._random = torch.Generator(device="cpu" if keep else device).manual_seed(seed)

    def take(
        self, name: str, *shape: int, dtype: torch.dtype | None = None, device: torch.device | None = None
    ) -> Tensor:
        """A tensor of that shape, at a scale that keeps activations in range."""
        made = self._invent(name, shape)
        if self._keep:
            self.made[name] = made
        return made.to(device or self.device, dtype or self.dtype)

    def finish(self) -> None:
        """Nothing is ever left over."""

    def _invent(self, name: str, shape: tuple[int, ...]) -> Tensor:
        where = self._random.device
        last = name.rpartition(".")[2]
        if last == "weight_g":
            return torch.full(shape, 0.8, device=where)
        if last == "alpha" or "scale_embed" in name or (len(shape) == 1 and last == "weight"):
            return torch.ones(shape, device=where)
        if last == "bias" or "bias_embed" in name:
            return torch.zeros(shape, device=where)
        count = math.prod(shape)
        drawn = torch.randn(min(count, _DRAWN), generator=self._random, device=where)
        values = drawn.repeat(-(-count // len(drawn)))[:count].view(shape)
        single = last == "weight_v" or "embed_tokens" in name or "special_token" in name
        return values if single else values * shape[-1] ** -0.5
