"""A dictionary of pronunciations: whole words, and what to say instead.

Owns the file's format and when it is read again. Knows nothing of engines.
"""

from __future__ import annotations

import logging
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ANY = "any"
"""The section for every language."""

_log = logging.getLogger(__name__)
_UNSPACED = "\u0e01-\u0e4e\u3041-\u30ff\u3400-\u9fff"


@dataclass(frozen=True, slots=True)
class Pronunciation:
    """How one word is said.

    Attributes:
        word: As written; may hold spaces and signs (``C++``, ``New York``).
        say: What to say instead; empty when only `ipa` is given.
        ipa: Phonemes, for engines that take them; others say `say`, or the word itself.
        exact: Capitals count. By default they do for a word that is written with some.
    """

    word: str
    say: str = ""
    ipa: str = ""
    exact: bool = False

    def spoken(self, phonemes: bool) -> str:
        """What goes to the engine: IPA between double brackets if it takes that, else words."""
        return f"[[{self.ipa}]]" if self.ipa and phonemes else self.say or self.word


class Pronunciations:
    """Pronunciations by language. Immutable.

    Args:
        words: Language (``en``, or ``any`` for all) to its words.
    """

    def __init__(self, words: Mapping[str, tuple[Pronunciation, ...]]) -> None:
        self._words = dict(words)
        self._finders: dict[str, Finder | None] = {}

    @classmethod
    def of(cls, words: Mapping[str, str], language: str = ANY) -> Pronunciations:
        """From plain pairs of a word and what to say."""
        return cls({language: tuple(_entry(word, say, "") for word, say in words.items())})

    @classmethod
    def load(cls, path: Path | str) -> Pronunciations:
        """Reads a TOML file: a section for each language or ``[any]``, in it ``word = "what to say"``.

        Instead of the string a table may stand: ``{ say = "…", ipa = "…", case = true }``.

        Raises:
            ValueError: The file is missing or wrong; the message says where and what to do.
        """
        try:
            document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise ValueError(f"no pronunciation dictionary at {path}: check the path") from error
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"cannot read {path}: {error}") from error
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"{path} is no TOML: {error}") from error
        words: dict[str, tuple[Pronunciation, ...]] = {}
        for language, section in document.items():
            if not isinstance(section, dict):
                raise ValueError(f"{path}: {language!r} stands outside of a section: put it below [any] or [en]")
            words[language.lower()] = tuple(_entry(word, value, str(path)) for word, value in section.items())
        return cls(words)

    def __len__(self) -> int:
        return sum(map(len, self._words.values()))

    def finder(self, tag: str) -> Finder | None:
        """What finds the words of a language in a text; None when there are none."""
        if tag not in self._finders:
            both = {entry.word: entry for section in (ANY, tag) for entry in self._words.get(section, ())}
            self._finders[tag] = Finder(tuple(both.values())) if both else None
        return self._finders[tag]


class Finder:
    """Finds words with a pronunciation of their own, the longest first."""

    def __init__(self, entries: tuple[Pronunciation, ...]) -> None:
        ordered = sorted(entries, key=lambda entry: len(entry.word), reverse=True)
        self._entries = {f"w{index}": entry for index, entry in enumerate(ordered)}
        either = "|".join(f"(?P<{name}>{_pattern(entry)})" for name, entry in self._entries.items())
        self._pattern = re.compile(either)

    def search(self, text: str, start: int) -> tuple[int, int, Pronunciation] | None:
        """The next word at or after a place: where it starts and ends, and how it is said."""
        found = self._pattern.search(text, start)
        if found is None:
            return None
        return found.start(), found.end(), self._entries[found.lastgroup or ""]


def _pattern(entry: Pronunciation) -> str:
    """Whole words only, and no parts of addresses; scripts without spaces have no edges to look for."""
    word = re.escape(entry.word)
    first, last = entry.word[0], entry.word[-1]
    before = r"(?<![\w@])" if re.match(r"\w", first) and not re.match(f"[{_UNSPACED}]", first) else ""
    after = r"(?![\w@]|\.\w|://)" if re.match(r"\w", last) and not re.match(f"[{_UNSPACED}]", last) else ""
    return before + (word if entry.exact else f"(?i:{word})") + after


def _entry(word: str, value: object, path: str) -> Pronunciation:
    where = f"{path}: {word!r}" if path else repr(word)
    if not word.strip():
        raise ValueError(f"{where}: a word must not be empty")
    table = value if isinstance(value, dict) else {"say": value}
    unknown = table.keys() - {"say", "ipa", "case"}
    if unknown:
        raise ValueError(f"{where}: {', '.join(sorted(unknown))} is not known here: use say, ipa, case")
    say, ipa = table.get("say", ""), table.get("ipa", "")
    if not isinstance(say, str) or not isinstance(ipa, str) or not (say.strip() or ipa.strip()):
        raise ValueError(f"{where} needs say or ipa, in quotes")
    if any(bracket in ipa for bracket in "[]"):
        raise ValueError(f"{where}: ipa must not hold brackets")
    case = table.get("case", word != word.lower())
    if not isinstance(case, bool):
        raise ValueError(f"{where}: case is true or false")
    return Pronunciation(word, say.strip(), ipa.strip(), case)


class PronunciationFile:
    """A dictionary file that may change while the program runs: `current` reads it again when it did.

    Args:
        path: Of a file as `Pronunciations.load` reads.

    Raises:
        ValueError: As `Pronunciations.load`. Later faults keep the last good state, and are logged.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._seen = self._stamp()
        self._words = Pronunciations.load(self.path)
        self.error: str | None = None
        """What is wrong with the file now; None when `current` is what it says."""

    def current(self) -> Pronunciations:
        """The dictionary as the file is now. Costs one look at the file's date."""
        stamp = self._stamp()
        if stamp != self._seen:
            self._seen = stamp
            try:
                self._words = Pronunciations.load(self.path)
                self.error = None
            except ValueError as error:
                self.error = str(error)
                _log.warning("%s; the last good dictionary stays in use", error)
        return self._words

    def finder(self, tag: str) -> Finder | None:
        """As `Pronunciations.finder`, of the file as it is now."""
        return self.current().finder(tag)

    def _stamp(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self.path)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size
