"""What the offline agent answers. Pure: the conversation in, a reply out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Message = Mapping[str, object]

PASSAGES = (
    "Of course. The harbour wakes long before the town does. At four in the morning the first boats come in with their "
    "lamps still lit, and the gulls that slept on the roofs of the warehouses follow them to the quay. Crates are "
    "lifted, ropes are thrown, and somebody always sings, though nobody could tell you what the song is called. By six "
    "o'clock the buyers have gone, the stones have been washed, and the smell of coffee drifts over from the houses on "
    "the hill. Then the ferry sounds its horn for the first time, and the children who go to school on the other side "
    "run down the steps with their bags. I could tell you more about the people who live here, about the old pilot and "
    "his daughter, or about the winter when the sea froze over and the mail was carried across on sledges.",
    "Gladly. When you speak, air from your lungs passes two small folds in your throat, and they open and close more "
    "than a hundred times a second. That alone would be only a buzz. It is your mouth that makes a voice of it: every "
    "time you move your tongue or your lips, you change the shape of the room in which the buzz sounds, and with it "
    "the tones that it lets through. We hear those tones as vowels. The short bursts and hisses between them are the "
    "consonants, and most of what we understand is in them, although they are the softest part of speech. That is why "
    "a bad telephone makes it so hard to tell an F from an S, and why we spell our names with whole words when we are "
    "on the phone.",
    "With pleasure. A train that leaves the coast in the morning has to climb for two hours before it reaches the "
    "plateau. In the old days a second engine was coupled on at the last station in the valley, and it pushed from "
    "behind until the summit, where it dropped back and rolled home alone. The driver of that engine saw more sunrises "
    "than anybody else in the country, and he kept a notebook in which he wrote down the colour of each one. When the "
    "line was electrified the pushing came to an end, but the notebook is still there, in a glass case in the waiting "
    "room, open at a page that says only: grey, then suddenly everything.",
)
HELP = (
    "Sure. I am the offline agent, and I show what this voice can do. Ask me for a story and speak over me: I stop "
    "at once, and I will know at which word. You can say go on, and I will. Or say anything else, and I will repeat "
    "what I understood."
)

_STORY = re.compile(r"\b(story|tell me|read|explain|passage|talk)\b", re.IGNORECASE)
_ON = re.compile(r"\b(go on|continue|carry on|keep going|go ahead)\b", re.IGNORECASE)
_HELP = re.compile(r"\b(help|what can you|who are you|what are you)\b", re.IGNORECASE)
_HELLO = re.compile(r"^\W*(hello|hi|hey|good (morning|afternoon|evening))\b", re.IGNORECASE)
_BYE = re.compile(r"\b(good ?bye|bye|see you)\b", re.IGNORECASE)
_THANKS = re.compile(r"\b(thanks|thank you)\b", re.IGNORECASE)
_COUNT = re.compile(r"\bcount\b", re.IGNORECASE)
_NUMBERS = "one, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve"
_NOTE = re.compile(r"\{.*\}\s*$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Cut:
    """What is known of a reply that was interrupted."""

    heard: str
    unheard: str


def answer(messages: Sequence[Message]) -> str:
    """The reply to a conversation.

    Args:
        messages: Role and content of each, in order, as language models take them.
    """
    said = _last(messages, "user")
    cut = _cut(messages)
    if _ON.search(said) and (rest := _unheard(messages)):
        return f"Right. {rest}"
    if _STORY.search(said):
        told = sum(_told(message) for message in messages)
        return PASSAGES[told % len(PASSAGES)]
    if cut is not None:
        return f"{_where(cut)} {_reply(said)}"
    return _reply(said)


def _reply(said: str) -> str:
    for pattern, reply in (
        (_HELP, HELP),
        (_BYE, "Goodbye. It was nice to talk to you."),
        (_THANKS, "You are welcome. Is there anything else?"),
        (_COUNT, f"Okay. {_NUMBERS}. That is a dozen."),
        (_HELLO, "Hello. What would you like to hear? You can ask me for a story, and stop me whenever you like."),
    ):
        if pattern.search(said):
            return reply
    words = said.strip().rstrip(".!?")
    return f"You said: {words}. Ask me for a story, if you like." if words else "I did not catch that. Say it again?"


def _where(cut: Cut) -> str:
    words = cut.heard.split()
    if not words:
        return "Okay. You stopped me before my first word."
    count = "one word" if len(words) == 1 else f"{len(words)} words"
    return f"Okay. You stopped me after {count}, at {words[-1].strip('.,;:!?')!r}."


def _cut(messages: Sequence[Message]) -> Cut | None:
    """The note about an interruption, if it belongs to the last reply."""
    for message in reversed(messages):
        if message.get("role") == "assistant":
            return None
        if message.get("role") == "developer" and (cut := _read(message)) is not None:
            return cut
    return None


def _unheard(messages: Sequence[Message]) -> str:
    """What was left of the last reply that was interrupted."""
    cuts = [cut for message in messages if (cut := _read(message)) is not None]
    return cuts[-1].unheard if cuts else ""


def _read(message: Message) -> Cut | None:
    note = _NOTE.search(str(message.get("content", "")))
    if message.get("role") != "developer" or note is None:
        return None
    try:
        fields = json.loads(note[0]).get("interrupted", {})
    except ValueError:
        return None
    return Cut(str(fields.get("heard", "")), str(fields.get("unheard", ""))) if fields else None


def _told(message: Message) -> bool:
    content = str(message.get("content", ""))
    return message.get("role") == "user" and _STORY.search(content) is not None and not _ON.search(content)


def _last(messages: Sequence[Message], role: str) -> str:
    return next((str(m.get("content", "")) for m in reversed(messages) if m.get("role") == role), "")
