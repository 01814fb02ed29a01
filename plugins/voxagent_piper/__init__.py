"""Piper voices for voxagent, run by onnxruntime on a graph cut at its seams so that speech starts early."""

from voxagent_piper.model import PiperModel, PiperOptions, PiperSlot, PiperVoice, create
from voxagent_piper.voices import installed_voices

__all__ = ["PiperModel", "PiperOptions", "PiperSlot", "PiperVoice", "create", "installed_voices"]
