"""The record of a call: never in the way, whole to the last second, readable, and drawn legibly."""

from __future__ import annotations

import asyncio
import builtins
import json
import logging
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from voxagent.bargein import Action
from voxagent.record import KINDS, CallRecord, Event, read_record, summary
from voxagent.timeline_command import timeline, turns_of

RATE = 24000
QUESTIONS = [
    "hello I would like to change my booking please",
    "and what does the evening train cost",
    "wait how long does it take",
    "okay could you send me that by mail",
]
REPLIES = [
    "Good morning! I looked at your booking for May 3rd, and there are two ways to change it. The first one costs "
    "$25, and it moves you to the evening train at 7:45 p.m. The second one is free.",
    "The evening train is €38.50 in second class, and breakfast is not included.",
    "It takes four hours and twenty minutes, with one change of trains in the middle of the way, where you have "
    "fifteen minutes to find the platform; that has always been enough for everybody so far.",
    "Of course. It is on its way to you now.",
]


class Clock:
    def __init__(self, now_s=100.0):
        self.now_s = now_s

    def __call__(self):
        return self.now_s


class Script:
    """A made-up call, written down by when things happen."""

    def __init__(self, seed=1):
        self.events = []
        self.random = random.Random(seed)
        self.at(0.0, "start", call="c-17", version="0.2", started_at="2025-01-02T10:00:00+00:00", clock_s=100.0)

    def at(self, at_s, kind, **fields):
        self.events.append((at_s, kind, fields))

    def caller(self, at_s, text, wait_s=0.5):
        """Says something; returns when the bot begins to answer."""
        end_s = at_s + 0.35 * len(text.split())
        self.at(at_s, "user_turn", event="started")
        middle = (at_s + end_s) / 2
        for on_s, off_s in ((at_s, middle - 0.1), (middle, end_s)):
            self.at(on_s, "user_voice", on=True)
            self.at(off_s, "user_voice", on=False)
        self.at(end_s + 0.18, "transcript", text=text, final=True, ms=140)
        self.at(end_s + 0.2, "user_turn", event="stopped")
        self.at(end_s + 0.21, "llm", event="request")
        self.at(end_s + 0.45, "llm", event="first_token")
        self.at(end_s + wait_s + 0.2, "latency", response_ms=1000 * wait_s + 200, parts={"turn": 200, "stt": 40})
        return end_s + wait_s + 0.2

    def bot(self, turn, at_s, text, cut_s=None):
        """Speaks from `at_s` on, cut after some seconds; returns when it is silent."""
        words, offset, heard = text.split(), 0, []
        for index, word in enumerate(words):
            self.at(at_s - 0.3 + 0.04 * index, "token", turn=turn, text=word + " ")
        for index in range(0, len(words), 8):
            phrase = " ".join(words[index : index + 8])
            self.at(at_s - 0.2 + 0.045 * index, "phrase", turn=turn, text=phrase, reason="comma")
        end_s = at_s + 0.34 * len(words)
        for index in range(int((end_s - at_s) / 0.16)):
            made_s = at_s - 0.03 + 0.07 * index
            if cut_s is None or made_s < at_s + cut_s:
                place = {"start_sample": 3840 * index, "samples": 3840, "sample_rate": RATE}
                self.at(made_s, "chunk", turn=turn, made_ms=35.0, **place)
        for edge, kind, on in ((at_s, "bot", "started"), (at_s + 0.02, "packet", "first_audible")):
            self.at(edge, kind, event=on)
        silent_s = end_s if cut_s is None else at_s + cut_s
        for index, word in enumerate(words):
            heard_s = at_s + 0.34 * (index + 1) - 0.02
            if heard_s <= silent_s:
                self.at(heard_s, "word", turn=turn, text=word, start=offset, end=offset + len(word))
                heard.append(word)
            offset += len(word) + 1
        rest = words[len(heard) :]
        if cut_s is None:
            self.at(end_s, "spoken", turn=turn, heard=text)
        else:
            self.at(
                silent_s + 1.2,
                "cut",
                turn=turn,
                heard=" ".join(heard),
                partly=rest[0],
                unheard=" ".join(rest),
                said_over="wait",
                position_ms=1000 * cut_s,
            )
        self.at(silent_s + 0.02, "packet", event="last_audible")
        self.at(silent_s + 0.05, "bot", event="stopped")
        return silent_s

    def over(self, at_s, cancels):
        """The caller speaks over the bot."""
        steps = [("duck", 0.1, "voice"), ("pause", 0.22, "voice")]
        steps.append(("cancel", 0.61, "words") if cancels else ("resume", 0.85, "backchannel"))
        for action, after_s, cause in steps:
            self.at(at_s + after_s, "decision", action=action, cause=cause, voice_ms=int(1000 * after_s))
        if not cancels:
            self.at(at_s, "user_voice", on=True)
            self.at(at_s + 0.3, "user_voice", on=False)
            self.at(at_s + 0.84, "backchannel", text="mm-hm")
            self.at(at_s + 0.24, "packet", event="last_audible")
            self.at(at_s + 0.87, "packet", event="first_audible")

    def record(self, path, **options):
        clock = Clock()
        record = CallRecord(clock, path, call_id="c-17", **options)
        for at_s, kind, fields in sorted(self.events, key=lambda event: event[0]):
            clock.now_s = 100.0 + at_s
            record.note(kind, **fields)
        record.close(wait_s=10)


def long_call(turns=20):
    """Five minutes: every third reply is cut, some are spoken over, packets are late now and then."""
    script = Script()
    now_s, cut = 1.0, False
    for turn in range(1, turns + 1):
        question, reply = QUESTIONS[(turn - 1) % 4], REPLIES[(turn - 1) % 4]
        start_s = script.caller(now_s, question)
        cut = turn % 4 in (1, 3) and turn % 3 != 0
        if cut:
            script.over(start_s + 5.0, cancels=True)
            script.bot(turn, start_s, reply, cut_s=5.22)
            now_s = start_s + 5.0
        else:
            if turn % 4 == 3:
                script.over(start_s + 2.0, cancels=False)
            now_s = script.bot(turn, start_s, reply) + 1.5 + 4 * script.random.random()
    script.at(63.2, "underrun", ms=40.0)
    script.at(50.0, "error", message="the language model did not answer within 10 s: asked again")
    for second in range(1, int(now_s)):
        late_ms = 45.0 if second % 37 == 0 else 1 + 6 * script.random.random()
        script.at(float(second), "packets", count=50, speech=30, late_ms_max=late_ms)
    script.at(now_s, "end", reason="caller hung up", duration_s=now_s, stats={"turns": turns})
    return script


def run_timeline(*arguments):
    app = typer.Typer()
    app.command()(timeline)
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "150"})


def test_events_come_back_as_they_were_noted(tmp_path):
    clock, path = Clock(), tmp_path / "made" / "call.jsonl"
    record = CallRecord(clock, path, call_id="c-1")
    record.note("start", call="c-1", clock_s=record.clock_s)
    clock.now_s = 101.5
    record.note("transcript", text='¿Qué tal?\u2028\n"', final=True)
    record.close(wait_s=10)
    record.close()
    assert read_record(path) == [
        Event(0.0, "start", {"call": "c-1", "clock_s": 100.0}),
        Event(1.5, "transcript", {"text": '¿Qué tal?\u2028\n"', "final": True}),
    ]
    assert record.lost == 0


def test_any_value_becomes_strict_json(tmp_path):
    record = CallRecord(Clock(), tmp_path / "call.jsonl")
    record.note(
        "chunk",
        samples=np.int64(5),
        made_ms=np.float32(0.5),
        worst=float("inf"),
        action=Action.DUCK,
        parts={"a": [1, None, float("nan")], 2: (True,)},
        text="half \ud83d",
        path=Path("x"),
        row=np.arange(2),
    )
    record.close(wait_s=10)
    line = (tmp_path / "call.jsonl").read_text()
    assert json.loads(line, parse_constant=pytest.fail) == {
        "t": 0.0,
        "kind": "chunk",
        "samples": 5,
        "made_ms": 0.5,
        "worst": None,
        "action": "duck",
        "parts": {"a": [1, None, None], "2": [True]},
        "text": "half \ud83d",
        "path": "x",
        "row": [0, 1],
    }


def test_an_event_is_a_copy(tmp_path):
    record, stats = CallRecord(Clock(), keep=1), {"turns": 1}
    record.note("end", stats=stats)
    stats["turns"] = 2
    assert record.kept[0]["stats"] == {"turns": 1}


def test_without_texts_only_their_lengths_are_known(tmp_path):
    seen = []
    record = CallRecord(Clock(), tmp_path / "call.jsonl", texts=False, keep=9)
    record.subscribe(seen.append)
    record.note("transcript", text="my number is 4711", final=True)
    record.note("cut", turn=1, heard="4711", partly="4", unheard="4711", said_over="4711", position_ms=10)
    record.close(wait_s=10)
    assert "4711" not in (tmp_path / "call.jsonl").read_text() + repr(seen) + repr(record.kept)
    assert read_record(tmp_path / "call.jsonl")[0].fields == {"text": 17, "final": True}


def test_listeners_hear_what_comes_until_they_leave():
    record, seen, others = CallRecord(Clock(), keep=2), [], []
    record.note("bot", event="started")
    leave = record.subscribe(lambda event: seen.append(event["kind"]))
    record.subscribe(lambda event: others.append(event["kind"]))
    record.note("token", turn=1, text="a")
    leave()
    leave()
    record.note("word", turn=1, text="a", start=0, end=1)
    record.close()
    record.note("end", reason="late")
    assert seen == ["token"]
    assert others == ["token", "word"]
    assert [event["kind"] for event in record.kept] == ["token", "word"]


def test_a_listener_that_fails_is_dropped_and_the_others_go_on(caplog):
    record, seen, failed = CallRecord(Clock()), [], []

    def fails(event):
        failed.append(event)
        raise RuntimeError("broken page")

    record.subscribe(fails)
    record.subscribe(seen.append)
    record.note("llm", event="request")
    record.note("llm", event="end")
    assert (len(failed), len(seen)) == (1, 2)
    assert [entry.levelno for entry in caplog.records] == [logging.ERROR]


@pytest.mark.parametrize("fields", [{"t": 1.0}, {"kind": "x"}])
def test_time_and_kind_are_reserved(fields):
    with pytest.raises(ValueError, match="another name"):
        CallRecord(Clock()).note("bot", **fields)


def test_a_negative_number_of_kept_events_is_refused():
    with pytest.raises(ValueError, match="0 or more"):
        CallRecord(Clock(), keep=-1)


def test_a_disk_that_stands_still_costs_events_but_no_time(tmp_path):
    # Opening a pipe waits for its reader: a disk that answers when this test says so.
    path = tmp_path / "call.jsonl"
    os.mkfifo(path)
    record = CallRecord(Clock(), path)
    for index in range(10_005):
        record.note("token", turn=1, text=str(index))
    record.close(wait_s=0)
    assert record.lost == 5
    lines = path.read_bytes().splitlines()
    assert len(lines) == 10_001
    assert json.loads(lines[-1]) == {"t": 0.0, "kind": "lost", "count": 5}


def test_a_disk_that_fails_is_logged_once_and_counted(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    record = CallRecord(Clock(), tmp_path / "file" / "call.jsonl", call_id="c-9")
    for _ in range(20):
        record.note("llm", event="end")
    record.close(wait_s=10)
    assert record.lost >= 20
    assert [entry.getMessage().startswith("call c-9: its record ends here") for entry in caplog.records] == [True]


async def test_closing_does_not_hold_up_the_event_loop(tmp_path):
    path = tmp_path / "call.jsonl"
    os.mkfifo(path)
    record = CallRecord(asyncio.get_running_loop().time, path)
    record.note("llm", event="end")
    first, second = asyncio.create_task(record.aclose()), asyncio.create_task(record.aclose())
    await asyncio.sleep(0)
    first.cancel()
    # The reader comes only now: had closing blocked the loop, this line would never run.
    assert path.read_bytes().count(b"\n") == 1
    await second
    assert first.cancelled()


def test_a_process_that_forgets_to_close_still_leaves_a_whole_record(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from voxagent.record import CallRecord\n"
        "record = CallRecord(time.monotonic, Path(sys.argv[1]))\n"
        "for _ in range(100): record.note('llm', event='end')\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "call.jsonl")], check=True, timeout=60)
    assert len(read_record(tmp_path / "call.jsonl")) == 100


@pytest.mark.parametrize("torn", [b'{"t":2.0,"kind":"wo', b'{"t":2.0,"kind":"word","text":"\xc3', b"\x00\x00\x00"])
def test_a_torn_last_line_is_left_out(tmp_path, torn):
    path = tmp_path / "call.jsonl"
    path.write_bytes(b'{"t":1.0,"kind":"llm"}\n' + torn)
    assert read_record(path) == [Event(1.0, "llm", {})]


@pytest.mark.parametrize("line", [b"nonsense", b"[1]", b'{"kind":"llm"}', b'{"t":"1","kind":"llm"}'])
def test_a_bad_line_elsewhere_is_named(tmp_path, line):
    path = tmp_path / "call.jsonl"
    path.write_bytes(b'{"t":1.0,"kind":"llm"}\n' + line + b'\n{"t":1.0,"kind":"llm"}\n')
    with pytest.raises(ValueError, match=r"call\.jsonl, line 2: .*record"):
        read_record(path)


def test_a_call_is_summed_up(tmp_path):
    long_call(turns=5).record(tmp_path / "call.jsonl")
    events = read_record(tmp_path / "call.jsonl")
    call = summary(events)
    assert (call.call, call.turns, call.interruptions, call.end_reason) == ("c-17", 5, 2, "caller hung up")
    assert call.response_median_ms == 700
    rest = [event for event in events if event.kind != "end"]
    unfinished = summary(rest)
    assert (unfinished.end_reason, unfinished.duration_s) == ("unfinished", rest[-1].at_s)
    assert summary([]).turns == 0


def test_the_made_up_call_uses_the_documented_kinds_and_fields(tmp_path):
    for _, kind, fields in long_call().events:
        assert all(name in KINDS[kind] for name in fields)


def test_an_interruption_is_told_from_the_voice_to_the_silence(tmp_path):
    script = Script()
    script.bot(1, 2.0, REPLIES[0], cut_s=5.22)
    script.over(7.0, cancels=True)
    script.bot(2, script.caller(7.0, QUESTIONS[2]), REPLIES[1])
    script.record(tmp_path / "call.jsonl")
    first, second = turns_of(read_record(tmp_path / "call.jsonl"))
    (climb,) = first.climbs
    assert climb.onset_s == 7.0
    assert climb.steps == pytest.approx({"duck": 7.1, "pause": 7.22, "cancel": 7.61})
    assert climb.silent_s == pytest.approx(7.24)
    assert climb.text().plain == "7.00 s duck +100 · pause +220 · silent +240 · cancel +610 ms (words)"
    assert f"{first.heard} {first.unheard}" == REPLIES[0]
    assert second.said == [QUESTIONS[2]]
    assert second.response_ms == 700
    assert (second.heard, second.unheard, second.climbs) == (REPLIES[1], "", [])


def test_a_backchannel_lets_the_turn_go_on(tmp_path):
    script = Script()
    script.bot(1, 2.0, REPLIES[0])
    script.over(7.0, cancels=False)
    script.record(tmp_path / "call.jsonl")
    (turn,) = turns_of(read_record(tmp_path / "call.jsonl"))
    assert [climb.text().plain for climb in turn.climbs] == [
        "7.00 s duck +100 · pause +220 · silent +240 · resume +850 ms (backchannel)"
    ]
    assert turn.backchannels == ["mm-hm"]
    assert turn.heard == REPLIES[0]


def test_a_cancel_without_a_voice_counts_from_itself():
    decision = Event(9.0, "decision", {"action": "cancel", "cause": "hung up"})
    begun, silent = Event(1.0, "token", {"turn": 1, "text": "a"}), Event(9.1, "bot", {"event": "stopped"})
    (turn,) = turns_of([begun, decision, silent])
    assert turn.climbs[0].onset_s is None
    assert turn.climbs[0].text().plain == "9.00 s cancel +0 · silent +100 ms (hung up)"


def test_the_command_tells_the_turns_and_draws_them(tmp_path):
    long_call(turns=8).record(tmp_path / "call.jsonl")
    result = run_timeline(tmp_path / "call.jsonl", "--out", tmp_path / "call.png")
    assert result.exit_code == 0, result.output
    assert "call c-17" in result.output
    assert "answers in 700 ms (median)" in result.output
    assert "the language model did not answer" in result.output
    assert (tmp_path / "call.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("texts", [True, False])
def test_a_few_seconds_can_be_looked_at(tmp_path, texts):
    long_call(turns=4).record(tmp_path / "call.jsonl", texts=texts)
    result = run_timeline(tmp_path / "call.jsonl", "--out", tmp_path / "call.svg", "--from", 2, "--to", 12)
    assert result.exit_code == 0, result.output
    assert ("booking" in result.output) is texts
    assert "twenty minutes" not in result.output
    assert "<svg" in (tmp_path / "call.svg").read_text()


def test_a_long_call_takes_several_pictures(tmp_path, monkeypatch):
    monkeypatch.setattr("voxagent.drawing._ROWS_A_PICTURE", 1)
    script = Script()
    script.caller(3.0, "こんにちは 元気ですか $1 and $2")
    script.at(31.0, "end", reason="time", duration_s=31.0, stats={})
    script.record(tmp_path / "call.jsonl")
    result = run_timeline(tmp_path / "call.jsonl", "--out", tmp_path / "call.png")
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in tmp_path.glob("*.png")) == ["call-2.png", "call.png"]


@pytest.mark.parametrize(
    ("options", "cure"),
    [
        (["--from", "50", "--to", "40"], "nothing lies between"),
        (["--out", "missing/call.png"], "make it first"),
        (["--out", "call.xyz"], "supported formats"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_its_cure(tmp_path, monkeypatch, options, cure):
    monkeypatch.chdir(tmp_path)
    long_call(turns=1).record(tmp_path / "call.jsonl")
    result = run_timeline("call.jsonl", "--out", "call.png", *options)
    assert result.exit_code == 2
    assert cure in result.output


@pytest.mark.parametrize(("content", "cure"), [(b"", "no events"), (b"hello\n", "line 1"), (None, "No such file")])
def test_a_file_that_is_no_record_is_refused(tmp_path, content, cure):
    if content is not None:
        (tmp_path / "call.jsonl").write_bytes(content)
    result = run_timeline(tmp_path / "call.jsonl")
    assert result.exit_code == 2
    assert cure in result.output


def test_without_matplotlib_the_table_is_told_and_the_picture_names_the_cure(tmp_path, monkeypatch):
    long_call(turns=1).record(tmp_path / "call.jsonl")
    original = builtins.__import__

    def without(name, *rest):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    assert run_timeline(tmp_path / "call.jsonl").exit_code == 0
    result = run_timeline(tmp_path / "call.jsonl", "--out", tmp_path / "call.png")
    assert result.exit_code == 2
    assert "pip install matplotlib" in result.output
