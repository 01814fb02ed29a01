"""What the normaliser keeps silent: markdown, code fences, tags, think blocks, stage directions.

Pure; the shape of a rule is `rules.Rule`.
"""

from __future__ import annotations

import re

from voxagent.spoken.numbers import Wording
from voxagent.spoken.rules import Rule, silent

_PAUSE = r"\[(?:(?:long |short )?pause|break|silence)(?:[: ] ?[\d.]+ ?m?s?)?\](?!\()"
_CUE = (
    r"\[(?:sighs?|laugh(?:s|ing|ter)?|chuckles?|breath(?:es)?|inhales?|exhales?|whispers?|"
    r"gasps?|clears throat|beat)\](?!\()"
)
_THOUGHT = r"(?:think|thinking|thought|reasoning)"
_FENCE = r"^[ \t>]*```[\s\S]*?(?:^[ \t>]*```[^\n]*$|\Z)"
_LINES = "|".join(rf"^[ \t]*(?:{re.escape(mark)}[ \t]*){{3,}}$" for mark in "-*_=")
_STARS = r"(?<![\w*])\*{1,3}(?=[^\s*])|(?<=[^\s*])\*{1,3}(?![\w*])|(?<=\W)\*{2,3}(?=\w)|(?<=\w)\*{2,3}(?=\w)"
_UNPRINTABLE = (
    r"[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\ufffd\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufe0e\ufe0f]+"
)

_TAG_NAME = re.compile(r"[\[</]+([\w-]+)")


def _say_tag(m: re.Match[str], w: Wording) -> str | None:
    """Voice tags go through to an engine that knows them."""
    name = _TAG_NAME.match(m.group())
    known = name is not None and name.group(1).lower() in w.reading.tags
    return m.group() if known else ""


def _say_code(m: re.Match[str], w: Wording) -> str | None:
    """A block of code by the user's choice."""
    match w.reading.code:
        case "announce":
            return w.word("code_omitted") + "."
        case "read":
            return None
    return ""


MARKUP: tuple[Rule, ...] = (
    Rule("think", "s", rf"<{_THOUGHT}\b[^>]*>[\s\S]*?(?:</{_THOUGHT}>|\Z)", silent),
    Rule("fence", "l", _FENCE, _say_code, "."),
    Rule("fence_line", "l", r"^[ \t>]*```[^\n`]*$", silent, "."),
    Rule("comment", "s", r"<!--[\s\S]*?-->", silent),
    Rule("tag", "s", r"</?[A-Za-z][^<>\n]{0,300}>", _say_tag),
    Rule("rule_line", "l", _LINES, silent, "."),
    Rule("table_line", "l", r"^[ \t]*(?:\|[ \t:]*|:)?-{2,}[ \t:|-]*$", silent, "."),
    Rule("heading", "l", r"^[ \t]{0,3}#{1,6}[ \t]+", silent, "."),
    Rule("quote_mark", "l", r"^[ \t]*(?:>[ \t]?)+", silent),
    Rule("bullet", "l", r"^[ \t]*[-*+•◦‣·▪][ \t]+(?:\[[ xX]\][ \t]+)?", silent),
    Rule("image", "s", r"!\[(?=[^\]\n]*\]\()", silent),
    Rule("link", "s", r"\[(?=[^\]\n]*\]\()", silent),
    Rule("link_end", "s", r"(?<=\S)\]\([^)\s]*(?:[ \t]\"[^\"\n]*\")?\)", silent),
    Rule("footnote", "s", r"(?<=\S)\[(?:\d{1,3}|\^\w+)\]", silent),
    Rule("cell_edge", "lws", r"^[ \t]*\|[ \t]*|[ \t]*\|[ \t]*$", silent),
    Rule("cell", "w", r"(?<!\|)[ \t]+\|[ \t]+(?:\|[ \t]+)*", silent, ","),
    Rule("strong", "s", _STARS, silent),
    Rule("under", "s", r"(?<![\w])_{1,3}(?=[^\s_])|(?<=[^\s_])_{1,3}(?!\w)", silent),
    Rule("strike", "s", r"~~", silent),
    Rule("code", "s", r"`+", silent),
    Rule("smile", "s", r"(?<!\S)[:;]-?[)(DPp](?!\w)", silent),
    Rule("pause", "s", _PAUSE, _say_tag, ","),
    Rule("cue", "s", _CUE, _say_tag),
    Rule("unprintable", "s", _UNPRINTABLE, silent),
)  # fmt: skip
"""Before everything else."""
