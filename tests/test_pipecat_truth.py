"""What the language model reads after an interruption: what was heard, and a note about the rest."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pipecat.frames.frames import LLMContextFrame
from pipecat.processors.aggregators.llm_context import LLMContext, LLMSpecificMessage
from pipecat.tests.utils import run_test

from voxagent.engine import Engine
from voxagent.fake import FakeModel
from voxagent.ledger import Heard
from voxagent_pipecat import VoxAgentTTSService
from voxagent_pipecat.truth import NOTE, HeardContext

CUT = Heard("One two three", "four", "four five six.", 3)


async def read(before: list[Any], since: list[Any], *cuts: Heard, notes: bool = True) -> LLMContext:
    """The context as the model reads it after `cuts`: it was asked `before`, and `since` has come."""
    truth = HeardContext(VoxAgentTTSService("fake", engine=Engine(FakeModel)), notes=notes)
    context = LLMContext([*before])  # type: ignore[list-item]
    await run_test(truth, frames_to_send=[LLMContextFrame(context)], expected_down_frames=[LLMContextFrame])
    for cut in cuts:
        await truth._on_turn_spoken(None, "key", cut, True)  # type: ignore[arg-type]
    context.add_messages([*since])  # type: ignore[list-item]
    await run_test(truth, frames_to_send=[LLMContextFrame(context)], expected_down_frames=[LLMContextFrame])
    return context


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def bot(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


@pytest.mark.parametrize(
    "committed",
    [
        [],
        [bot("One two")],
        [bot("One two three")],
        [bot("One two three four five")],
        [bot("One two three four five six.")],
    ],
)
async def test_the_reply_says_what_was_heard_whatever_was_committed(committed: list[dict[str, str]]) -> None:
    context = await read([user("Count.")], [*committed, user("Stop.")], CUT)
    roles = [(m["role"], m["content"]) for m in context.messages if m["role"] != "developer"]
    assert roles == [("user", "Count."), ("assistant", "One two three"), ("user", "Stop.")]


async def test_the_note_stands_before_what_the_caller_said_and_is_json() -> None:
    context = await read([user("Count.")], [bot("One two three"), user("Stop."), user("Please.")], CUT)
    note = str(context.messages[2]["content"])
    assert note.startswith(NOTE)
    assert json.loads(note.removeprefix(NOTE)) == {
        "interrupted": {
            "heard": "One two three",
            "partly": "four",
            "unheard": "four five six.",
            "said_over": "Stop. Please.",
        }
    }


async def test_a_reply_of_which_nothing_was_heard_is_no_reply() -> None:
    nothing = Heard("", "", "One two three.", 0)
    context = await read([user("Count.")], [bot("One"), user("Stop.")], nothing, notes=False)
    assert [m["content"] for m in context.messages] == ["Count.", "Stop."]


async def test_earlier_replies_and_other_texts_are_left_alone() -> None:
    before = [user("Hi."), bot("One two three four five six."), user("Again.")]
    context = await read(before, [bot("Something else."), user("Stop.")], CUT, notes=False)
    assert [m["content"] for m in context.messages][:2] == ["Hi.", "One two three four five six."]
    assert {"Something else.", "One two three"} <= {m["content"] for m in context.messages}


async def test_messages_of_others_at_the_end_do_not_hide_the_reply() -> None:
    since = [bot("One two three"), {"role": "developer", "content": "Ask again."}]
    context = await read([user("Count.")], since, CUT, notes=False)
    assert [m["content"] for m in context.messages] == ["Count.", "One two three", "Ask again."]


async def test_messages_that_only_an_adapter_can_read_are_left_alone() -> None:
    theirs = LLMSpecificMessage("anthropic", {"type": "thinking"})
    context = await read([user("Count."), theirs], [bot("One two three four"), theirs, user("Stop."), theirs], CUT)
    assert [m for m in context.messages if m is theirs] == [theirs] * 3
    said = [m["content"] for m in context.messages if isinstance(m, dict) and m["role"] == "assistant"]
    assert said == ["One two three"]


async def test_without_an_interruption_nothing_changes() -> None:
    context = await read([user("Count.")], [bot("One two three."), user("Thanks.")])
    assert [m["content"] for m in context.messages] == ["Count.", "One two three.", "Thanks."]
