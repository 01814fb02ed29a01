"""G2P by espeak-ng: optional, because espeak-ng is GPL-3.0-or-later. Imported only when asked for.

English by the small `espeak-english` package; every other language by the espeak-ng inside `piper-tts`.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Sequence

from voxagent_piper.g2p import Token, Word

_LANGUAGE_SWITCH = re.compile(r"\([a-z-]+\)")
_MOST_JOINED = 4
_KEPT_WORDS = 20_000


class EspeakG2P:
    """Pronounces clause by clause, and finds again which phonemes belong to which word."""

    def __init__(self, voice: str) -> None:
        """Opens espeak-ng.

        Args:
            voice: espeak-ng's name of the language, e.g. ``en-us``.

        Raises:
            ValueError: No espeak-ng is installed for it; the message says what to install.
        """
        self._ipa = _backend(voice)
        self._alone: dict[str, str] = {}
        try:
            self._ipa("a")
        except RuntimeError as error:
            raise ValueError(f"espeak-ng does not speak {voice!r}: {error}. Use another voice file") from error

    def __call__(self, tokens: Sequence[Token]) -> list[Word]:
        words: list[Word] = []
        clause: list[Token] = []
        for token in tokens:
            clause.append(token)
            if token.mark:
                words.extend(self._clause(clause))
                clause = []
        return words + self._clause(clause)

    def _clause(self, tokens: Sequence[Token]) -> list[Word]:
        if not tokens:
            return []
        spoken = _LANGUAGE_SWITCH.sub("", self._ipa(" ".join(token.text for token in tokens))).split()
        if not spoken:
            return []
        pairs = [(i, i + 1, i, i + 1) for i in range(len(tokens))]
        if len(spoken) != len(tokens):
            pairs = _align([self._pronounce(token.text) for token in tokens], spoken)
        words = [Word(tokens[a].start, tokens[b - 1].end, " ".join(spoken[c:d])) for a, b, c, d in pairs]
        last = words[-1]
        words[-1] = Word(last.start, last.end, last.phonemes, tokens[-1].mark)
        return words

    def _pronounce(self, text: str) -> str:
        """One word alone; remembered, because a call takes a millisecond."""
        if text not in self._alone:
            if len(self._alone) >= _KEPT_WORDS:
                self._alone.clear()
            self._alone[text] = self._ipa(text)
        return self._alone[text]


def _align(tokens: Sequence[str], spoken: Sequence[str]) -> list[tuple[int, int, int, int]]:
    """Pairs runs of tokens, each pronounced alone, with runs of spoken words: the pairing with the fewest changes.

    espeak-ng joins small words ("of the") and splits others ("e-mail"), so the counts differ.
    """
    best: dict[tuple[int, int], tuple[int, tuple[int, int]]] = {(0, 0): (0, (0, 0))}
    for a in range(len(tokens) + 1):
        for c in range(len(spoken) + 1):
            if (a, c) not in best:
                continue
            cost = best[a, c][0]
            for m, n in [(1, 1), *((k, 1) for k in range(2, _MOST_JOINED)), *((1, k) for k in range(2, 9))]:
                b, d = a + m, c + n
                if b > len(tokens) or d > len(spoken):
                    continue
                total = cost + _changes("".join(tokens[a:b]), "".join(spoken[c:d]))
                if (b, d) not in best or total < best[b, d][0]:
                    best[b, d] = (total, (a, c))
    if (len(tokens), len(spoken)) not in best:
        return [(0, len(tokens), 0, len(spoken))]
    pairs: list[tuple[int, int, int, int]] = []
    b, d = len(tokens), len(spoken)
    while (b, d) != (0, 0):
        a, c = best[b, d][1]
        pairs.append((a, b, c, d))
        b, d = a, c
    return pairs[::-1]


def _changes(one: str, other: str) -> int:
    """Phonemes that two pronunciations do not share; stress and length do not count."""
    a, b = (Counter(c for c in text if c not in "ˈˌː ") for text in (one, other))
    return (a - b).total() + (b - a).total()


# espeak-ng has one voice a process, and engines and loaders have a thread each.
_ESPEAK = threading.Lock()


def _backend(voice: str) -> Callable[[str], str]:
    if voice.split("-")[0] == "en":
        try:
            import espeak_english
        except ImportError:
            pass
        else:
            name = "en" if voice == "en-gb" else voice

            def english(text: str) -> str:
                with _ESPEAK:
                    return str(espeak_english.phonemes(text, name))

            return english
    try:
        from piper import espeakbridge
        from piper.phonemize_espeak import ESPEAK_DATA_DIR
    except ImportError:
        package = "espeak-english" if voice.split("-")[0] == "en" else "piper-tts"
        raise ValueError(
            f"g2p=espeak needs espeak-ng for {voice!r}: pip install {package} (GPL-3.0-or-later), "
            "or choose g2p=lexicon for English voices"
        ) from None
    with _ESPEAK:
        espeakbridge.initialize(str(ESPEAK_DATA_DIR))

    def phonemes(text: str) -> str:
        with _ESPEAK:
            espeakbridge.set_voice(voice)
            return " ".join(clause for clause, _, _ in espeakbridge.get_phonemes(text))

    return phonemes
