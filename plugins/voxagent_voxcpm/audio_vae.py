"""The AudioVAE of both generations: audio to latents, and latents to audio in pieces of any size.

Every convolution is causal, so that a stream is decoded exactly when each layer keeps the few inputs that reach back.
A decoder's state belongs to the session; sessions of any age are decoded together. Weight norms are folded at load.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

import torch
import torch.nn.functional as F
from torch import Tensor

from voxagent_voxcpm.config import AudioShape
from voxagent_voxcpm.weights import Weights

State = list[Tensor]
"""The inputs that reach into the next piece, one tensor (channels, samples) a layer that looks back."""

_DILATIONS = (1, 3, 9)
_Layer = Callable[[Tensor, "_Reel"], Tensor]


class _Reel:
    """Hands each layer its past, in order, and keeps what the next piece needs. Without a past, zeros."""

    def __init__(self, past: Sequence[Tensor] | None) -> None:
        self._past = past
        self.kept: list[Tensor] = []

    def extend(self, x: Tensor, size: int) -> Tensor:
        """Puts the layer's last `size` inputs before (batch, channels, samples)."""
        before = x.new_zeros(x.shape[0], x.shape[1], size) if self._past is None else self._past[len(self.kept)]
        longer = torch.cat((before, x), dim=-1)
        self.kept.append(longer[..., longer.shape[-1] - size :])
        return longer


class _Conv:
    """A causal convolution."""

    def __init__(
        self, weights: Weights, name: str, sizes: tuple[int, int, int], *, stride: int = 1, dilation: int = 1,
        groups: int = 1, back: int | None = None,
    ) -> None:  # fmt: skip
        out, size, kernel = sizes
        self._weight = _folded(weights, name, out, size // groups, kernel)
        self._bias = weights.take(f"{name}.bias", out)
        self._stride, self._dilation, self._groups = stride, dilation, groups
        self._back = (kernel - 1) * dilation if back is None else back

    def __call__(self, x: Tensor, reel: _Reel) -> Tensor:
        if self._back:
            x = reel.extend(x, self._back)
        return F.conv1d(x, self._weight, self._bias, self._stride, 0, self._dilation, self._groups)


class _Upsample:
    """A transposed convolution over twice its stride: each output hears this input and the one before."""

    def __init__(self, weights: Weights, name: str, size: int, out: int, stride: int) -> None:
        self._weight = _folded(weights, name, size, out, 2 * stride)
        self._bias = weights.take(f"{name}.bias", out)
        self._stride = stride

    def __call__(self, x: Tensor, reel: _Reel) -> Tensor:
        made = F.conv_transpose1d(reel.extend(x, 1), self._weight, self._bias, self._stride)
        return made[..., self._stride : -self._stride]


class _Snake:
    """x + sin²(αx)/α (arXiv 2006.08195)."""

    def __init__(self, weights: Weights, name: str, size: int) -> None:
        self._alpha = weights.take(f"{name}.alpha", 1, size, 1)
        self._inverse = (self._alpha + 1e-9).reciprocal()

    def __call__(self, x: Tensor, reel: _Reel) -> Tensor:
        return torch.addcmul(x, torch.sin(self._alpha * x).square_(), self._inverse)


class _Rate:
    """Scale and offset of each channel for one sample rate (V2)."""

    def __init__(self, weights: Weights, name: str, size: int, shape: AudioShape) -> None:
        tables = (weights.take(f"{name}.{part}_embed.weight", shape.rate_buckets, size) for part in ("scale", "bias"))
        self._scale, self._bias = (table[shape.rate_bucket].view(1, -1, 1) for table in tables)

    def __call__(self, x: Tensor, reel: _Reel) -> Tensor:
        return torch.addcmul(self._bias, x, self._scale)


class _Residual:
    """Snake, dilated convolution, snake, mixing; added to the input."""

    def __init__(self, weights: Weights, name: str, size: int, dilation: int, *, depthwise: bool) -> None:
        groups = size if depthwise else 1
        self._layers: tuple[_Layer, ...] = (
            _Snake(weights, f"{name}.block.0", size),
            _Conv(weights, f"{name}.block.1", (size, size, 7), dilation=dilation, groups=groups),
            _Snake(weights, f"{name}.block.2", size),
            _Conv(weights, f"{name}.block.3", (size, size, 1)),
        )

    def __call__(self, x: Tensor, reel: _Reel) -> Tensor:
        made = x
        for layer in self._layers:
            made = layer(made, reel)
        return x + made


def _folded(weights: Weights, name: str, first: int, second: int, kernel: int) -> Tensor:
    """The weight behind a weight norm (arXiv 1602.07868): direction times gain, computed once."""
    direction = weights.take(f"{name}.weight_v", first, second, kernel)
    gain = weights.take(f"{name}.weight_g", first, 1, 1)
    return torch._weight_norm(direction, gain, 0)


class AudioDecoder:
    """Latents to audio.

    Args:
        shape: Sizes.
        weights: In float32: the decoder's nonlinearities need it.
        name: Prefix of the weights.
    """

    def __init__(self, shape: AudioShape, weights: Weights, name: str = "audio_vae.decoder") -> None:
        self._layers: list[_Layer] = []
        self._build(shape, weights, name)
        with torch.inference_mode():
            reel = _Reel(None)
            self._run(torch.zeros(1, shape.latent_dim, 1, device=weights.device), reel)
        self._fresh = [torch.zeros_like(kept[0]) for kept in reel.kept]

    def _build(self, shape: AudioShape, weights: Weights, name: str) -> None:
        add, width, latent = self._layers.append, shape.decoder_dim, shape.latent_dim
        if shape.depthwise:
            add(_Conv(weights, f"{name}.model.0", (latent, latent, 7), groups=latent))
            add(_Conv(weights, f"{name}.model.1", (width, latent, 1)))
        else:
            add(_Conv(weights, f"{name}.model.0", (width, latent, 7)))
        first = len(self._layers)
        for index, stride in enumerate(shape.decoder_rates, first):
            half, block = width // 2, f"{name}.model.{index}.block"
            if shape.rate_buckets:
                add(_Rate(weights, f"{name}.sr_cond_model.{index}", width, shape))
            add(_Snake(weights, f"{block}.0", width))
            add(_Upsample(weights, f"{block}.1", width, half, stride))
            for part, dilation in enumerate(_DILATIONS, 2):
                add(_Residual(weights, f"{block}.{part}", half, dilation, depthwise=shape.depthwise))
            width = half
        last = first + len(shape.decoder_rates)
        add(_Snake(weights, f"{name}.model.{last}", width))
        add(_Conv(weights, f"{name}.model.{last + 1}", (1, width, 7)))
        weights.drop(f"{name}.sr_bin_boundaries")

    def fresh(self) -> State:
        """The state before the first piece."""
        return self._fresh

    def decode(self, latents: Tensor, states: Sequence[State]) -> tuple[Tensor, list[State]]:
        """Decodes the next piece of each session.

        Args:
            latents: Shape (sessions, latent dim, frames), float32.
            states: One a session, as `fresh` or the last call gave it; not changed.

        Returns:
            Audio (sessions, samples) in -1 to 1, and the new states.
        """
        past = [torch.stack(layer) for layer in zip(*states, strict=True)]
        reel = _Reel(past)
        audio = self._run(latents, reel)[:, 0]
        return audio, [[kept[index].clone() for kept in reel.kept] for index in range(len(states))]

    def whole(self, latents: Tensor) -> Tensor:
        """Decodes (sessions, latent dim, frames) at once, from silence."""
        return self._run(latents, _Reel(None))[:, 0]

    def _run(self, x: Tensor, reel: _Reel) -> Tensor:
        for layer in self._layers:
            x = layer(x, reel)
        return torch.tanh(x)


class AudioEncoder:
    """Audio to latents.

    Args:
        shape: Sizes.
        weights: In float32.
        odd_strides_shift: V2 looks back one sample less before a layer of odd stride.
        name: Prefix of the weights.
    """

    def __init__(
        self, shape: AudioShape, weights: Weights, *, odd_strides_shift: bool, name: str = "audio_vae.encoder"
    ) -> None:
        self._hop = shape.encode_hop
        self._layers: list[_Layer] = [_Conv(weights, f"{name}.block.0", (shape.encoder_dim, 1, 7))]
        add, width = self._layers.append, shape.encoder_dim
        for index, stride in enumerate(shape.encoder_rates, 1):
            block = f"{name}.block.{index}.block"
            for part, dilation in enumerate(_DILATIONS):
                add(_Residual(weights, f"{block}.{part}", width, dilation, depthwise=shape.depthwise))
            add(_Snake(weights, f"{block}.3", width))
            back = 2 * ceil(stride / 2) - (stride % 2 if odd_strides_shift else 0)
            add(_Conv(weights, f"{block}.4", (2 * width, width, 2 * stride), stride=stride, back=back))
            width *= 2
        add(_Conv(weights, f"{name}.fc_mu", (shape.latent_dim, width, 3)))
        weights.drop_all(f"{name}.fc_logvar.")

    def encode(self, audio: Tensor) -> Tensor:
        """Audio (samples,) in -1 to 1 to latents (latent dim, frames); the last frame is filled with zeros."""
        short = -audio.shape[-1] % self._hop
        x = F.pad(audio, (0, short)).view(1, 1, -1)
        reel = _Reel(None)
        for layer in self._layers:
            x = layer(x, reel)
        return x[0]
