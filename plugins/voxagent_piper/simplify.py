"""The front of a Piper graph, rewritten with the same mathematics in a quarter of the nodes.

An exported front has 2,300 nodes, most of them bookkeeping of shapes, at 4 to 5 us each: half the time of a short
phrase. Three regions are replaced between tensors that weights identify: normalisations, attention, splines.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_OPSET = 17  # The first with LayerNormalization; nothing else in a Piper graph changed since 15.
_TAIL, _LEAST = 5.0, 1e-3  # Of VITS's rational-quadratic splines: where they end, and their narrowest bin.


def simplify(model: onnx.ModelProto) -> onnx.ModelProto:
    """Rewrites a front for one phrase at a time (batch 1, nothing masked).

    Raises:
        ValueError: A region is not what it should be.
    """
    draft = _Draft(model)
    for name in [w for w in draft.shapes if w.endswith(".gamma")]:
        _normalisation(draft, name)
    layers = [w.removesuffix(".conv_q.weight") for w in draft.shapes if w.endswith(".conv_q.weight")]
    sizes = _relative_shapes(draft, layers[0]) if layers else {}
    for layer in layers:
        _attention(draft, layer, sizes)
    for name in [w for w in draft.shapes if w.startswith("dp.flows.") and w.endswith(".proj.weight")]:
        _spline(draft, name.removesuffix(".proj.weight"))
    return draft.finish()


class _Draft:
    """A graph being rewritten: new nodes, and which tensors they take over."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.shapes = {w.name: tuple(w.dims) for w in model.graph.initializer}
        self._weights = {w.name: w for w in model.graph.initializer}
        self._users: dict[str, list[onnx.NodeProto]] = {}
        self.producer: dict[str, onnx.NodeProto] = {}
        for node in model.graph.node:
            for name in node.input:
                self._users.setdefault(name, []).append(node)
            for name in node.output:
                self.producer[name] = node
        self._new: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._taken: dict[str, str] = {}

    def value(self, name: str) -> float:
        """A constant scalar of the graph."""
        if name not in self._weights:
            raise ValueError(f"{name} is not constant")
        return float(numpy_helper.to_array(self._weights[name]).reshape(-1)[0])

    def user(self, name: str, op: str) -> onnx.NodeProto:
        """The node of this type that uses a tensor."""
        for node in self._users.get(name, []):
            if node.op_type == op:
                return node
        raise ValueError(f"no {op} uses {name}")

    def constant(self, value: Sequence[int] | Sequence[float] | int | float, dtype: type = np.float32) -> str:
        """A new constant."""
        name = f"const{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def ints(self, *value: int) -> str:
        """A new int64 vector."""
        return self.constant(value, np.int64)

    def add(self, op: str, *inputs: str, outputs: int = 1, **attributes: float | list[int]) -> str:
        """A new node; returns its first output, the others end in ``_1``, ``_2``, ..."""
        name = f"new{len(self._new)}"
        names = [name, *(f"{name}_{i}" for i in range(1, outputs))]
        node = helper.make_node(op, list(inputs), names)
        node.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
        self._new.append(node)
        return name

    def take_over(self, old: str, new: str) -> None:
        """Lets a new tensor stand for an old one."""
        self._taken[old] = new

    def finish(self) -> onnx.ModelProto:
        """The rewritten graph, sorted, without what nobody uses."""
        graph = self.model.graph
        nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in [*graph.node, *self._new]]
        for node in nodes:
            node.input[:] = [self._taken.get(name, name) for name in node.input]
        outputs = [o.name for o in graph.output]
        back = {self._taken[name]: name for name in outputs if name in self._taken}
        producer = {name: node for node in nodes for name in node.output}
        ordered: list[onnx.NodeProto] = []
        used = _sorted_into(ordered, producer, [*back, *outputs])
        weights = [w for w in [*graph.initializer, *self._constants] if w.name in used]
        inputs = [value for value in graph.input if value.name in used]
        body = helper.make_graph(ordered, graph.name, inputs, graph.output, weights)
        opset = [helper.make_opsetid("", max(_OPSET, self.model.opset_import[0].version))]
        return helper.make_model(body, opset_imports=opset, ir_version=self.model.ir_version)


def _sorted_into(ordered: list[onnx.NodeProto], producer: dict[str, onnx.NodeProto], wanted: list[str]) -> set[str]:
    """Appends what the wanted tensors need, producers first; returns every tensor met."""
    seen: set[str] = set()
    placed: set[int] = set()
    todo: list[tuple[str, bool]] = [(name, False) for name in wanted]
    while todo:
        name, ready = todo.pop()
        node = producer.get(name)
        if ready:
            if node is not None and id(node) not in placed:
                placed.add(id(node))
                ordered.append(node)
        elif name and name not in seen:
            seen.add(name)
            todo.append((name, True))
            if node is not None:
                todo.extend((source, False) for source in node.input)
    return seen


def _normalisation(draft: _Draft, gamma: str) -> None:
    """Nine nodes of a normalisation over the last axis become one."""
    scale = draft.user(gamma, "Mul")
    shift = draft.user(scale.output[0], "Add")
    divide = draft.producer[scale.input[0]]
    root = draft.producer[divide.input[1]]
    centred = draft.producer[divide.input[0]]
    if (divide.op_type, root.op_type, centred.op_type) != ("Div", "Sqrt", "Sub"):
        raise ValueError(f"{gamma} does not belong to a normalisation")
    epsilon = draft.value(draft.producer[root.input[0]].input[1])
    beta = next(name for name in shift.input if name != scale.output[0])
    new = draft.add("LayerNormalization", centred.input[0], gamma, beta, axis=-1, epsilon=epsilon)
    draft.take_over(shift.output[0], new)


def _relative_shapes(draft: _Draft, layer: str) -> dict[str, str]:
    """Sizes that depend on the number of phonemes L, once for all layers.

    Relative scores are a band: row i of (L, 2w + 1) belongs at the columns i - w to i + w of (L, L). Padded to a width
    of L + 2w + 1 and read again with a width of L + 2w, every row stands one further right than the one above.
    """
    _, width, depth = draft.shapes[f"{layer}.emb_rel_k"]
    channels = draft.shapes[f"{layer}.conv_q.weight"][0]
    window, heads = width // 2, channels // depth
    length = draft.add("Slice", draft.add("Shape", "ids"), draft.ints(1), draft.ints(2))
    return {
        "split_heads": draft.ints(1, heads, depth, -1),
        "join_heads": draft.ints(1, channels, -1),
        "root": draft.constant(depth**0.5),
        "flat": draft.ints(1, heads, -1),
        "rows": draft.add("Concat", draft.ints(1, heads), length, draft.ints(-1), axis=0),
        "pad_right": draft.add("Concat", draft.ints(*[0] * 7), length, axis=0),
        "pad_end": draft.add("Concat", draft.ints(*[0] * 5), length, axis=0),
        "pad_sides": draft.ints(0, 0, 0, window, 0, 0, 0, window),
        "square": draft.add("Mul", length, draft.add("Add", length, draft.ints(2 * window))),
        "left": draft.ints(window),
        "right": draft.add("Add", length, draft.ints(window)),
        "width": draft.ints(width),
        "zero": draft.ints(0),
        "axis2": draft.ints(2),
        "axis3": draft.ints(3),
    }


def _attention(draft: _Draft, layer: str, sizes: dict[str, str]) -> None:
    """Self-attention with relative positions, from its three projections to the input of the fourth."""

    def heads(projection: str) -> str:
        conv = draft.user(f"{layer}.{projection}.weight", "Conv").output[0]
        return draft.add("Reshape", conv, sizes["split_heads"])

    def turned(name: str) -> str:
        return draft.add("Transpose", name, perm=[0, 1, 3, 2])

    query = draft.add("Div", turned(heads("conv_q")), sizes["root"])
    key, value = heads("conv_k"), turned(heads("conv_v"))
    near = draft.add("MatMul", query, draft.add("Transpose", f"{layer}.emb_rel_k", perm=[0, 2, 1]))
    padded = draft.add("Pad", near, sizes["pad_right"])
    flat = draft.add("Reshape", padded, sizes["flat"])
    cut = draft.add("Slice", flat, sizes["zero"], sizes["square"], sizes["axis2"])
    skewed = draft.add("Reshape", cut, sizes["rows"])
    band = draft.add("Slice", skewed, sizes["left"], sizes["right"], sizes["axis3"])
    weights = draft.add("Softmax", draft.add("Add", draft.add("MatMul", query, key), band), axis=-1)
    flat = draft.add("Reshape", draft.add("Pad", weights, sizes["pad_sides"]), sizes["flat"])
    straight = draft.add("Reshape", draft.add("Pad", flat, sizes["pad_end"]), sizes["rows"])
    near = draft.add("Slice", straight, sizes["zero"], sizes["width"], sizes["axis3"])
    heard = draft.add("Add", draft.add("MatMul", weights, value), draft.add("MatMul", near, f"{layer}.emb_rel_v"))
    output = draft.user(f"{layer}.conv_o.weight", "Conv").input[0]
    draft.take_over(output, draft.add("Reshape", turned(heard), sizes["join_heads"]))


def _spline(draft: _Draft, flow: str) -> None:
    """One inverse rational-quadratic spline of the duration predictor (Durkan et al. 2019, equations 6 to 8)."""
    outputs, filters = draft.shapes[f"{flow}.proj.weight"][:2]
    bins = (outputs + 1) // 3
    first = draft.user(f"{flow}.pre.weight", "Conv").input[0]
    given = draft.producer[first].output[1]
    raw = draft.add("Transpose", draft.user(f"{flow}.proj.weight", "Conv").output[0], perm=[0, 2, 1])
    split = draft.add("Split", raw, draft.ints(bins, bins, outputs - 2 * bins), outputs=3, axis=2)
    root = draft.constant(filters**0.5)
    across, width = _bins(draft, draft.add("Div", split, root), bins)
    up, height = _bins(draft, draft.add("Div", f"{split}_1", root), bins)
    outside = draft.constant(np.log(np.expm1(1 - _LEAST)))  # Slope one where the spline meets the identity.
    slopes = draft.add("Softplus", draft.add("Pad", f"{split}_2", draft.ints(0, 0, 1, 0, 0, 1), outside))
    slopes = draft.add("Add", slopes, draft.constant(_LEAST))
    y = draft.add("Transpose", given, perm=[0, 2, 1])
    reached = draft.add("Cast", draft.add("GreaterOrEqual", y, up), to=TensorProto.INT64)
    count = draft.add("ReduceSum", reached, draft.ints(2), keepdims=1)
    index = draft.add("Max", draft.add("Sub", count, draft.ints(1)), draft.ints(0))

    def at(quantity: str) -> str:
        return draft.add("GatherElements", quantity, index, axis=2)

    x = _root(
        draft,
        draft.add("Sub", y, at(up)),
        at(height),
        draft.add("Div", at(height), at(width)),
        at(_columns(draft, slopes, 0, bins)),
        at(_columns(draft, slopes, 1, bins + 1)),
    )
    x = draft.add("Add", draft.add("Mul", x, at(width)), at(across))
    tail = draft.constant(_TAIL)
    inside = draft.add("LessOrEqual", draft.add("Abs", y), tail)
    result = draft.add("Transpose", draft.add("Where", inside, x, y), perm=[0, 2, 1])
    draft.take_over(draft.user(first, "Concat").input[1], result)


def _bins(draft: _Draft, raw: str, bins: int) -> tuple[str, str]:
    """Where the bins of an axis begin, and their sizes, both (1, L, bins)."""
    share = draft.add("Softmax", raw, axis=-1)
    share = draft.add("Mul", share, draft.constant(1 - _LEAST * bins))
    total = draft.add("CumSum", draft.add("Add", share, draft.constant(_LEAST)), draft.constant(2, np.int64))
    inner = draft.add("Mul", _columns(draft, total, 0, bins - 1), draft.constant(2 * _TAIL))
    inner = draft.add("Add", inner, draft.constant(-_TAIL))
    edges = draft.add("Pad", inner, draft.ints(0, 0, 1, 0, 0, 0), draft.constant(-_TAIL))
    edges = draft.add("Pad", edges, draft.ints(0, 0, 0, 0, 0, 1), draft.constant(_TAIL))
    begin = _columns(draft, edges, 0, bins)
    return begin, draft.add("Sub", _columns(draft, edges, 1, bins + 1), begin)


def _columns(draft: _Draft, name: str, start: int, end: int) -> str:
    return draft.add("Slice", name, draft.ints(start), draft.ints(end), draft.ints(2))


def _root(draft: _Draft, rise: str, height: str, slope: str, left: str, right: str) -> str:
    """How far into its bin, 0 to 1, the spline has risen this much: the root of a quadratic."""
    two = draft.constant(2.0)
    bend = draft.add("Sub", draft.add("Add", left, right), draft.add("Mul", slope, two))
    bent = draft.add("Mul", rise, bend)
    a = draft.add("Add", bent, draft.add("Mul", height, draft.add("Sub", slope, left)))
    b = draft.add("Sub", draft.add("Mul", height, left), bent)
    c = draft.add("Neg", draft.add("Mul", slope, rise))
    square = draft.add("Mul", draft.add("Mul", a, c), draft.constant(4.0))
    discriminant = draft.add("Sub", draft.add("Mul", b, b), square)
    denominator = draft.add("Sub", draft.add("Neg", b), draft.add("Sqrt", discriminant))
    return draft.add("Div", draft.add("Mul", c, two), denominator)
