"""voxagent in Pipecat: a TTS service, a gate against stale audio, phrases, and a transport for tests."""

from __future__ import annotations

from voxagent_pipecat.aggregator import SILENT, PhraseAggregator
from voxagent_pipecat.gate import BargeInGate, GateStats
from voxagent_pipecat.loopback import LoopbackTransport, Stamp
from voxagent_pipecat.service import VoxAgentTTSService
from voxagent_pipecat.settings import VoxAgentTTSSettings
from voxagent_pipecat.speaker import SpeechStats, Spoken
from voxagent_pipecat.transforms import speakable_transform

__all__ = [
    "SILENT",
    "BargeInGate",
    "GateStats",
    "LoopbackTransport",
    "PhraseAggregator",
    "SpeechStats",
    "Spoken",
    "Stamp",
    "VoxAgentTTSService",
    "VoxAgentTTSSettings",
    "speakable_transform",
]
