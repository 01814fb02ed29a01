"""Piper voices for voxagent: onnxruntime on a graph cut at its seams, so that speech starts before it is all decoded."""

from voxagent_piper.model import PiperModel, PiperOptions, create
from voxagent_piper.voices import VoiceInfo, installed_voices

__all__ = ["PiperModel", "PiperOptions", "VoiceInfo", "create", "installed_voices"]
