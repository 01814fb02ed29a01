"""The VoxCPM network: equal to upstream, whole or in pieces, alone or together."""

from __future__ import annotations

import json
import random
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.voxcpm_rig import CPU, make_checkpoint
from voxagent.model import SpeechOptions
from voxagent.phrases import Phrase
from voxagent.speakable import speakable
from voxagent_voxcpm.config import parse_config
from voxagent_voxcpm.kv import Span
from voxagent_voxcpm.model import VoxModel
from voxagent_voxcpm.network import AUDIO_START, REFERENCE_END, REFERENCE_START, load_network
from voxagent_voxcpm.options import parse_options
from voxagent_voxcpm.releases import RELEASES, random_network
from voxagent_voxcpm.solver import Task, grid, solve
from voxagent_voxcpm.tokens import Tokens
from voxagent_voxcpm.upstream import importable, installed
from voxagent_voxcpm.voice import make_voice

ALL = ("v2", "1.5", "0.5b")
EXACT = 1e-5


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    root = tmp_path_factory.mktemp("voxcpm")
    return {name: make_checkpoint(root / name, name, stops=True, pickled=name == "0.5b") for name in ALL}


@pytest.fixture(scope="module")
def networks(checkpoints):
    return {name: load_network(path, CPU, torch.float32) for name, path in checkpoints.items()}


def off(one, other):
    """The size of the difference, relative to the size of the signal."""
    return float((one - other).norm() / other.norm())


@torch.inference_mode()
def generate(
    network, tokens, text, seed, *, prompt=None, reference=None, steps=6, most=24, piece=1000, row=0, pools=None
):
    """The loop as published, over our parts: patches (count, frames, feat dim)."""
    config = network.config
    embedded, audio = [], []
    if reference is not None:
        marks = network.embed_tokens([REFERENCE_START, REFERENCE_END])
        embedded += [marks[:1], network.embed_patches(reference), marks[1:]]
        audio += [False, *[True] * len(reference), False]
    ids = [*tokens.encode(text), AUDIO_START]
    embedded.append(network.embed_tokens(ids))
    audio += [False] * len(ids)
    latest = torch.zeros(config.patch, config.feat_dim)
    if prompt is not None:
        embedded.append(network.embed_patches(prompt))
        audio += [True] * len(prompt)
        latest = prompt[-1]
    rows, marks = torch.cat(embedded), torch.tensor(audio)
    pools = pools or network.pools(row + 1, 256)
    for start in range(0, len(rows), piece):
        count = min(piece, len(rows) - start)
        hidden = network.advance(
            rows[start : start + count], marks[start : start + count], [Span(row, start, count)], pools
        )
    drawn = torch.Generator().manual_seed(seed)
    patches = []
    for index in range(most):
        noise = torch.randn((1, config.feat_dim, config.patch), generator=drawn)[0].T
        stop = bool(network.stops(hidden)[0])
        (latest,) = solve(network.dit, [Task(noise, network.guidance(hidden)[0], latest, steps, 2.0, lambda: False)])
        patches.append(latest)
        if index > 2 and stop:
            break
        span = Span(row, len(rows) + index, 1)
        hidden = network.advance(network.embed_patches(latest[None]), torch.tensor([True]), [span], pools)
    return torch.stack(patches)


def latents(network, count, seed=0):
    shape = (count, network.config.patch, network.config.feat_dim)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def upstream(checkpoints):
    if not installed():
        pytest.skip("the upstream package is not installed: pip install --no-deps voxcpm==2.0.3 einops transformers")
    with importable(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from voxcpm.model.voxcpm import VoxCPMModel
        from voxcpm.model.voxcpm2 import VoxCPM2Model

        kinds = {"v2": VoxCPM2Model, "1.5": VoxCPMModel, "0.5b": VoxCPMModel}
        yield {name: kinds[name].from_local(str(checkpoints[name]), optimize=False, device="cpu") for name in ALL}


class TestParity:
    """Same weights, same noise, as upstream 2.0.3 in the same process."""

    @pytest.mark.parametrize("text", ["Good morning, it is 早安.", "Two  spaces\nand ü ☃ 早安早", "x", ""])
    @pytest.mark.parametrize("release", ALL)
    def test_tokens_are_upstreams(self, checkpoints, upstream, release, text):
        tokens = Tokens(checkpoints[release] / "tokenizer.json")
        assert tokens.encode(text) == upstream[release].text_tokenizer(text)

    @pytest.mark.parametrize(
        ("release", "mode"),
        [(name, mode) for name in ALL for mode in ("zero_shot", "continuation")]
        + [("v2", "reference"), ("v2", "ref_continuation")],
    )
    def test_latents_and_audio_are_upstreams_and_stop_at_the_same_patch(
        self, checkpoints, networks, upstream, release, mode
    ):
        network, peer = networks[release], upstream[release]
        prompt = latents(network, 7, 1) if "continuation" in mode else None
        reference = latents(network, 9, 2) if mode.startswith("ref") else None
        cache = {"mode": mode, "audio_feat": prompt, "ref_audio_feat": reference, "prompt_text": "Once more. "}
        cache = {name: part for name, part in cache.items() if part is not None}
        tokens = Tokens(checkpoints[release] / "tokenizer.json")
        for seed in range(3):
            torch.manual_seed(seed)
            made = next(
                peer._generate_with_prompt_cache(
                    target_text="Good morning, what can I do?",
                    prompt_cache=None if mode == "zero_shot" else cache,
                    inference_timesteps=6,
                    max_len=24,
                    retry_badcase=False,
                )
            )
            text = ("Once more. " if prompt is not None else "") + "Good morning, what can I do?"
            ours = generate(network, tokens, text, seed, prompt=prompt, reference=reference)
            audio, _, theirs = made
            context = 0 if release == "v2" or prompt is None else 2  # V1 gives two patches of the prompt back
            theirs = theirs[context:]
            assert len(ours) == len(theirs)
            assert off(ours, theirs) < EXACT
            state = network.decoder.fresh()
            if prompt is not None:
                known = prompt[-3 if release == "v2" else -2 :].flatten(0, 1).T[None]
                with torch.inference_mode():
                    _, (state,) = network.decoder.decode(known.contiguous(), [state])
            with torch.inference_mode():
                heard, _ = network.decoder.decode(ours.flatten(0, 1).T[None].contiguous(), [state])
            assert off(heard[0], audio[0]) < EXACT

    @pytest.mark.parametrize(
        ("release", "mode"), [*((name, "continuation") for name in ALL), ("v2", "reference"), ("v2", "zero_shot")]
    )
    def test_a_session_of_the_engine_says_what_upstream_says(self, checkpoints, networks, upstream, release, mode):
        options = parse_options({"steps": 6, "first_steps": 6, "most_per_token": 6})
        network, text = networks[release], "Good morning, what can I do?"
        model = VoxModel(network, Tokens(checkpoints[release] / "tokenizer.json"), options)
        prompt = latents(network, 7, 1) if mode == "continuation" else None
        reference = latents(network, 9, 2) if mode == "reference" else None
        voice = make_voice(network, "x", reference=reference, prompt=prompt, prompt_text="Once more.")
        cache = {"mode": mode, "audio_feat": prompt, "ref_audio_feat": reference, "prompt_text": "Once more. "}
        cache = {name: part for name, part in cache.items() if part is not None}
        for seed in (5, 6):
            slot = model.open(voice, SpeechOptions(), seed)
            while not model.prefill(slot, Phrase(text, 0, speakable(text, "en"), "end")):
                pass
            while not slot.last:
                model.step([slot])
            ours = torch.stack(slot.patches)
            model.close(slot)
            torch.manual_seed(seed)
            stream = upstream[release]._generate_with_prompt_cache(
                target_text=text,
                prompt_cache=None if mode == "zero_shot" else cache,
                inference_timesteps=6,
                retry_badcase=False,
            )
            theirs = next(stream)[2][0 if release == "v2" or prompt is None else 2 :]
            assert len(ours) == len(theirs)
            assert off(ours, theirs) < EXACT

    @pytest.mark.parametrize(("release", "with_reference"), [("v2", True), ("v2", False), ("1.5", False)])
    def test_the_second_phrase_of_a_turn_is_upstreams_continuation_of_the_first(
        self, checkpoints, networks, upstream, release, with_reference
    ):
        options = parse_options({"steps": 6, "first_steps": 6, "most_per_token": 6})
        network, first, second = networks[release], "Good morning.", "What can I do for you?"
        model = VoxModel(network, Tokens(checkpoints[release] / "tokenizer.json"), options)
        reference = latents(network, 9, 2) if with_reference else None
        slot = model.open(make_voice(network, "x", reference=reference), SpeechOptions(), 5)
        said = []
        for start, text in ((0, first), (14, second)):
            while not model.prefill(slot, Phrase(text, start, speakable(text, "en"), "end")):
                pass
            seed = slot.session.random.initial_seed()
            while not slot.last:
                model.step([slot])
            said.append(torch.stack(slot.patches))
        cache = {"mode": "ref_continuation" if with_reference else "continuation", "ref_audio_feat": reference}
        cache |= {"audio_feat": said[0], "prompt_text": f"{first} "}
        torch.manual_seed(seed)
        stream = upstream[release]._generate_with_prompt_cache(
            target_text=second,
            prompt_cache={name: part for name, part in cache.items() if part is not None},
            inference_timesteps=6,
            retry_badcase=False,
        )
        theirs = next(stream)[2][0 if release == "v2" else 2 :]
        assert len(said[1]) == len(theirs)
        assert off(said[1], theirs) < EXACT

    @pytest.mark.parametrize("release", ALL)
    def test_recordings_are_encoded_as_upstream_encodes_them(self, networks, upstream, release):
        network, peer = networks[release], upstream[release].audio_vae
        audio = torch.randn(31_000, generator=torch.Generator().manual_seed(3)) * 0.1
        with torch.inference_mode():
            assert off(network.encoder.encode(audio), peer.encode(audio[None], peer.sample_rate)[0]) < EXACT


def test_control_tokens_spelled_in_a_text_are_text(checkpoints):
    tokens = Tokens(checkpoints["v2"] / "tokenizer.json")
    ids = tokens.encode("Say <|audio_start|> or <s> or <|ref_audio_end|> now.")
    assert not set(ids) & {1, 2, 101, 102, 103, 104}


@pytest.mark.parametrize("release", ALL)
def test_taking_a_text_in_by_pieces_changes_nothing(checkpoints, networks, release):
    tokens, network = Tokens(checkpoints[release] / "tokenizer.json"), networks[release]
    prompt = latents(network, 5)
    whole = generate(network, tokens, "Please stay on the line.", 4, prompt=prompt, most=5)
    for piece in (1, 3, 7):
        assert (
            off(generate(network, tokens, "Please stay on the line.", 4, prompt=prompt, most=5, piece=piece), whole)
            < EXACT
        )


@pytest.mark.parametrize("release", ALL)
def test_audio_decoded_in_any_pieces_is_the_whole(networks, release):
    network = networks[release]
    frames = latents(network, 10).flatten(0, 1).T[None].contiguous()
    with torch.inference_mode():
        whole = network.decoder.whole(frames)
        for sizes in ([network.config.patch], [1], [3, 1, 5, 2]):
            state, parts, start, turn = network.decoder.fresh(), [], 0, 0
            while start < frames.shape[-1]:
                size = sizes[turn % len(sizes)]
                part, (state,) = network.decoder.decode(frames[..., start : start + size].contiguous(), [state])
                parts.append(part)
                start, turn = start + size, turn + 1
            assert off(torch.cat(parts, dim=1), whole) < EXACT


@pytest.mark.parametrize("release", ALL)
def test_sessions_of_any_age_are_decoded_together(networks, release):
    network, draw = networks[release], random.Random(1)
    streams = [latents(network, 8, seed) for seed in range(4)]
    with torch.inference_mode():
        alone = [network.decoder.whole(stream.flatten(0, 1).T[None].contiguous())[0] for stream in streams]
        states = [network.decoder.fresh() for _ in streams]
        parts, place = [[] for _ in streams], [0] * len(streams)
        while any(at < 8 for at in place):
            chosen = [index for index, at in enumerate(place) if at < 8 and draw.random() < 0.6]
            if not chosen:
                continue
            frames = torch.stack([streams[index][place[index]] for index in chosen]).transpose(1, 2).contiguous()
            audio, fresh = network.decoder.decode(frames, [states[index] for index in chosen])
            for index, pcm, state in zip(chosen, audio, fresh, strict=True):
                states[index] = state
                parts[index].append(pcm)
                place[index] += 1
    for index, whole in enumerate(alone):
        assert off(torch.cat(parts[index]), whole) < EXACT


def test_a_decoder_that_was_primed_goes_on_without_a_join(networks):
    network = networks["v2"]
    frames = latents(network, 20).flatten(0, 1).T[None].contiguous()
    with torch.inference_mode():
        whole = network.decoder.whole(frames)
        cut = 60
        _, (state,) = network.decoder.decode(frames[..., cut - 24 : cut].contiguous(), [network.decoder.fresh()])
        rest, _ = network.decoder.decode(frames[..., cut:].contiguous(), [state])
    assert off(rest, whole[:, cut * network.config.audio.decode_hop :]) < EXACT


class TestSolver:
    def test_tasks_with_different_steps_are_each_as_if_alone(self, networks):
        network = networks["v2"]
        made = latents(network, 6)
        mu = torch.randn(3, 2, network.config.dit.hidden, generator=torch.Generator().manual_seed(2))
        tasks = [
            Task(made[index], mu[index], made[index + 3], steps, 1.5 + index, lambda: False)
            for index, steps in enumerate((2, 10, 5))
        ]
        with torch.inference_mode():
            together = solve(network.dit, tasks)
            for task, patch in zip(tasks, together, strict=True):
                (alone,) = solve(network.dit, [task])
                assert off(patch, alone) < EXACT

    def test_a_cancelled_task_is_dropped_at_the_next_call_and_the_others_go_on(self, networks):
        network = networks["v2"]
        made, calls = latents(network, 4), []
        mu = torch.zeros(2, 2, network.config.dit.hidden)

        def cancelled():
            calls.append(1)
            return len(calls) > 2

        tasks = [
            Task(made[0], mu[0], made[2], 10, 2.0, cancelled),
            Task(made[1], mu[1], made[3], 10, 2.0, lambda: False),
        ]
        with torch.inference_mode():
            first, second = solve(network.dit, tasks)
            (alone,) = solve(network.dit, tasks[1:])
        assert first is None
        assert off(second, alone) < EXACT

    @pytest.mark.parametrize("steps", [1, 0, -3])
    def test_one_step_is_refused(self, steps):
        with pytest.raises(ValueError, match="at least 2 steps"):
            grid(steps, torch.float32)


class TestCheckpoints:
    def test_missing_weights_are_named(self, tmp_path):
        path = make_checkpoint(tmp_path / "c")
        tensors = load_file(path / "model.safetensors")
        del tensors["residual_lm.layers.1.mlp.down_proj.weight"]
        save_file(tensors, path / "model.safetensors")
        with pytest.raises(ValueError, match=r"lacks the weights residual_lm\.layers\.1\.mlp\.down_proj\.weight"):
            load_network(path, CPU, torch.float32)

    def test_weights_that_nothing_uses_are_named(self, tmp_path):
        path = make_checkpoint(tmp_path / "c")
        tensors = load_file(path / "model.safetensors")
        save_file({**tensors, "speaker_head.weight": torch.zeros(3)}, path / "model.safetensors")
        with pytest.raises(ValueError, match=r"nothing uses: speaker_head\.weight"):
            load_network(path, CPU, torch.float32)

    def test_weights_of_another_shape_are_named(self, tmp_path):
        path = make_checkpoint(tmp_path / "c")
        tensors = load_file(path / "model.safetensors")
        save_file({**tensors, "stop_head.weight": torch.zeros(3, 64)}, path / "model.safetensors")
        with pytest.raises(ValueError, match=r"stop_head\.weight are of shape \(3, 64\).*asks for \(2, 64\)"):
            load_network(path, CPU, torch.float32)

    def test_weights_that_are_no_numbers_are_named(self, tmp_path):
        path = make_checkpoint(tmp_path / "c")
        tensors = load_file(path / "model.safetensors")
        tensors["enc_to_lm_proj.bias"][5] = float("nan")
        save_file(tensors, path / "model.safetensors")
        with pytest.raises(ValueError, match=r"enc_to_lm_proj\.bias hold values that are no numbers"):
            load_network(path, CPU, torch.float32)

    @pytest.mark.parametrize(
        ("name", "pickled"), [("model.safetensors", False), ("pytorch_model.bin", True), ("audiovae.pth", False)]
    )
    def test_a_file_that_was_cut_off_is_named(self, tmp_path, name, pickled):
        path = make_checkpoint(tmp_path / "c", pickled=pickled)
        whole = (path / name).read_bytes()
        for size in (len(whole) // 2, 10, 0):
            (path / name).write_bytes(whole[:size])
            with pytest.raises(ValueError, match=rf"{name}.*(damaged|lacks)"):
                load_network(path, CPU, torch.float32)

    @pytest.mark.parametrize("name", ["model.safetensors", "audiovae.pth", "config.json"])
    def test_a_missing_file_is_named(self, tmp_path, name):
        path = make_checkpoint(tmp_path / "c")
        (path / name).unlink()
        with pytest.raises(ValueError, match=name.replace(".", r"\.")):
            load_network(path, CPU, torch.float32)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"architecture": "llama"}, "architecture is 'llama'"),
            ({"architecture": None}, "architecture is None"),
            ({"lm_config": {}}, "is missing"),
            ({"lm_config": 3}, "wrong type"),
            ({"dit_config": {**RELEASES["v2"]["dit_config"], "dit_mean_mode": True}}, "dit_mean_mode"),
            ({"audio_vae_config": {"use_noise_block": True}}, "use_noise_block"),
            ({"audio_vae_config": {"cond_type": "add"}}, "scale_bias"),
        ],
    )
    def test_a_foreign_configuration_is_refused(self, change, message):
        with pytest.raises(ValueError, match=message):
            parse_config({**RELEASES["v2"], **change})

    def test_a_configuration_that_is_no_json_is_refused(self, tmp_path):
        path = make_checkpoint(tmp_path / "c")
        (path / "config.json").write_text(json.dumps({})[:1])
        with pytest.raises(ValueError, match="cannot be read as JSON"):
            load_network(path, CPU, torch.float32)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 0.2), (torch.float16, 0.05)])
def test_half_precision_stays_near_float32(checkpoints, dtype, bound):
    exact, half = (load_network(checkpoints["v2"], CPU, kind) for kind in (torch.float32, dtype))
    tokens = Tokens(checkpoints["v2"] / "tokenizer.json")
    with torch.inference_mode():
        ids = [*tokens.encode("Good morning, what can I do for you?"), AUDIO_START]
        said = [
            network.advance(
                network.embed_tokens(ids),
                torch.zeros(len(ids), dtype=torch.bool),
                [Span(0, 0, len(ids))],
                network.pools(1, 64),
            )
            for network in (exact, half)
        ]
    assert off(said[1].lm.float(), said[0].lm) < bound
    assert off(said[1].residual.float(), said[0].residual) < bound


def test_a_random_network_of_any_shape_needs_no_files(checkpoints):
    config = parse_config(json.loads((checkpoints["v2"] / "config.json").read_text()))
    one, other = (random_network(config, CPU, torch.float32, seed=5) for _ in range(2))
    with torch.inference_mode():
        assert torch.equal(one.embed_patches(latents(one, 2)), other.embed_patches(latents(one, 2)))
