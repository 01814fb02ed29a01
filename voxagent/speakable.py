"""Written text to speakable text, with an index map back to what was written.

Pure: no audio, no clocks.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import lru_cache

from voxagent.lexicon import primary_tag
from voxagent.spoken_draft import Draft
from voxagent.spoken_english import ENGLISH
from voxagent.spoken_numbers import Wording, wording
from voxagent.spoken_rules import ADDRESSES, AMOUNTS, MARKUP, Rule


@dataclass(frozen=True, slots=True)
class Piece:
    """One aligned stretch: `written[w0:w1]` is spoken as `spoken[s0:s1]`."""

    w0: int
    w1: int
    s0: int
    s1: int


@dataclass(frozen=True, slots=True)
class Speakable:
    """Spoken text and its alignment with the written text.

    Attributes:
        text: What a voice should say.
        pieces: Contiguous and ordered; together they cover both texts. Equal lengths mean a character-wise copy,
            otherwise the piece is a unit ("$5" and "five dollars").
    """

    text: str
    pieces: tuple[Piece, ...]

    def written_span(self, start: int, end: int) -> tuple[int, int]:
        """The written span behind `text[start:end]`; a rewritten unit counts whole.

        Silent text at either edge is left out. An empty span gives the place where it stands.
        """
        first = bisect_right(self.pieces, start, key=lambda p: p.s1)
        if first == len(self.pieces):
            last_end = self.pieces[-1].w1 if self.pieces else 0
            return last_end, last_end
        piece = self.pieces[first]
        low = piece.w0 + (start - piece.s0 if piece.w1 - piece.w0 == piece.s1 - piece.s0 else 0)
        if end <= start:
            return low, low
        piece = self.pieces[min(bisect_left(self.pieces, end, key=lambda p: p.s1), len(self.pieces) - 1)]
        high = piece.w0 + end - piece.s0 if piece.w1 - piece.w0 == piece.s1 - piece.s0 else piece.w1
        return low, high

    def spoken_span(self, start: int, end: int) -> tuple[int, int]:
        """The spoken span of the written `[start:end]`; a rewritten unit counts whole.

        Empty, at the place where it would stand, when nothing of it is spoken.
        """
        turned = Speakable("", tuple(Piece(p.s0, p.s1, p.w0, p.w1) for p in self.pieces))
        return turned.written_span(start, end)


def speakable(text: str, language: str | None = None, *, silent: int = 0) -> Speakable:
    """Turns a whole piece of written text into what should be spoken.

    Args:
        text: Markdown or plain text. Nothing in it raises.
        language: BCP 47 tag; None is taken for English.
        silent: Leading characters that belong to something silent which began earlier (a think block).
    """
    draft = Draft()
    draft.hush(0, silent)
    _compose(draft, text, silent, _grammar(primary_tag(language)))
    spoken = draft.finish(len(text))
    if not any(map(str.isalnum, spoken)):
        return Speakable("", (Piece(0, len(text), 0, 0),) if text else ())
    return Speakable(spoken, tuple(Piece(*span) for span in draft.pieces))


@dataclass(frozen=True, slots=True)
class _Grammar:
    """A language's rules, and one pattern that finds where any of them may apply."""

    rules: tuple[tuple[Rule, re.Pattern[str]], ...]
    any_rule: re.Pattern[str]
    wording: Wording


@lru_cache(maxsize=32)
def _grammar(tag: str) -> _Grammar:
    rules = (*MARKUP, *ADDRESSES, *(ENGLISH if tag == "en" else ()), *AMOUNTS, *_SPACES)
    either = "|".join(f"(?P<r{index}>{rule.pattern})" for index, rule in enumerate(rules))
    return _Grammar(
        tuple((rule, re.compile(rule.pattern, re.MULTILINE)) for rule in rules),
        re.compile(either, re.MULTILINE),
        wording(tag),
    )


def _compose(draft: Draft, text: str, start: int, grammar: _Grammar) -> None:
    """Writes `text[start:]` into the draft: what no rule knows is copied."""
    copied = place = start
    while (found := grammar.any_rule.search(text, place)) is not None:
        first = int(found.lastgroup[1:]) if found.lastgroup else 0
        applied = _apply(text, found.start(), first, grammar)
        if applied is None:
            place = max(found.start() + 1, place + 1)
            continue
        rule, end, spoken = applied
        draft.copy(copied, text[copied : found.start()])
        if spoken.strip():
            draft.say(found.start(), end, spoken)
        else:
            draft.hush(found.start(), end, space=bool(spoken), pause=rule.pause)
        copied = place = end
    draft.copy(copied, text[copied:])


def _apply(text: str, at: int, first: int, grammar: _Grammar) -> tuple[Rule, int, str] | None:
    """The first rule from `first` on that applies at the place, where its match ends, and what it says."""
    for rule, pattern in grammar.rules[first:]:
        found = pattern.match(text, at)
        if found is not None and found.end() > at:
            spoken = rule.say(found, grammar.wording)
            if spoken is not None:
                return rule, found.end(), spoken
    return None


_SPACES = (
    Rule("line_break", r"\s*[\n\r\u2028\u2029]\s*", lambda m, w: "", "."),
    Rule("spaces", r"\s{2,}", lambda m, w: " "),
)
