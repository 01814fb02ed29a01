"""How far a convolutional graph looks around, and the same graph without the work that its edges waste.

Ten frames of context make a decoded chunk exact, but only at the latent rate: behind the second upsampling of a
medium voice it is less than a frame, and that is where the work is. So tensors are cropped on their way to what the
layers behind them need. Measured on joe: 15 ms instead of 27 for 14 frames on one thread.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import TensorProto, helper

from voxagent_piper.layout import Crop, Reach, Stencil

# Whatever mixes no frames. Shape and ConstantOfShape carry lengths, not samples.
_POINTWISE = frozenset(
    {"Add", "Sub", "Mul", "Div", "Neg", "Exp", "Log", "Pow", "Sqrt", "Tanh", "Sigmoid", "Relu", "LeakyRelu", "Clip"}
    | {"Cast", "Identity", "Unsqueeze", "Squeeze", "Concat", "Split", "Slice", "Shape", "ConstantOfShape"}
)
# A slice copies its input, so it must save something: half a frame, or this many samples.
_LEAST = 8
_BOUNDS, _AXIS = "bounds", "frame_axis"


def crop(model: onnx.ModelProto, source: str, output: str) -> Stencil:
    """Crops, in place, what convolutions get down to what their results are needed for.

    Adds the input ``bounds``, int64 (2 x crops,), see `Stencil.bounds`.

    Args:
        model: A graph whose time axis is the third.
        source: Its input of frames.
        output: Its output.

    Raises:
        ValueError: An operation mixes frames in a way that cannot be computed in stretches.
    """
    needs = _needs(model, source, output)
    have: dict[str, Reach] = {source: needs[source]}
    crops: dict[tuple[str, Reach], tuple[str, Crop]] = {}
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        timed = [name for name in node.input if name in have]
        if timed:
            wants = _wants(node, {name: have[name] for name in timed}, needs)
            for position, name in enumerate(node.input):
                if name in have and wants[name] != have[name]:
                    key = (name, wants[name])
                    if key not in crops:
                        crops[key] = (f"crop{len(crops)}", Crop(have[name], wants[name]))
                        nodes.append(_slice(name, len(crops) - 1, crops[key][0]))
                    node.input[position] = crops[key][0]
            stride = _ints(node, "strides", 1) if node.op_type == "ConvTranspose" else 1
            least = min(wants.values(), key=lambda reach: reach.left + reach.right)
            reach = Reach(least.rate * stride, least.left * stride, least.right * stride)
            have.update(dict.fromkeys(node.output, reach))
        nodes.append(node)
    _replace_nodes(model, nodes, len(crops))
    return Stencil(needs[source], tuple(made for _, made in crops.values()), have[output])


def _wants(node: onnx.NodeProto, have: Mapping[str, Reach], needs: Mapping[str, Reach]) -> dict[str, Reach]:
    """What a node should get of each of its inputs."""
    if node.op_type in ("Conv", "ConvTranspose"):
        ((name, reach),) = have.items()
        want = _back(node, needs[node.output[0]])
        slack = reach.left - want.left + reach.right - want.right
        return {name: want if slack >= max(_LEAST, reach.rate // 2) else reach}
    least = Reach(
        max(reach.rate for reach in have.values()),
        min(reach.left for reach in have.values()),
        min(reach.right for reach in have.values()),
    )
    return dict.fromkeys(have, least)


def _needs(model: onnx.ModelProto, source: str, output: str) -> dict[str, Reach]:
    """How much of every tensor on the way a stretch of output needs, walked back layer by layer."""
    rates = _rates(model, source)
    needs = {output: Reach(rates[output], 0, 0)}
    for node in reversed(model.graph.node):
        wanted = [needs[name] for name in node.output if name in needs]
        if not wanted:
            continue
        need = _back(node, _union(wanted))
        for name in node.input:
            if name in rates:
                needs[name] = _union([need, needs[name]]) if name in needs else need
    return needs


def _union(reaches: list[Reach]) -> Reach:
    return Reach(reaches[0].rate, max(r.left for r in reaches), max(r.right for r in reaches))


def _rates(model: onnx.ModelProto, source: str) -> dict[str, int]:
    """Samples per latent frame of every tensor that descends from the source."""
    rates = {source: 1}
    for node in model.graph.node:
        known = [rates[name] for name in node.input if name in rates]
        if known:
            stride = _ints(node, "strides", 1) if node.op_type == "ConvTranspose" else 1
            rates.update({name: max(known) * stride for name in node.output})
    return rates


def _back(node: onnx.NodeProto, need: Reach) -> Reach:
    """What of its input a node needs for a stretch of its output."""
    kernel, pad = _ints(node, "kernel_shape", 1), _ints(node, "pads", 0)
    stride, dilation = _ints(node, "strides", 1), _ints(node, "dilations", 1)
    match node.op_type:
        case "Conv" if stride == 1 and 2 * pad == (kernel - 1) * dilation:
            return Reach(need.rate, need.left + pad, need.right + pad)
        case "ConvTranspose" if kernel - stride == 2 * pad and dilation == 1:
            # Output sample o depends on the inputs i with i * stride - pad <= o <= i * stride - pad + kernel - 1.
            left = (kernel - 1 - pad + need.left) // stride
            right = (need.right - 1 + pad) // stride + 1
            return Reach(need.rate // stride, left, right)
        case op if op in _POINTWISE:
            return need
        case op:
            raise ValueError(f"it has an operation that cannot be run in stretches: {op}")


def _slice(name: str, index: int, result: str) -> onnx.NodeProto:
    return helper.make_node("Slice", [name, f"{_BOUNDS}{2 * index}", f"{_BOUNDS}{2 * index + 1}", _AXIS], [result])


def _replace_nodes(model: onnx.ModelProto, nodes: list[onnx.NodeProto], crops: int) -> None:
    """Puts the nodes in, and what hands the bounds to the slices among them."""
    graph = model.graph
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    if crops:
        names = [f"{_BOUNDS}{i}" for i in range(2 * crops)]
        graph.input.append(helper.make_tensor_value_info(_BOUNDS, TensorProto.INT64, [2 * crops]))
        graph.initializer.append(helper.make_tensor(_AXIS, TensorProto.INT64, [1], [2]))
        graph.node.append(helper.make_node("Split", [_BOUNDS], names, axis=0))
    graph.node.extend(kept)


def _ints(node: onnx.NodeProto, name: str, default: int) -> int:
    for attribute in node.attribute:
        if attribute.name == name:
            return int(attribute.ints[0])
    return default
