"""Cuts a Piper (VITS) graph into front | flow | decoder, so that speech can leave before the phrase is decoded.

Owns the graph surgery and the arithmetic of how far each part looks around. Seams are found by weight names and by
the shape of the graph, never by node names, which differ between exports. Knows nothing of files or sessions.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper, numpy_helper

from voxagent_piper.layout import Layout
from voxagent_piper.simplify import simplify
from voxagent_piper.stencil import crop

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Seams:
    text_mask: str
    mean: str
    log_scale: str
    durations: str
    noise: str | None
    prior: str
    mask: str
    latents: str
    pcm: str


class _Graph:
    """Look-ups over a graph's nodes."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.nodes: list[onnx.NodeProto] = list(model.graph.node)
        self.producer = {name: node for node in self.nodes for name in node.output}
        self.consumers: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            for name in node.input:
                self.consumers.setdefault(name, []).append(node)

    def conv(self, weight: str) -> onnx.NodeProto:
        """The convolution with this weight.

        Raises:
            ValueError: There is none, so the file is no Piper voice.
        """
        for node in self.consumers.get(weight, []):
            if node.op_type == "Conv":
                return node
        raise ValueError(f"it has no convolution with the weight {weight!r}")

    def follow(self, name: str, through: str, to: str) -> onnx.NodeProto:
        """Walks down from a tensor through nodes of one type to the first of another."""
        while True:
            nexts = {node.op_type: node for node in self.consumers.get(name, [])}
            if to in nexts:
                return nexts[to]
            if through not in nexts:
                raise ValueError(f"no {to} follows the tensor {name!r}")
            name = nexts[through].output[0]

    def ancestors(self, names: Iterable[str], stop: Collection[str] = ()) -> set[str]:
        """All tensors that the named ones depend on, themselves included; `stop` tensors end the walk."""
        seen: set[str] = set()
        todo = list(names)
        while todo:
            name = todo.pop()
            if name in seen or not name:
                continue
            seen.add(name)
            if name not in stop and name in self.producer:
                todo.extend(self.producer[name].input)
        return seen


def cut_file(path: Path) -> tuple[dict[str, bytes], Layout]:
    """Cuts a voice file into serialised parts ``front``, ``flow`` and ``decoder``.

    Raises:
        ValueError: The file is no complete Piper graph. The message names the cause and the cure.
    """
    try:
        model = onnx.load(path)
        _check_weights(model)
        parts, layout = cut(model)
    except (DecodeError, ValueError) as error:
        raise ValueError(
            f"{path} is no Piper voice, or only a part of one: {error}. Fetch the .onnx file again, or name another."
        ) from error
    blobs = {name: part.SerializeToString() for name, part in parts.items()}
    return blobs | {"front": _simpler(parts["front"])}, layout


def _simpler(front: onnx.ModelProto) -> bytes:
    """The front with fewer nodes, where that provably says the same."""
    plain: bytes = front.SerializeToString()
    try:
        simple: bytes = simplify(front).SerializeToString()
    except (ValueError, KeyError, IndexError) as error:
        _log.info("The front is kept as it is: %s", error)
        return plain
    if not _agree(plain, simple):
        _log.info("The front is kept as it is: its simplified form gives other results")
        return plain
    return simple


def _agree(plain: bytes, simple: bytes) -> bool:
    """Whether two fronts give the same on made-up phonemes: equal durations, and the prior to rounding."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    one, other = (ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"]) for graph in (plain, simple))
    rng = np.random.default_rng(0)
    for length in (3, 40, 161):
        feed = {
            "ids": rng.integers(3, 20, (1, length)),
            "scales": np.array([0.667, 1.0, 0.8], np.float32),
            "noise": rng.standard_normal((1, 2, length), dtype=np.float32),
            "sid": np.zeros(1, np.int64),
        }
        first, second = (
            session.run(["mean", "log_scale", "durations"], {i.name: feed[i.name] for i in session.get_inputs()})
            for session in (one, other)
        )
        if not all(np.allclose(a, b, atol=1e-4) for a, b in zip(first, second, strict=True)):
            return False
    return True


def cut(model: onnx.ModelProto) -> tuple[dict[str, onnx.ModelProto], Layout]:
    """Cuts a whole Piper graph.

    Front: ``ids`` (1, P), ``scales`` (3,) and ``noise`` (1, 2, P) -> ``mean``, ``log_scale`` (1, C, P) and
    ``durations`` (1, 1, P) in frames. Flow: ``prior`` (1, C, T) -> ``latents`` (1, C, T). Decoder: ``latents``
    (N, C, T) -> ``pcm``. Flow and decoder also take ``bounds``, and voices of several speakers ``sid`` (1,).

    Raises:
        ValueError: The graph is no Piper graph; the message says what is missing.
    """
    graph = _Graph(model)
    seams = _find_seams(graph)
    names = {getattr(seams, seam): seam for seam in seams.__slots__ if getattr(seams, seam)}
    names |= {"input": "ids", "input_lengths": "lengths"}
    channels = _channels(graph)
    masks: dict[str, tuple[int | str, ...] | None] = {seams.text_mask: None, seams.mask: None}
    noise = {seams.noise: (1, 2, "P")} if seams.noise else {}
    front = _extract(graph, [seams.mean, seams.log_scale, seams.durations], masks | noise, names)
    flow = _extract(graph, [seams.latents], masks | {seams.prior: (1, channels, "T")}, names)
    decoder = _extract(graph, [seams.pcm], {seams.latents: ("N", channels, "T")}, names)
    around_flow = crop(flow, "prior", "latents")
    around_decoder = crop(decoder, "latents", "pcm")
    layout = Layout(around_decoder.result.rate, 2 if seams.noise else 0, around_flow, around_decoder)
    return {"front": front, "flow": flow, "decoder": decoder}, layout


def _find_seams(graph: _Graph) -> _Seams:
    latents = graph.conv("dec.conv_pre.weight").input[0]
    projected = graph.conv("enc_p.proj.weight").output[0]
    stats = graph.follow(projected, "Mul", "Split")
    text_mask = next(name for name in graph.producer[stats.input[0]].input if name != projected)
    rounding = [
        node
        for node in graph.nodes
        if node.op_type == "Ceil" and any(user.op_type == "CumSum" for user in graph.consumers.get(node.output[0], []))
    ]
    if len(rounding) != 1:
        raise ValueError("it does not round durations in one place")
    durations = rounding[0].output[0]
    random = [node.output[0] for node in graph.nodes if node.op_type == "RandomNormalLike"]
    timing = graph.ancestors([durations])
    priors = [name for name in random if name not in timing]
    if len(priors) != 1:
        raise ValueError(f"it draws the prior from {len(priors)} random nodes instead of one")
    prior = graph.follow(priors[0], "Mul", "Add").output[0]
    final = graph.producer[latents]
    masks = [name for name in final.input if prior not in graph.ancestors([name])]
    if final.op_type != "Mul" or len(masks) != 1:
        raise ValueError("its flow does not end with a mask")
    noise = next((name for name in random if name in timing), None)
    pcm = graph.model.graph.output[0].name
    return _Seams(text_mask, stats.output[0], stats.output[1], durations, noise, prior, masks[0], latents, pcm)


def _channels(graph: _Graph) -> int:
    weight = next(i for i in graph.model.graph.initializer if i.name == "dec.conv_pre.weight")
    return int(weight.dims[1])


def _extract(
    graph: _Graph,
    outputs: Sequence[str],
    cuts: Mapping[str, tuple[int | str, ...] | None],
    names: Mapping[str, str],
) -> onnx.ModelProto:
    """The subgraph between `cuts` and `outputs`, its seams renamed by `names`.

    A cut with a shape becomes an input; one without is a mask. One phrase at a time has no padding to mask, so a mask
    becomes the constant one, whose products onnxruntime drops.
    """
    seen = graph.ancestors(outputs, stop=cuts)
    needed = [n for n in graph.nodes if any(o in seen and o not in cuts for o in n.output)]
    nodes = []
    for node in needed:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.input[:] = [names.get(name, name) for name in node.input]
        copy.output[:] = [names.get(name, name) for name in node.output]
        nodes.append(copy)
    inputs = []
    for value in graph.model.graph.input:
        if value.name in seen:
            copied = onnx.ValueInfoProto()
            copied.CopyFrom(value)
            copied.name = names.get(value.name, value.name)
            inputs.append(copied)
    weights = [w for w in graph.model.graph.initializer if w.name in seen]
    for name, shape in cuts.items():
        if name in seen and shape:
            inputs.append(helper.make_tensor_value_info(names[name], TensorProto.FLOAT, shape))
        elif name in seen:
            weights.append(helper.make_tensor(names[name], TensorProto.FLOAT, [1, 1, 1], [1.0]))
    results = [helper.make_tensor_value_info(names[o], TensorProto.FLOAT, None) for o in outputs]
    body = helper.make_graph(nodes, "voxagent", inputs, results, weights)
    return helper.make_model(body, opset_imports=graph.model.opset_import, ir_version=graph.model.ir_version)


def _check_weights(model: onnx.ModelProto) -> None:
    """Raises ValueError when a weight has fewer bytes than its shape says, as in a truncated file."""
    if not model.graph.node:
        raise ValueError("it holds no ONNX graph")
    for tensor in model.graph.initializer:
        numpy_helper.to_array(tensor)
