"""What the offline agent answers. Pure: the conversation in, a reply out; it remembers nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from num2words import num2words

from voxagent_agent.passages import PASSAGES

Message = Mapping[str, object]

HELP = (
    "Sure. I am the offline agent, and I show what this voice can do. Ask me for a story and speak over me: I stop "
    "at once, and I will know at which word. You can say go on, and I will. I also tell the time, count, spell a word "
    "and read numbers back. Anything else I repeat as I understood it."
)
_STOPPED = "Okay. You stopped me"
_COUNT_LIMIT = 100
_NUMBERS = {num2words(n): n for n in range(1, _COUNT_LIMIT + 1)}
# Fewer are an amount or a date, not a number somebody wants to hear again.
_DIGITS_READ_BACK = 3

_STORY = re.compile(r"\b(story|stories|tell me|read|explain|passage|talk|how (do|does|did) .+ work)\b", re.IGNORECASE)
_ON = re.compile(r"\b(go on|continue|carry on|keep going|go ahead)\b", re.IGNORECASE)
_STOP = re.compile(r"\W*(stop|wait|hold on|one moment|hang on)( please| a moment| a second)?\W*", re.IGNORECASE)
_HELP = re.compile(
    r"\b(help|what can you|what do you do|what you can|who are you|what are you|how do you work)\b", re.IGNORECASE
)
_HELLO = re.compile(r"^\W*(hello|hi|hey|good (morning|afternoon|evening))\b", re.IGNORECASE)
_BYE = re.compile(r"\b(good ?bye|bye|see you)\b", re.IGNORECASE)
_THANKS = re.compile(r"\b(thanks|thank you)\b", re.IGNORECASE)
_TIME = re.compile(r"\b(what time|what(['’]s| is) the time|tell me the time|time is it)\b", re.IGNORECASE)
_COUNT = re.compile(r"\bcount\b(?:.*?\bto ([\w-]+(?: [a-z]+)?))?", re.IGNORECASE)
_SPELL = re.compile(r"\bspell (?:me |the word |the name )*([^\W\d_]+)", re.IGNORECASE)
_NOTE = re.compile(r"\{.*\}\s*$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Cut:
    """What is known of a reply that was interrupted."""

    heard: str
    unheard: str

    @property
    def is_passing(self) -> bool:
        """Whether the reply was only about an earlier interruption: nobody wants that to go on."""
        return _plain(f"{self.heard} {self.unheard}").startswith(_STOPPED)


def answer(messages: Sequence[Message], now: datetime) -> str:
    """The reply to a conversation.

    Args:
        messages: Role and content of each, in order, as language models take them. Notes about interruptions have
            the role ``developer`` and end with JSON: ``{"interrupted": {"heard": …, "unheard": …}}``.
        now: For callers who ask for the time.
    """
    said = _said(messages)
    if _ON.search(said):
        rest = _rest(messages)
        return f"Right. {rest}" if rest else "That was all of it. Ask me for another story, if you like."
    cut = _cut(messages)
    where = "" if cut is None else f"{_where(cut)} "
    if _STOP.fullmatch(said):
        return f"{where or 'Okay. '}Say go on, and I will."
    simple = _asked(said, now)
    if simple is None and _STORY.search(said):
        told = sum(_is_story(message) for message in messages)
        return PASSAGES[told % len(PASSAGES)]
    return where + (simple or _small_talk(said))


def _asked(said: str, now: datetime) -> str | None:
    """The answer to a request that names what it wants, if it is one."""
    if _TIME.search(said):
        return f"It is {now.hour % 12 or 12}:{now.minute:02d} {'p.m.' if now.hour >= 12 else 'a.m.'}"
    if spell := _SPELL.search(said):
        return f"Sure. {spell[1].capitalize()}: {', '.join(spell[1].upper())}."
    if count := _COUNT.search(said):
        return _counted(count[1] or "ten")
    return HELP if _HELP.search(said) else None


def _counted(to: str) -> str:
    words = to.casefold().split()
    # Recognisers write "twenty one", "twenty-one" or 21.
    spellings = ("-".join(words), " ".join(words), words[0])
    last = next(
        (_NUMBERS[one] for one in spellings if one in _NUMBERS), int(words[0][:6]) if words[0].isdecimal() else 10
    )
    if not 1 <= last <= _COUNT_LIMIT:
        return f"I count up to {_COUNT_LIMIT}, and no further."
    return f"Okay. {', '.join(str(num2words(n)) for n in range(1, last + 1)).capitalize()}."


def _small_talk(said: str) -> str:
    if _BYE.search(said):
        return "Goodbye. It was nice to talk to you."
    if _THANKS.search(said):
        return "You are welcome. Is there anything else?"
    if _HELLO.search(said):
        return "Hello. What would you like to hear? You can ask me for a story, and stop me whenever you like."
    digits = re.findall(r"\d", said)
    if len(digits) >= _DIGITS_READ_BACK:
        return f"I understood the number {', '.join(digits)}. Is that right?"
    words = said.strip().rstrip(".!?")
    return f"You said: {words}. Ask me for a story, if you like." if words else "I did not catch that. Say it again?"


def _where(cut: Cut) -> str:
    words = cut.heard.split()
    if not words:
        return f"{_STOPPED} before my first word."
    count = "one word" if len(words) == 1 else f"{len(words)} words"
    return f"{_STOPPED} after {count}, at {words[-1].strip('.,;:!?')!r}."


def _cut(messages: Sequence[Message]) -> Cut | None:
    """The note about an interruption, if it belongs to the last reply."""
    for message in reversed(messages):
        if message.get("role") == "assistant":
            return None
        if (cut := _read(message)) is not None:
            return cut
    return None


def _rest(messages: Sequence[Message]) -> str:
    """What was left of the last reply worth going on with, unless it was said since."""
    since: list[str] = []
    for message in reversed(messages):
        if message.get("role") == "assistant":
            since.append(_plain(_text(message)))
        cut = _read(message)
        if cut is not None and not cut.is_passing:
            rest = _plain(cut.unheard)
            return "" if any(said.endswith(rest) for said in since) else rest.lstrip(",;:.!?– ")
    return ""


def _read(message: Message) -> Cut | None:
    note = _NOTE.search(_text(message)) if message.get("role") == "developer" else None
    if note is None:
        return None
    try:
        fields = json.loads(note[0])["interrupted"]
        return Cut(str(fields["heard"]), str(fields["unheard"]))
    except (ValueError, LookupError, TypeError):
        return None


def _is_story(message: Message) -> bool:
    said = _text(message)
    return message.get("role") == "user" and _STORY.search(said) is not None and not _ON.search(said)


def _said(messages: Sequence[Message]) -> str:
    """What the caller said last; a turn may come in several messages."""
    parts: list[str] = []
    for message in reversed(messages):
        if message.get("role") != "user":
            break
        parts.insert(0, _text(message))
    return " ".join(parts)


def _text(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")


def _plain(text: str) -> str:
    return " ".join(text.split())
