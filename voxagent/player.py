"""Plays PCM through a program the machine already has; no audio library of our own."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass

from voxagent.model import Pcm
from voxagent.pcm import to_int16

_PROGRAMS = (
    ("pw-cat", ("-p", "--format=s16", "--rate={rate}", "--channels=1", "-")),
    ("paplay", ("--raw", "--format=s16le", "--rate={rate}", "--channels=1")),
    ("aplay", ("-q", "-t", "raw", "-f", "S16_LE", "-r", "{rate}", "-c", "1", "-")),
    ("play", ("-q", "-t", "raw", "-e", "signed", "-b", "16", "-r", "{rate}", "-c", "1", "-")),
    ("ffplay", ("-loglevel", "error", "-autoexit", "-nodisp", "-f", "s16le", "-ar", "{rate}", "-i", "-")),
)


PROGRAMS = tuple(name for name, _ in _PROGRAMS)
"""What can play, best first."""


@dataclass(frozen=True, slots=True)
class Player:
    """A program that plays raw PCM from its standard input."""

    program: str
    arguments: tuple[str, ...]

    @staticmethod
    def find() -> Player:
        """The first player on the path.

        Raises:
            ValueError: There is none.
        """
        for name, arguments in _PROGRAMS:
            if (path := shutil.which(name)) is not None:
                return Player(path, arguments)
        raise ValueError(f"--play needs one of the programs {', '.join(PROGRAMS)}: install one, or use --out")

    def play(self, pcm: Pcm, sample_rate: int) -> None:
        """Plays mono float32 PCM to its end.

        Raises:
            ValueError: The player failed, e.g. because there is no sound device.
        """
        command = [self.program, *(argument.format(rate=sample_rate) for argument in self.arguments)]
        done = subprocess.run(command, input=to_int16(pcm).tobytes(), capture_output=True, check=False)
        if done.returncode:
            reason = done.stderr.decode(errors="replace").strip().splitlines()
            raise ValueError(f"{self.program} could not play: {reason[-1] if reason else done.returncode}")
