"""The offline agent: what it answers to what callers say, and how it streams."""

from __future__ import annotations

import json
from datetime import datetime

import pytest
from pipecat.frames.frames import (
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
)
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.tests.utils import SleepFrame, run_test

from voxagent_agent.offline import OfflineLLM
from voxagent_agent.passages import PASSAGES
from voxagent_agent.replies import HELP, answer

NOON = datetime(2026, 5, 3, 12, 5)


def user(text):
    return {"role": "user", "content": text}


def bot(text):
    return {"role": "assistant", "content": text}


def cut(heard, unheard, partly="", said_over=""):
    fields = {"heard": heard, "partly": partly, "unheard": unheard, "said_over": said_over}
    note = f"The caller spoke over your last reply. {json.dumps({'interrupted': fields})}"
    return {"role": "developer", "content": note}


def reply(*messages):
    return answer([{"role": "system", "content": "Be brief."}, *messages], NOON)


@pytest.mark.parametrize(
    ("said", "begins"),
    [
        ("Hello there.", "Hello."),
        ("Thank you very much", "You are welcome."),
        ("Okay, goodbye!", "Goodbye."),
        ("What can you do?", HELP),
        ("Tell me what you can do.", HELP),
        ("What time is it?", "It is 12:05 p.m."),
        ("Tell me the time, please.", "It is 12:05 p.m."),
        ("Count to five.", "Okay. One, two, three, four, five."),
        ("Can you count to 3?", "Okay. One, two, three."),
        ("count", "Okay. One, two, three, four, five, six, seven, eight, nine, ten."),
        ("Count to a thousand.", "Okay. One, two, three, four, five, six, seven, eight, nine, ten."),
        ("Count to 4000.", "I count up to 100, and no further."),
        ("Count to 0.", "I count up to 100, and no further."),
        ("Count to " + "9" * 5000, "I count up to 100, and no further."),
        ("Spell harbour.", "Sure. Harbour: H, A, R, B, O, U, R."),
        ("My number is 555 0199.", "I understood the number 5, 5, 5, 0, 1, 9, 9."),
        ("I have 2 cats.", "You said: I have 2 cats."),
        ("The weather is nice today.", "You said: The weather is nice today."),
        ("", "I did not catch that."),
        (" ?! ", "I did not catch that."),
    ],
)
def test_simple_requests_get_simple_answers(said, begins):
    assert reply(user(said)).startswith(begins)


@pytest.mark.parametrize("number", ["21", "twenty-one", "twenty one"])
def test_it_counts_to_numbers_as_recognisers_write_them(number):
    assert reply(user(f"count to {number} please")).endswith("nineteen, twenty, twenty-one.")


def test_long_passages_take_turns():
    requests = ["Tell me a story.", "Read something.", "Explain ears.", "How do trains work?", "Another story", "Talk."]
    messages, told = [], []
    for request in [*requests, "tell me one more"]:
        messages.append(user(request))
        told.append(reply(*messages))
        messages.append(bot(told[-1]))
    assert sorted(told[:-1]) == sorted(PASSAGES)
    assert told[-1] == told[0]
    assert all(120 <= len(passage.split()) <= 200 for passage in PASSAGES)


def test_a_reply_that_was_cut_off_is_owned_up_to():
    messages = [user("a story"), bot("The harbour wakes"), cut("The harbour wakes", "long before."), user("I like tea")]
    assert reply(*messages).startswith("Okay. You stopped me after 3 words, at 'wakes'. You said: I like tea.")
    messages = [user("a story"), cut("", "The harbour wakes."), user("what time is it")]
    assert reply(*messages) == "Okay. You stopped me before my first word. It is 12:05 p.m."
    messages = [user("a story"), bot("The,"), cut("The,", "harbour."), user("Stop!")]
    assert reply(*messages) == "Okay. You stopped me after one word, at 'The'. Say go on, and I will."


def test_a_cut_reply_is_mentioned_once_only():
    messages = [bot("One"), cut("One", "two."), user("stop"), bot("Okay. You stopped me."), user("I like tea")]
    assert reply(*messages).startswith("You said: I like tea.")


def test_it_goes_on_where_it_was_cut_off():
    story = [user("a story"), bot("The harbour wakes"), cut("The harbour wakes", ", long before the town does.")]
    assert reply(*story, user("Go on.")) == "Right. long before the town does."
    chat = [user("stop"), bot("Okay. You stopped me after 3 words. Say go on, and I will.")]
    assert reply(*story, *chat, user("please continue")) == "Right. long before the town does."


def test_it_goes_on_with_the_story_when_what_was_cut_off_is_small_talk_about_the_cut():
    story = [user("a story"), bot("The harbour"), cut("The harbour", "wakes early."), user("stop")]
    small_talk = [bot("Okay. You stopped"), cut("Okay. You stopped", "me after 2 words."), user("go on")]
    assert reply(*story, *small_talk) == "Right. wakes early."


def test_what_was_said_to_its_end_is_not_said_again():
    story = [user("a story"), bot("The harbour"), cut("The harbour", "wakes early."), user("go on")]
    assert reply(*story, bot("Right. wakes early."), user("go on")).startswith("That was all of it.")
    assert reply(user("go on")).startswith("That was all of it.")
    again = [bot("Right. wakes"), cut("Right. wakes", "early."), user("go on")]
    assert reply(*story, *again) == "Right. early."


def test_a_turn_in_several_messages_is_one_turn():
    assert reply(user("My number is"), user("4711")).startswith("I understood the number 4, 7, 1, 1.")
    assert reply(user([{"type": "text", "text": "Hello"}])).startswith("Hello.")


@pytest.mark.parametrize(
    "content", ["The caller spoke over it.", "{", '{"interrupted": 3}', '{"interrupted": {"heard": "x"}}', "{}", None]
)
def test_other_developer_messages_are_no_notes(content):
    messages = [bot("One"), {"role": "developer", "content": content}, user("I like tea")]
    assert reply(*messages).startswith("You said: I like tea.")
    assert reply(*messages, user("go on")).startswith("That was all of it.")


async def test_it_streams_its_reply_token_by_token_and_to_its_end():
    context = LLMContext([user("Count to three.")])
    frames, _ = await run_test(OfflineLLM(1000, 0.01), frames_to_send=[LLMContextFrame(context)])
    assert isinstance(frames[0], LLMFullResponseStartFrame)
    assert isinstance(frames[-1], LLMFullResponseEndFrame)
    texts = [frame.text for frame in frames if isinstance(frame, LLMTextFrame)]
    assert len(texts) > 3
    assert "".join(texts) == "Okay. One, two, three."


async def test_an_interruption_ends_the_stream():
    context = LLMContext([user("Tell me a story.")])
    send = [LLMContextFrame(context), SleepFrame(), InterruptionFrame()]
    frames, _ = await run_test(OfflineLLM(1000, 60.0), frames_to_send=send)
    assert any(isinstance(frame, InterruptionFrame) for frame in frames)
    assert not any(isinstance(frame, LLMTextFrame | LLMFullResponseEndFrame) for frame in frames)


@pytest.mark.parametrize(("tokens_per_s", "first_token_s"), [(0, 0.2), (-1, 0.2), (25, -0.1)])
def test_a_stream_that_cannot_be_is_refused(tokens_per_s, first_token_s):
    with pytest.raises(ValueError, match="positive"):
        OfflineLLM(tokens_per_s, first_token_s)
