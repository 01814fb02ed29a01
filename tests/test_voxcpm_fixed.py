"""The calls of a step at fixed sizes, as a GPU replays them, are the calls as they are; and the check for GPUs runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.voxcpm_rig import CPU, make_checkpoint
from voxagent_voxcpm.measure import Extent, random_voice, start
from voxagent_voxcpm.network import load_network
from voxagent_voxcpm.sessions import Sessions

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    return load_network(make_checkpoint(tmp_path_factory.mktemp("fixed") / "c"), CPU, torch.float32)


def speak(network, *, counts, **how):
    """Patches of sessions that join one after another, `counts` at each step."""
    sessions = Sessions(network, 6, 200, **how)
    voice = random_voice(network, 2.0)
    live, out = [], []
    for count in counts:
        with torch.inference_mode():
            while len(live) < count:
                live += start(sessions, voice, 1, Extent(text=5 + 9 * len(live)))
            patches = sessions.step(live[:count], [3 + index for index in range(count)], 2.0)
            out.append(torch.stack([patch.latents for patch in patches]))
    return out


def test_batches_filled_up_to_a_size_are_as_if_they_were_not(network):
    counts = (1, 2, 3, 5, 6, 6, 4, 1)
    for plain, fixed in zip(
        speak(network, fixed=False, counts=counts), speak(network, fixed=True, counts=counts), strict=True
    ):
        assert float((plain - fixed).norm() / plain.norm()) < 1e-5


def test_both_calls_can_be_compiled_whole(tmp_path, monkeypatch):
    # Weights that were laid out for a CPU are opaque to a compiler; those on a GPU are as here.
    monkeypatch.setattr("voxagent_voxcpm.linear._pack", lambda weight: (None, weight.dtype))
    network = load_network(make_checkpoint(tmp_path / "c"), CPU, torch.float32)
    counts = (1, 2, 2, 1)
    plain = speak(network, counts=counts, fixed=False)
    compiled = speak(network, counts=counts, fixed=True, compiler="eager")
    for one, other in zip(plain, compiled, strict=True):
        assert float((one - other).norm() / one.norm()) < 1e-5


@pytest.mark.parametrize(
    ("most", "sizes"), [(1, [1]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8]), (64, [1, 2, 4, 8, 16, 32, 64])]
)
def test_sizes_are_powers_of_two_up_to_the_most(network, most, sizes):
    assert Sessions(network, most, 64, fixed=True).fixed.sizes == sizes


def test_warming_up_every_size_touches_no_session(network):
    sessions = Sessions(network, 3, 200, fixed=True)
    with torch.inference_mode():
        (session,) = start(sessions, random_voice(network, 2.0), 1, Extent(text=12))
        before = sessions.pools.lm.read(session.row, session.position)
        sessions.fixed.warm_up(200)
        after = sessions.pools.lm.read(session.row, session.position)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_what_a_session_left_in_its_row_does_not_reach_the_next(network):
    sessions = Sessions(network, 2, 200, fixed=True)
    voice = random_voice(network, 2.0)
    with torch.inference_mode():
        (bad,) = start(sessions, voice, 1, Extent(text=60))
        for pool in (sessions.pools.lm, sessions.pools.residual):
            for layer in (*pool.keys, *pool.values):
                layer[bad.row].fill_(float("nan"))
        sessions.scrub(bad)
        sessions.close(bad)
        live = start(sessions, voice, 2, Extent(text=5))
        for _ in range(3):
            assert all(bool(torch.isfinite(patch.latents).all()) for patch in sessions.step(live, [3, 3], 2.0))


def test_the_check_for_gpus_runs_here_with_torch_numpy_and_safetensors_only(tmp_path):
    script, out = str(ROOT / "bench" / "gpu_check.py"), str(tmp_path / "x.json")
    extent = [
        "--shape",
        "tiny",
        "--device",
        "cpu",
        "--dtype",
        "float32",
        "--calls",
        "1,3",
        "--patches",
        "2",
        "--rounds",
        "1",
        "--steps",
        "3",
        "--out",
    ]
    code = f"""
import runpy, sys
for name in ("voxagent", "pydantic", "tokenizers", "av", "transformers", "typer"):
    sys.modules[name] = None  # importing it fails
sys.argv = {[script, *extent, out]!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "x.json").read_text())
    assert set(figures["step_ms"]) == {"1", "3"}
    assert figures["cancel"]["calls"] <= 1
    assert figures["cancel"]["reusable"]
