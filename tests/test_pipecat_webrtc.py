"""The WebRTC transport in a Pipecat pipeline: what is played, what is known of it, and how it stops."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from pipecat.frames.frames import (
    BotStartedSpeakingFrame,
    BotStoppedSpeakingFrame,
    EndFrame,
    Frame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    OutputTransportMessageUrgentFrame,
    TTSSpeakFrame,
    TTSTextFrame,
    UserBackchannelFrame,
    UserMuteStartedFrame,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.transports.base_transport import TransportParams

from tests.conftest import eventually, run_virtual
from tests.test_floor import silence, voice
from tests.webrtc_rig import WebCall, web_call
from voxagent.fake import places
from voxagent.floor import BargeInPolicy
from voxagent_pipecat.webrtc import VoxAgentWebRTCTransport
from voxagent_webrtc import Ended

TEXT = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen."
POLICY = BargeInPolicy(echo_veto=False)


def _said(call: WebCall) -> np.ndarray:
    """The places of the fake model's samples in what was handed over."""
    at, _ = places(call.peer.heard())
    return at


def _unbroken(call: WebCall) -> bool:
    """Whether every sample of the reply was handed over once, in order; a resumption's ramp of 2 ms is no loss."""
    length = len(TEXT) * 1200
    values = np.rint(call.peer.heard()[:length] * 32768).astype(np.int64) - 1
    off = np.count_nonzero(values % 8000 != np.arange(len(values)) % 8000)
    return len(values) == length and off <= 96


def _whole(at: np.ndarray, turns: int = 1) -> bool:
    """Whether the places count up without a hole or a repetition, but where a turn starts."""
    return int(np.count_nonzero(np.diff(at) % 8000 != 1)) <= turns - 1


class Slow(FrameProcessor):
    """Takes its time over interruptions, as a language model does that closes a connection."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, InterruptionFrame):
            await asyncio.sleep(self._seconds)
        await self.push_frame(frame, direction)


def test_a_reply_is_played_whole_and_committed_as_written() -> None:
    async def main() -> None:
        async with web_call() as call:
            await call.reply(TEXT)
            await eventually(lambda: bool(call.spoken))
            await eventually(lambda: call.committed() == [TEXT])
            _, heard, interrupted = call.spoken[0]
            assert (heard.heard, interrupted) == (TEXT, False)
            assert len(call.peer.heard()) >= len(TEXT) * 1200
            assert call.transport.playhead.playout.stats.underruns == 0

    run_virtual(main())


@pytest.mark.parametrize("after_s", [0.05, 0.31, 0.777, 1.5, 2.2])
def test_the_context_gets_what_was_handed_over_and_not_a_word_more(after_s: float) -> None:
    async def main() -> None:
        async with web_call() as call:
            await call.reply(TEXT)
            await call.until_heard(after_s)
            await call.head.broadcast_interruption()
            await eventually(lambda: bool(call.spoken))
            await asyncio.sleep(0.5)
            heard = call.spoken[0][1]
            seconds = len(call.peer.heard()) / 48000
            ends = np.cumsum([len(word) + 1 for word in TEXT.split()]) * 1200 / 48000
            words = int(np.count_nonzero(ends <= seconds + 0.026))
            assert abs(heard.words - words) <= 1
            assert call.committed() == ([heard.heard] if heard.heard else [])

    run_virtual(main())


def test_an_interruption_reaches_the_track_before_it_has_come_down_the_pipeline() -> None:
    async def main() -> None:
        slow = Slow(0.5)
        async with web_call(before_tts=[slow]) as call:
            await call.reply(TEXT)
            await call.until_heard(0.8)
            at_s = asyncio.get_running_loop().time()
            await call.head.broadcast_interruption()
            await asyncio.sleep(1.5)
            assert call.peer.last_audible_s() - at_s <= 0.0201
            assert _whole(_said(call))

    run_virtual(main())


@pytest.mark.parametrize("busy_s", [0.0, 0.12])
def test_nothing_of_a_cut_reply_is_heard_in_the_next_one(busy_s: float) -> None:
    class Busy(FrameProcessor):
        async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
            await super().process_frame(frame, direction)
            if isinstance(frame, InterruptionFrame) and busy_s:
                await asyncio.sleep(busy_s)
            await self.push_frame(frame, direction)

    async def main() -> None:
        for after_s in (0.1, 0.43, 1.0):
            async with web_call(before_output=[Busy()]) as call:
                await call.reply(TEXT)
                await call.until_heard(after_s)
                await call.head.broadcast_interruption()
                at_s = asyncio.get_running_loop().time()
                await call.reply("another reply.")
                await eventually(lambda: len(call.spoken) == 2)
                assert call.spoken[1][1].heard == "another reply."
                at, _ = places(call.peer.heard(since_s=at_s + 0.021))
                assert at[0] <= 960  # a frame may hold the fade and the beginning
                assert _whole(at)
                assert call.committed()[-1] == "another reply."

    run_virtual(main())


def test_pause_and_resume_lose_no_sample_and_no_word_early() -> None:
    async def main() -> None:
        async with web_call() as call:
            await call.reply(TEXT)
            await call.until_heard(0.6)
            call.transport.playhead.playout.pause()
            await asyncio.sleep(0.1)
            words = len(call.played.of(TTSTextFrame))
            await asyncio.sleep(3.0)
            assert len(call.played.of(TTSTextFrame)) == words
            call.transport.playhead.playout.resume()
            await eventually(lambda: bool(call.spoken))
            assert _unbroken(call)
            await eventually(lambda: call.committed() == [TEXT])

    run_virtual(main())


def test_uninterruptible_speech_is_heard_to_its_end() -> None:
    async def main() -> None:
        async with web_call(policy=POLICY) as call:
            frame = TTSSpeakFrame(TEXT)
            frame.interruptible = False
            await call.send(frame)
            await call.until_heard(0.5)
            await call.peer.say(voice(1.2))
            await call.head.broadcast_interruption()
            await eventually(lambda: bool(call.spoken))
            assert call.spoken[0][1].heard == TEXT
            assert _whole(_said(call))

    run_virtual(main())


def test_the_caller_takes_the_floor() -> None:
    async def main() -> None:
        async with web_call(policy=POLICY) as call:
            await call.reply(TEXT, every_s=0.02)
            await call.until_heard(0.5)
            before_s = asyncio.get_running_loop().time()
            await call.peer.say(voice(1.0))
            await eventually(lambda: bool(call.spoken))
            _, heard, interrupted = call.spoken[0]
            assert interrupted
            assert call.peer.last_audible_s() - before_s < 0.3
            await eventually(lambda: call.committed() == [heard.heard])

    run_virtual(main())


def test_a_cough_costs_no_sample() -> None:
    async def main() -> None:
        async with web_call(policy=replace(POLICY, duck_db=0.0)) as call:
            await call.reply(TEXT)
            await call.until_heard(0.5)
            await call.peer.say(np.concatenate((voice(0.3), silence(1.5))))
            await eventually(lambda: bool(call.spoken))
            assert not call.spoken[0][2]
            assert _unbroken(call)
            assert not call.played.of(UserBackchannelFrame, InterruptionFrame)

    run_virtual(main())


def test_a_microphone_that_is_switched_off_in_mid_word_does_not_hold_the_bot() -> None:
    async def main() -> None:
        async with web_call(policy=POLICY) as call:
            await call.reply(TEXT)
            await call.until_heard(0.5)
            await call.peer.say(voice(0.3))
            await eventually(lambda: bool(call.spoken))
            assert call.spoken[0][1].heard == TEXT
            assert not call.spoken[0][2]

    run_virtual(main())


def test_a_caller_within_their_own_turn_still_stops_the_bot() -> None:
    async def main() -> None:
        async with web_call(policy=POLICY) as call:
            await call.reply(TEXT)
            await call.until_heard(0.3)
            await call.peer.say(voice(1.0))
            await eventually(lambda: len(call.spoken) == 1)
            await call.reply(TEXT)
            await call.until_heard(1.0)
            await call.peer.say(voice(1.0))
            await eventually(lambda: len(call.spoken) == 2)
            assert call.spoken[1][2]

    run_virtual(main())


def test_the_bot_falls_silent_in_the_order_of_the_pipeline() -> None:
    async def main() -> None:
        async with web_call() as call:
            await call.reply(TEXT)
            await eventually(lambda: bool(call.played.of(LLMFullResponseEndFrame)))
            (started_s,), (stopped_s,) = (
                call.played.at(BotStartedSpeakingFrame),
                call.played.at(BotStoppedSpeakingFrame),
            )
            spoke = [at_s for at_s, frame in call.peer.frames if frame.speech_samples]
            assert abs(started_s - spoke[0]) <= 0.06
            assert 0 <= stopped_s - spoke[-1] <= 0.05
            assert max(call.played.at(TTSTextFrame)) <= stopped_s

    run_virtual(main())


def test_the_end_of_the_pipeline_waits_for_the_last_word() -> None:
    async def main() -> None:
        async with web_call() as call:
            await call.reply(TEXT)
            await call.until_heard(0.1)
        assert call.spoken[0][1].heard == TEXT
        assert call.peer.closed

    run_virtual(main())


@pytest.mark.parametrize("reason", [Ended.HUNG_UP, Ended.VANISHED, Ended.CLOSED])
def test_a_call_that_ends_elsewhere_is_reported_and_leaves_nothing_behind(reason: Ended) -> None:
    async def main() -> None:
        async with web_call(end=False) as call:
            gone: list[object] = []
            call.transport.add_event_handler("on_client_disconnected", lambda *event: gone.append(event))
            await call.reply(TEXT)
            await call.until_heard(0.4)
            await call.peer.vanish(reason)
            await eventually(lambda: bool(gone))
        assert len(call.peer.heard()) < len(TEXT) * 1200

    run_virtual(main())


@pytest.mark.parametrize("sample_rate", [16000, 22050, 24000, 44100])
def test_other_rates_are_resampled_once_and_whole(sample_rate: int) -> None:
    async def main() -> None:
        async with web_call(sample_rate=sample_rate) as call:
            await call.reply("one two three.")
            await eventually(lambda: bool(call.spoken))
            assert call.spoken[0][1].heard == "one two three."
            assert abs(len(call.peer.heard()) / 48000 - 14 * 1200 / 48000) < 0.045

    run_virtual(main())


@pytest.mark.parametrize("sample_rate", [16000, 22050, 44100])
def test_odd_rates_leave_no_reply_waiting_for_its_end(sample_rate: int) -> None:
    async def main() -> None:
        async with web_call(sample_rate=sample_rate) as call:
            for number, text in enumerate(["one two three.", "four five.", TEXT, "six."], 1):
                await call.reply(text)
                await eventually(lambda n=number: len(call.played.of(LLMFullResponseEndFrame)) == n)
                await eventually(lambda n=number: len(call.spoken) == n)
                assert call.spoken[-1][1].heard == text
                (at_s,) = call.played.at(LLMFullResponseEndFrame)[number - 1 :]
                assert 0 <= at_s - call.peer.last_audible_s() <= 0.1
            assert call.committed() == ["one two three.", "four five.", TEXT, "six."]

    run_virtual(main())


@pytest.mark.parametrize("also", [(), (TTSSpeakFrame("and goodbye."),)])
def test_a_pipeline_that_ends_after_the_caller_has_gone_does_not_wait_for_ears(also: tuple[Frame, ...]) -> None:
    async def main() -> None:
        async with web_call(end=False) as call:
            await call.reply(TEXT)
            await call.until_heard(0.8)
            await call.peer.vanish(Ended.HUNG_UP)
            await call.send(*also, EndFrame())
            await eventually(call.worker.has_finished, 20.0)
            assert call.spoken[0][2]

    run_virtual(main())


@pytest.mark.parametrize("after_s", [0.3, 0.83, 1.4])
def test_words_that_were_queued_when_the_caller_hung_up_were_not_heard(after_s: float) -> None:
    async def main() -> None:
        async with web_call(end=False) as call:
            await call.reply(TEXT)
            await call.until_heard(after_s)
            await call.peer.vanish(Ended.HUNG_UP)
            await eventually(lambda: bool(call.spoken))
            _, heard, interrupted = call.spoken[0]
            assert interrupted
            ends = np.cumsum([len(word) + 1 for word in TEXT.split()]) * 1200
            whole = int(np.count_nonzero(ends <= len(call.peer.heard()) + 1200))
            assert whole - 1 <= heard.words <= whole
            await asyncio.sleep(1.0)
            assert len(call.played.of(TTSTextFrame)) <= whole

    run_virtual(main())


def test_speech_waits_while_the_caller_is_lost_and_goes_on_where_it_was() -> None:
    async def main() -> None:
        async with web_call(policy=POLICY) as call:
            await call.reply(TEXT)
            await call.until_heard(0.8)
            assert call.peer.listener is not None
            call.peer.listener.lost()
            known = len(call.peer.heard())
            await asyncio.sleep(10.0)
            assert len(call.peer.heard()) == known
            assert not call.spoken
            call.peer.listener.connected()
            await eventually(lambda: bool(call.spoken))
            assert call.spoken[0][1].heard == TEXT
            assert _unbroken(call)

    run_virtual(main())


def test_words_of_a_cut_reply_do_not_turn_up_when_the_interruption_is_swallowed() -> None:
    async def main() -> None:
        async with web_call() as call:
            await call.reply(TEXT)
            await call.until_heard(0.5)
            await call.head.push_frame(InterruptionFrame(), FrameDirection.UPSTREAM)
            words = len(call.played.of(TTSTextFrame))
            await asyncio.sleep(4.0)
            spoken = sum(len(frame.text) + 1 for frame in call.played.of(TTSTextFrame)[:words]) * 1200
            assert spoken <= 0.6 * 48000
            said = [frame.text for frame in call.played.of(TTSTextFrame) if frame.append_to_context]
            heard = len(call.peer.heard()) / 1200
            assert sum(len(word) + 1 for word in said) <= heard + 1
            assert call.spoken[0][2]
            await call.reply("another reply.")
            await eventually(lambda: len(call.spoken) == 2)
            assert call.spoken[1][1].heard == "another reply."

    run_virtual(main())


def test_a_reply_that_has_not_begun_to_sound_outlives_a_swallowed_interruption() -> None:
    async def main() -> None:
        async with web_call() as call:
            await call.reply(TEXT)
            await call.until_heard(0.5)
            await call.head.push_frame(InterruptionFrame(), FrameDirection.UPSTREAM)
            await asyncio.sleep(1.9)
            await call.reply("one ", "two ", "three ", "four.", every_s=0.1)
            await eventually(lambda: len(call.spoken) == 2)
            assert [one[1].heard for one in call.spoken[1:]] == ["one two three four."]

    run_virtual(main())


@pytest.mark.parametrize("from_s", [0.20, 0.24, 0.28, 0.32, 0.36])
def test_uninterruptible_speech_is_never_held_back(from_s: float) -> None:
    async def main() -> None:
        async with web_call(policy=POLICY) as call:
            await call.reply("one two three four five")
            notice = TTSSpeakFrame(TEXT)
            notice.interruptible = False
            await call.send(notice)
            await call.until_heard(from_s)
            await call.peer.say(voice(0.3))
            await eventually(lambda: len(call.spoken) == 2, 8.0)
            assert call.spoken[1][1].heard == TEXT
            assert not call.transport.playhead.playout.paused
            assert np.abs(call.peer.heard()[-4800:]).max() > 0.1

    run_virtual(main())


@pytest.mark.parametrize("rung_s", [0.14, 0.3])
def test_a_caller_who_is_muted_in_mid_word_does_not_hold_the_bot(rung_s: float) -> None:
    async def main() -> None:
        async with web_call(policy=POLICY) as call:
            await call.reply(TEXT)
            await call.until_heard(0.5)
            await call.peer.say(voice(rung_s))
            await call.head.push_frame(UserMuteStartedFrame(), FrameDirection.UPSTREAM)
            await call.peer.say(voice(2.0))
            await eventually(lambda: bool(call.spoken), 8.0)
            assert call.spoken[0][1].heard == TEXT
            assert not call.spoken[0][2]

    run_virtual(main())


def test_a_backchannel_inside_a_turn_does_not_wipe_the_turn() -> None:
    async def main() -> None:
        async with web_call(policy=POLICY) as call:
            await call.reply(TEXT)
            await call.until_heard(0.3)
            await call.peer.say(voice(1.0))
            await call.recognise("I want the other harbour.")
            await call.reply(TEXT)
            await call.until_heard(0.3)
            await call.peer.say(np.concatenate((voice(0.14), silence(0.2))))
            await call.recognise("Okay.")
            await asyncio.sleep(3.0)
            said = [m["content"] for m in call.context.get_messages() if m["role"] == "user"]
            assert any("the other harbour" in text for text in said)

    run_virtual(main())


def test_messages_go_both_ways() -> None:
    async def main() -> None:
        async with web_call() as call:
            got: list[object] = []
            call.transport.add_event_handler("on_app_message", lambda _, message, sender: got.append((message, sender)))
            await call.send(OutputTransportMessageUrgentFrame({"hello": 1}))
            assert call.peer.listener is not None
            call.peer.listener.message({"to": "bot"})
            await eventually(lambda: bool(got) and bool(call.peer.sent))
            assert got == [({"to": "bot"}, "peer")]
            assert call.peer.sent == [{"hello": 1}]

    run_virtual(main())


def test_a_swallowed_interruption_does_not_silence_the_bot_for_ever() -> None:
    async def main() -> None:
        async with web_call() as call:
            await call.head.push_frame(InterruptionFrame(), FrameDirection.UPSTREAM)
            await asyncio.sleep(2.5)
            await call.reply(TEXT)
            await eventually(lambda: bool(call.spoken))
            assert call.spoken[0][1].heard == TEXT

    run_virtual(main())


def test_a_slow_model_is_an_underrun_and_a_slow_language_model_is_none() -> None:
    async def main() -> None:
        async with web_call() as call:
            await call.reply("one two three four, ", "five six seven.", every_s=3.0)
            await eventually(lambda: bool(call.spoken))
            assert call.transport.playhead.playout.stats.underruns == 0

    run_virtual(main())


@pytest.mark.parametrize(
    ("bad", "cure"),
    [({"video_out_enabled": True}, "carries no video"), ({"headroom_ms": 20}, "between 60 and 200")],
)
def test_what_cannot_work_is_refused(bad: dict[str, object], cure: str) -> None:
    async def main() -> None:
        headroom = {key: value for key, value in bad.items() if key == "headroom_ms"}
        params = {key: value for key, value in bad.items() if key != "headroom_ms"}
        from tests.webrtc_rig import PullPeer

        with pytest.raises(ValueError, match=cure):
            VoxAgentWebRTCTransport(PullPeer(), TransportParams(**params), **headroom)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="webrtc_connection"):
            VoxAgentWebRTCTransport(object(), TransportParams())
        with pytest.raises(ValueError, match="needs a policy"):
            VoxAgentWebRTCTransport(PullPeer(), TransportParams()).user_turn_start_strategy()

    run_virtual(main())
