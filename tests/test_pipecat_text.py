"""Text on its way to the voice: phrases as aggregations, what has no sound, garbage, other processors."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipecat.frames.frames import AggregatedTextFrame, LLMFullResponseEndFrame, TTSSpeakFrame, TTSTextFrame
from pipecat.processors.aggregators.llm_text_processor import LLMTextProcessor
from pipecat.tests.utils import run_test
from pipecat.utils.text.base_text_aggregator import Aggregation

from tests.conftest import run_virtual
from tests.pipecat_rig import fake_call
from voxagent.fake import FakeScript
from voxagent.pronunciations import Pronunciations
from voxagent.reading import Reading
from voxagent_pipecat import SILENT, PhraseAggregator, VoxAgentTTSService, speakable_transform

FAST = FakeScript(samples_per_character=100)


class PhraseNotes:
    """Notes what the voice is given to say."""

    def __init__(self, said):
        self.said = said

    def phrase(self, key, phrase, seed):
        self.said.append(phrase.spoken)

    def chunk(self, key, chunk):
        pass

    def word(self, key, word):
        pass


async def cut(aggregator: PhraseAggregator, *deltas: str) -> list[tuple[str, Aggregation]]:
    """Carry and aggregation, one by one."""
    out = []
    for delta in deltas:
        async for piece in aggregator.aggregate(delta):
            out.append(("" if piece.type == SILENT else aggregator.take_carry(), piece))
    return out + aggregator.rest()


def test_phrases(virtual):
    async def body():
        pieces = await cut(PhraseAggregator(), "Hello there, my ", "friend. How are ", "you today?")
        assert next(piece.text for _, piece in pieces) == "Hello there,"
        assert {piece.type for _, piece in pieces} == {"sentence"}

    virtual(body())


def test_what_has_no_sound_is_an_aggregation_of_its_own(virtual):
    async def body():
        text = "Here is the code:\n```python\nfor word in words: print(word, end='')\n```\nDid you see it?"
        pieces = [piece for _, piece in await cut(PhraseAggregator(), *text)]
        assert [p.text for p in pieces if p.type == SILENT] != []
        assert "print" in " ".join(p.text for p in pieces if p.type == SILENT)
        assert "print" not in " ".join(p.text for p in pieces if p.type != SILENT)

    virtual(body())


PIECES = st.lists(
    st.sampled_from(
        [
            "Hello ",
            "there, ",
            "friend. ",
            "\n",
            "\n\n- ",
            "**bold** ",
            "```",
            "code()",
            " ",
            "😀 ",
            "Dr. ",
            "3.5",
            "! ",
            "…",
        ]
    ),
    max_size=30,
)


@given(PIECES)
def test_aggregations_and_carry_are_the_text(pieces):
    async def body():
        text = "".join(pieces)
        got = await cut(PhraseAggregator(), *pieces)
        sounding = "".join(carry + piece.text for carry, piece in got if piece.type != SILENT)
        silent = [piece.text for _, piece in got if piece.type == SILENT]
        assert text.startswith(sounding)
        assert all(piece in text for piece in silent)
        rest = text[len(sounding) :].strip()
        assert not rest or rest.endswith(silent[-1])

    run_virtual(body())


def test_interruption_forgets_the_text(virtual):
    async def body():
        aggregator = PhraseAggregator()
        async for _ in aggregator.aggregate("Well, let me see what"):
            pass
        assert aggregator.text.text
        assert aggregator.next_deadline_s is not None
        await aggregator.handle_interruption()
        assert aggregator.text.text == ""
        assert aggregator.next_deadline_s is None
        assert [p.text for _, p in await cut(aggregator, "New text.")] == ["New text."]

    virtual(body())


GARBAGE = {
    "emoji": "😀😀🎉" * 20,
    "whitespace": " \n\t\r\n " * 50,
    "surrogates": "Well \ud83d done, \ude00 friend\udfff. Really \ud83d",
    "controls": "He\x00llo\x07 the\x1bre,\x7f my\u200b fri\u2066end.\ufeff\x00",
    "markup": "**__``~~**# #### > > - [x](y) | --- |\n" * 5,
    "mixed": "ok 你好，世界。مرحبا بالعالم. Привет, мир! ok",
    "long": "The quick brown fox jumps over the lazy dog, again and again. " * 160,
    "endless": "a" * 3000,
    "marks": ",;:.!?-–—…()[]{}\"'«»" * 40,
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_does_no_harm(virtual, name):
    async def body():
        async with fake_call(FAST) as f:
            text = GARBAGE[name]
            deltas = [text[i : i + 7] for i in range(0, len(text), 7)]
            await f.call.reply(*deltas)
            await f.call.send(TTSSpeakFrame(text))
            await f.call.until(lambda: f.call.gone_quiet(), 300)
            await f.call.reply("And now a sentence.")
            await f.call.until(lambda: any(h.heard == "And now a sentence." for _, h, _ in f.call.spoken_turns), 200)
            await asyncio.sleep(1)
            assert f.tts.is_usable
            assert [e.error for e in f.call.head.errors if "no audio" not in e.error] == []
            assert f.call.committed()[-1].endswith("And now a sentence.")

    virtual(body())


def test_code_is_in_the_context_but_not_said(virtual):
    async def body():
        async with fake_call(FAST) as f:
            text = "Here is the code:\n```python\nfor word in words: print(word, end='')\n```\nDid you see it?"
            await f.call.reply(*[text[i : i + 5] for i in range(0, len(text), 5)])
            await f.call.until_seen(LLMFullResponseEndFrame)
            await asyncio.sleep(0.5)
            said = " ".join(x.text for x in f.call.played.of(TTSTextFrame))
            assert "print" not in said
            assert said.endswith("Did you see it?")
            [committed] = f.call.committed()
            assert committed.index("code:") < committed.index("print(word") < committed.index("Did you")
            [(_, heard, _)] = f.call.spoken_turns
            assert heard.heard == text

    virtual(body())


def test_unspaced_scripts_stay_unspaced(virtual):
    async def body():
        async with fake_call(FAST) as f:
            await f.call.reply("你好，世界。", "今天天气很好。")
            await f.call.until(lambda: f.call.spoken_turns)
            await asyncio.sleep(0.5)
            assert f.call.committed() == ["你好，世界。今天天气很好。"]

    virtual(body())


def test_rewritten_words_are_committed_as_written(virtual):
    async def body():
        async with fake_call(FAST) as f:
            await f.call.reply("That makes $5 for 2 tickets, Dr. Smith.")
            await f.call.until(lambda: f.call.spoken_turns)
            await asyncio.sleep(0.5)
            assert f.call.committed() == ["That makes $5 for 2 tickets, Dr. Smith."]
            assert f.call.spoken_turns[0][1].heard == "That makes $5 for 2 tickets, Dr. Smith."

    virtual(body())


def test_the_dictionary_changes_what_is_said_and_the_context_keeps_what_was_written(virtual):
    async def body():
        words = Pronunciations.of({"nginx": "engine x"})
        async with fake_call(FAST, tts_options={"reading": Reading(pronunciations=words)}) as f:
            phrases = []
            f.tts.observers.append(PhraseNotes(phrases))
            await f.call.reply("Please restart ngi", "nx for me, at once.")
            await f.call.until(lambda: f.call.spoken_turns)
            await asyncio.sleep(0.5)
            assert f.call.committed() == ["Please restart nginx for me, at once."]
            assert f.call.spoken_turns[0][1].heard == "Please restart nginx for me, at once."
            assert any("engine x" in spoken for spoken in phrases)

    virtual(body())


async def test_the_spoken_form_is_a_transform_for_other_services():
    transform = speakable_transform("en", Reading(url="domain"))
    assert await transform("**See** example.com/a/b for $5.", "sentence") == "See example dot com for five dollars."
    assert await speakable_transform()("Это стоит 5 рублей.", "sentence") == "Это стоит пять рублей."


def test_text_transforms_change_only_what_is_said(virtual):
    async def shout(text: str, _: str) -> str:
        return text.replace("@", " at ")

    async def body():
        async with fake_call(FAST, tts_options={"text_transforms": [("*", shout)]}) as f:
            await f.call.reply("Write to me@home and wait.")
            await f.call.until(lambda: f.call.spoken_turns)
            await asyncio.sleep(0.5)
            assert f.call.committed() == ["Write to me@home and wait."]
            assert "me at home" in f.call.spoken_turns[0][1].heard

    virtual(body())


def test_phrases_in_a_processor_of_their_own(virtual):
    async def body():
        cutter = LLMTextProcessor(text_aggregator=PhraseAggregator())
        async with fake_call(FAST, before_tts=[cutter]) as f:
            await f.call.reply("Hello there, ", "my friend. How ", "are you today? ", "I am fine.")
            await f.call.until(lambda: f.call.spoken_turns)
            await asyncio.sleep(0.5)
            assert f.call.committed() == ["Hello there, my friend. How are you today? I am fine."]

    virtual(body())


def test_pipecat_s_own_test_helper():
    tts = VoxAgentTTSService("fake")
    frames = [
        TTSSpeakFrame("Hi."),
    ]

    async def body():
        down, up = await run_test(tts, frames_to_send=frames)
        names = [type(frame).__name__ for frame in down if not isinstance(frame, AggregatedTextFrame)]
        assert names[0] == "TTSStartedFrame"
        assert "TTSStoppedFrame" in names
        assert up == []

    asyncio.run(body())
