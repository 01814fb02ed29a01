"""How text is read aloud where tastes and engines differ: code, addresses, pronunciations, voice tags.

Pure: files are read by `pronunciations`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, get_args

from voxagent.pronunciations import PronunciationFile, Pronunciations

Code = Literal["skip", "announce", "read"]
Url = Literal["domain", "short", "full"]


@dataclass(frozen=True, slots=True)
class Reading:
    """Settings of the spoken form.

    Attributes:
        code: Blocks of code are left out (``skip``), named ("code omitted", ``announce``) or read out (``read``). Code
            inside a sentence is always read.
        url: Of an address, the host is said (``domain``), its path too unless it is long (``short``), or all of it
            (``full``).
        pronunciations: How words are said that would come out wrong.
        tags: Names of voice tags the engine knows, e.g. ``pause`` for ``[pause]`` and ``[pause:0.5]``, ``break`` for
            ``<break time="1s"/>``. They are passed through; all others are silent.
        phonemes: The engine takes IPA between double brackets, ``[[həˈloʊ]]``.

    Raises:
        ValueError: A policy that does not exist.
    """

    code: Code = "skip"
    url: Url = "short"
    pronunciations: Pronunciations | PronunciationFile | None = None
    tags: frozenset[str] = frozenset()
    phonemes: bool = False

    def __post_init__(self) -> None:
        for name, value, known in (("code", self.code, get_args(Code)), ("url", self.url, get_args(Url))):
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, not {value!r}")

    def known_to(self, tags: Iterable[str], phonemes: bool) -> Reading:
        """The same with what an engine knows of voice tags and phonemes."""
        return replace(self, tags=self.tags | frozenset(tags), phonemes=self.phonemes or phonemes)


PLAIN = Reading()
"""What is read when nothing is set."""
