"""The cut graph says what the whole graph says, however it is run: whole, in stretches, for any speaker."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from voxagent_piper.cache import cut_voice
from voxagent_piper.cut import cut, cut_file
from voxagent_piper.layout import Crop, Reach, Stencil
from voxagent_piper.runtime import Parts, Scales, Stretch, Window, expand
from voxagent_piper.simplify import simplify
from voxagent_piper.stencil import crop
from voxagent_piper.voices import find_voice

SILENT = Scales(noise=0.0, length=1.0, noise_w=0.0)
RUN = ort.RunOptions()


def phonemes(seed: int, count: int) -> np.ndarray:
    ids = np.random.default_rng(seed).integers(14, 100, count)
    ids[1::2] = 0
    ids[0], ids[-1] = 1, 2
    return ids


@pytest.fixture(scope="module")
def joe() -> Parts:
    return Parts(cut_voice(find_voice("joe")), threads=2)


@pytest.fixture(scope="module")
def latents(joe: Parts) -> np.ndarray:
    rng = np.random.default_rng(3)
    encoded = joe.encode(phonemes(1, 61), Scales(0.667, 1.0, 0.8), rng, 0, RUN)
    prior = expand(encoded, 0.667, rng)
    return joe.flow(prior, Stretch(0, prior.shape[2], prior.shape[2]), 0, RUN)


def speak(parts: Parts, ids: np.ndarray, sid: int = 0) -> np.ndarray:
    rng = np.random.default_rng(0)
    encoded = parts.encode(ids, SILENT, rng, sid, RUN)
    prior = expand(encoded, 0.0, rng)
    everything = Stretch(0, prior.shape[2], prior.shape[2])
    return parts.decode(Window(parts.flow(prior, everything, sid, RUN), everything), sid, RUN)


def speak_whole(session: ort.InferenceSession, ids: np.ndarray, sid: int | None = None) -> np.ndarray:
    feed = {"input": ids[None], "input_lengths": np.array([ids.size]), "scales": np.array([0, 1, 0], np.float32)}
    if sid is not None:
        feed["sid"] = np.array([sid])
    return session.run(None, feed)[0].reshape(-1)


def test_three_parts_say_what_the_whole_graph_says(joe):
    whole = ort.InferenceSession(str(find_voice("joe").path), providers=["CPUExecutionProvider"])
    for seed, count in ((1, 5), (2, 41), (3, 160)):
        ids = phonemes(seed, count)
        assert np.abs(speak(joe, ids) - speak_whole(whole, ids)).max() < 1e-4


def test_layout_is_found_from_the_graph(joe):
    layout = joe.layout
    assert layout.hop == 256
    assert layout.noise == 2
    assert layout.decoder.source == Reach(1, 11, 11)
    assert layout.flow.source == Reach(1, 32, 32)
    assert layout.decoder.result.rate == 256


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_chunking_of_latents_gives_the_same_audio(joe, latents, data):
    total = latents.shape[2]
    whole = joe.decode(Window(latents, Stretch(0, total, total)), 0, RUN)
    start, chunks = 0, []
    while start < total:
        stretch = Stretch(start, min(total, start + data.draw(st.integers(1, 40))), total)
        low, high = joe.layout.decoder.source.span(stretch.start, stretch.end, total)
        chunks.append(joe.decode(Window(latents[:, :, low:high].copy(), stretch), 0, RUN))
        start = stretch.end
    assert np.abs(np.concatenate(chunks) - whole).max() < 1e-5


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_stretch_of_the_flow_gives_the_same_latents(joe, data):
    prior = np.random.default_rng(5).standard_normal((1, 192, 120), dtype=np.float32)
    whole = joe.flow(prior, Stretch(0, 120, 120), 0, RUN)
    start = data.draw(st.integers(0, 119))
    end = data.draw(st.integers(start + 1, 120))
    part = joe.flow(prior, Stretch(start, end, 120), 0, RUN)
    assert np.abs(part - whole[:, :, start:end]).max() < 1e-4 * np.abs(whole).max()


def test_less_context_than_the_reach_is_audible(joe, latents):
    """The context is needed: the test above would notice if it were not."""
    total = latents.shape[2]
    whole = joe.decode(Window(latents, Stretch(0, total, total)), 0, RUN)
    bare = joe.decode(Window(latents[:, :, 14:28].copy(), Stretch(0, 14, 14)), 0, RUN)
    assert np.abs(bare - whole[14 * 256 : 28 * 256]).max() > 1e-2


def test_the_simplified_front_has_fewer_nodes_and_the_same_results():
    parts, _ = cut(onnx.load(find_voice("joe").path))
    simple = simplify(parts["front"])
    assert len(simple.graph.node) < 0.4 * len(parts["front"].graph.node)
    plain, other = (
        ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
        for m in (parts["front"], simple)
    )
    rng = np.random.default_rng(1)
    for count in (3, 4, 9, 10, 77):
        feed = {
            "ids": phonemes(count, count)[None],
            "scales": np.array([0.667, 1, 0.8], np.float32),
            "noise": 3 * rng.standard_normal((1, 2, count), dtype=np.float32),  # also beyond the splines' ends
        }
        for a, b in zip(plain.run(None, feed), other.run(None, feed), strict=True):
            assert np.allclose(a, b, atol=1e-4)


def with_speakers(model: onnx.ModelProto) -> onnx.ModelProto:
    """Gives a single-speaker graph two speakers, the way Piper conditions on them."""
    graph = model.graph
    rng = np.random.default_rng(0)
    for weight in graph.initializer:
        if weight.name == "sid":  # this export calls its phoneme table so
            weight.name = "table"
    for node in graph.node:
        node.input[:] = ["table" if name == "sid" else name for name in node.input]
    graph.input.append(helper.make_tensor_value_info("sid", TensorProto.INT64, [1]))
    added = [
        helper.make_node("Gather", ["emb_g.weight", "sid"], ["g_row"]),
        helper.make_node("Unsqueeze", ["g_row", "last_axis"], ["g"]),
    ]
    constants = {"emb_g.weight": rng.standard_normal((2, 16)), "last_axis": np.array([-1])}
    nodes = []
    for node in graph.node:
        nodes.append(node)
        part = {"dec.conv_pre.weight": "dec", "flow.flows.6.pre.weight": "flow", "dp.pre.weight": "dp"}
        found = next((part[name] for name in node.input if name in part), None)
        if found:
            size = next(w for w in graph.initializer if w.name in node.input).dims[0]
            constants[f"{found}.cond.weight"] = 0.1 * rng.standard_normal((size, 16, 1))
            old, node.output[0] = node.output[0], f"{found}_bare"
            nodes.append(helper.make_node("Conv", ["g", f"{found}.cond.weight"], [f"{found}_cond"], kernel_shape=[1]))
            nodes.append(helper.make_node("Add", [f"{found}_bare", f"{found}_cond"], [old]))
    kept = [onnx.NodeProto.FromString(n.SerializeToString()) for n in [*added, *nodes]]
    del graph.node[:]
    graph.node.extend(kept)
    for name, value in constants.items():
        dtype = np.int64 if value.dtype == np.int64 else np.float32
        graph.initializer.append(numpy_helper.from_array(value.astype(dtype), name))
    return model


def test_several_speakers_are_cut_too(tmp_path: Path):
    path = tmp_path / "two.onnx"
    onnx.save(with_speakers(onnx.load(find_voice("joe").path)), path)
    blobs, layout = cut_file(path)
    from voxagent_piper.cache import CutVoice

    parts = Parts(CutVoice(blobs["front"], blobs["flow"], blobs["decoder"], layout), threads=2)
    whole = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    ids = phonemes(4, 31)
    for sid in (0, 1):
        assert np.abs(speak(parts, ids, sid) - speak_whole(whole, ids, sid)).max() < 1e-4
    one, other = speak(parts, ids, 0), speak(parts, ids, 1)
    assert one.size != other.size or np.abs(one - other).max() > 1e-2


def conv(name: str, source: str, channels: int, **attributes: list[int]) -> onnx.NodeProto:
    return helper.make_node("Conv", [source, f"{name}.w"], [name], **attributes)


def model_of(nodes: list[onnx.NodeProto], output: str, weights: dict[str, tuple[int, ...]]) -> onnx.ModelProto:
    rng = np.random.default_rng(1)
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, "T"])],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n) for n, s in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_stack_of_layers_can_be_run_in_stretches(data):
    """Kernels, dilations and strides of voices nobody has seen yet."""
    nodes: list[onnx.NodeProto] = []
    weights: dict[str, tuple[int, ...]] = {}
    last = "x"
    for index in range(data.draw(st.integers(1, 4))):
        stride = data.draw(st.sampled_from([2, 4, 8]))
        weights[f"up{index}.w"] = (2, 2, 2 * stride)
        attributes = {"kernel_shape": [2 * stride], "strides": [stride], "pads": [stride // 2] * 2}
        nodes.append(helper.make_node("ConvTranspose", [last, f"up{index}.w"], [f"up{index}"], **attributes))
        last = f"up{index}"
        branches = []
        for branch in range(data.draw(st.integers(1, 3))):
            kernel, dilation = data.draw(st.sampled_from([3, 5, 7])), data.draw(st.integers(1, 6))
            name = f"conv{index}_{branch}"
            weights[f"{name}.w"] = (2, 2, kernel)
            pads = [(kernel - 1) * dilation // 2] * 2
            nodes.append(helper.make_node("LeakyRelu", [last], [f"{name}_in"], alpha=0.1))
            nodes.append(conv(name, f"{name}_in", 2, kernel_shape=[kernel], dilations=[dilation], pads=pads))
            nodes.append(helper.make_node("Add", [name, last], [f"{name}_out"]))
            branches.append(f"{name}_out")
        for branch, name in enumerate(branches[1:]):
            nodes.append(helper.make_node("Add", [branches[branch], name], [f"{name}_sum"]))
            branches[branch + 1] = f"{name}_sum"
        last = branches[-1]
    model = model_of(nodes, last, weights)
    whole = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    stencil = crop(model, "x", last)
    parts = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    total = data.draw(st.integers(1, 40))
    start = data.draw(st.integers(0, total - 1))
    end = data.draw(st.integers(start + 1, total))
    x = np.random.default_rng(2).standard_normal((1, 2, total)).astype(np.float32)
    low, high = stencil.source.span(start, end, total)
    feed = {"x": x[:, :, low:high]}
    if stencil.crops:
        feed["bounds"] = np.array(stencil.bounds(start, end, total))
    rate = stencil.result.rate
    skip = start * rate - stencil.result.span(start, end, total)[0]
    part = parts.run(None, feed)[0][:, :, skip : skip + (end - start) * rate]
    expected = whole.run(None, {"x": x})[0][:, :, start * rate : end * rate]
    assert np.allclose(part, expected, atol=1e-4 * np.abs(expected).max())


def test_bounds_stop_at_the_edges_of_the_phrase():
    stencil = Stencil(Reach(1, 11, 11), (Crop(Reach(8, 88, 88), Reach(8, 24, 24)),), Reach(256, 0, 0))
    assert stencil.bounds(20, 34, 100) == [64, 64 + 112 + 48]
    assert stencil.bounds(0, 14, 100) == [0, 112 + 24]
    assert stencil.bounds(2, 14, 14) == [0, 112]


def test_operations_that_mix_frames_are_refused():
    model = model_of([helper.make_node("Softmax", ["x"], ["y"], axis=2)], "y", {})
    with pytest.raises(ValueError, match="Softmax"):
        crop(model, "x", "y")
    model = model_of([conv("y", "x", 2, kernel_shape=[3], strides=[2], pads=[1, 1])], "y", {"y.w": (2, 2, 3)})
    with pytest.raises(ValueError, match="Conv"):
        crop(model, "x", "y")


def test_a_graph_that_is_no_voice_is_refused(tmp_path: Path):
    path = tmp_path / "other.onnx"
    onnx.save(model_of([helper.make_node("Tanh", ["x"], ["y"])], "y", {}), path)
    with pytest.raises(ValueError, match=r"no convolution with the weight 'dec.conv_pre.weight'"):
        cut_file(path)


@pytest.mark.parametrize("kept", [0, 5, 1000, 40_000_000])
def test_a_part_of_a_file_is_refused(tmp_path: Path, kept: int):
    path = tmp_path / "part.onnx"
    path.write_bytes(find_voice("joe").path.read_bytes()[:kept])
    with pytest.raises(ValueError, match="or only a part of one"):
        cut_file(path)


def test_text_is_refused(tmp_path: Path):
    path = tmp_path / "page.onnx"
    path.write_text("<html>404</html>" * 50)
    with pytest.raises(ValueError, match="is no Piper voice"):
        cut_file(path)
