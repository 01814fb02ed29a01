"""Connections between real aiortc peers on loopback: audio both ways, reconnection, vanished peers, bad offers."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import av
import numpy as np
import pytest
from aiortc import RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamTrack

from tests.conftest import eventually
from voxagent.playout import Frame, Playout
from voxagent.session import Position
from voxagent_webrtc import Connection, Ended, Ends, OfferError, Patience, Refused, SentPacket, Signalling

_QUICK = Patience(connect_s=1.5, silent_s=1.0, return_s=1.5)


class Tone(MediaStreamTrack):
    """A microphone: 440 Hz, paced by the loop."""

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        self._index = 0

    async def recv(self) -> av.AudioFrame:
        await asyncio.sleep(0.02)
        t = (np.arange(960) + self._index * 960) / 48000
        pcm = np.round(8000 * np.sin(2 * np.pi * 440 * t)).astype(np.int16)
        frame = av.AudioFrame.from_ndarray(pcm.reshape(1, -1), format="s16", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = 48000, self._index * 960, Fraction(1, 48000)
        self._index += 1
        return frame


class Steps:
    """A bot that speaks without end; how far it got is how much was pulled."""

    def __init__(self) -> None:
        self.playout = Playout(48000, 20, 80)
        self._generation = self.playout.begin()

    def pull(self) -> Frame:
        while self.playout.wants:
            self.playout.push(np.full(960, 0.25, np.float32), self._generation)
        return self.playout.pull()

    def interrupt(self) -> Position | None:
        return Position(self.playout.interrupt(), 48000)


@dataclass
class Events:
    """What a connection told."""

    log: list[object] = field(default_factory=list)

    def connected(self) -> None:
        self.log.append("connected")

    def lost(self) -> None:
        self.log.append("lost")

    def message(self, message: object) -> None:
        self.log.append(message)

    def ended(self, reason: Ended) -> None:
        self.log.append(reason)


@dataclass
class Pair:
    """An agent's connection and its caller."""

    connection: Connection
    events: Events
    source: Steps
    heard: list[np.ndarray]
    packets: list[SentPacket]
    caller: RTCPeerConnection
    channel: Any
    messages: list[str]


async def offer(caller: RTCPeerConnection, *, codec: str | None = None) -> str:
    if codec is not None:
        from aiortc import RTCRtpSender

        wanted = [c for c in RTCRtpSender.getCapabilities("audio").codecs if c.mimeType.lower() == codec]
        caller.getTransceivers()[0].setCodecPreferences(wanted)
    await caller.setLocalDescription(await caller.createOffer())
    return str(caller.localDescription.sdp)


def new_caller() -> tuple[RTCPeerConnection, Any]:
    caller = RTCPeerConnection()
    caller.addTrack(Tone())
    return caller, caller.createDataChannel("chat")


@asynccontextmanager
async def pair(patience: Patience = _QUICK, codec: str | None = None) -> AsyncIterator[Pair]:
    """A call in progress; afterwards nothing of it is left."""
    before = {task for task in asyncio.all_tasks() if not task.done()}
    sockets = _sockets()
    connection, events, source = Connection(patience=patience), Events(), Steps()
    heard: list[np.ndarray] = []
    packets: list[SentPacket] = []
    connection.line.plug(Ends(source, heard.append, on_packet=packets.append))
    connection.listen(events)
    caller, channel = new_caller()
    messages: list[str] = []
    channel.on("message", messages.append)
    sdp = await connection.answer(await offer(caller, codec=codec))
    await caller.setRemoteDescription(RTCSessionDescription(sdp, "answer"))
    await eventually(lambda: "connected" in events.log)
    try:
        yield Pair(connection, events, source, heard, packets, caller, channel, messages)
    finally:
        await connection.close()
        await caller.close()
    await eventually(lambda: {t for t in asyncio.all_tasks() if not t.done()} <= before)
    await eventually(lambda: _sockets() <= sockets)


def _sockets() -> int:
    folder = "/proc/self/fd"
    links = (os.path.join(folder, name) for name in os.listdir(folder))
    return sum(os.readlink(link).startswith("socket:") for link in links if os.path.islink(link))


async def test_audio_goes_both_ways_at_once() -> None:
    async with pair() as call:
        await eventually(lambda: len(call.heard) > 25 and len(call.packets) > 25)
        pcm = np.concatenate(call.heard)
        # The caller's aiortc makes mono stereo, at 3 dB less.
        assert np.abs(pcm[4000:]).max() == pytest.approx(8000 / np.sqrt(2), rel=0.2)
        assert [packet.marker for packet in call.packets[:3]] == [True, False, False]
        numbers = np.array([packet.sequence_number for packet in call.packets])
        assert set(np.diff(numbers) % 65536) == {1}


@pytest.mark.parametrize("codec", ["audio/pcmu", "audio/pcma", "audio/g722"])
async def test_telephone_codecs_are_spoken_and_heard(codec: str) -> None:
    async with pair(codec=codec) as call:
        await eventually(lambda: len(call.heard) > 25 and len(call.packets) > 10)
        assert np.abs(np.concatenate(call.heard)[4000:]).max() == pytest.approx(8000, rel=0.2)


async def test_messages_wait_for_the_channel_and_pings_are_swallowed() -> None:
    async with pair() as call:
        call.connection.send({"first": 1})
        await eventually(lambda: call.channel.readyState == "open")
        for text in ("ping 1", "no json", '{"to": "bot"}'):
            call.channel.send(text)
        await eventually(lambda: {"to": "bot"} in call.events.log and len(call.messages) == 1)
        assert call.events.log == ["connected", {"to": "bot"}]
        assert call.messages == ['{"first": 1}']


async def test_a_caller_who_hangs_up_is_noticed_at_once() -> None:
    async with pair(Patience()) as call:
        await call.caller.close()
        await eventually(lambda: Ended.HUNG_UP in call.events.log, 3.0)


async def test_a_caller_who_vanishes_is_lost_then_gone() -> None:
    async with pair() as call:
        _pull_the_plug(call.caller)
        await eventually(lambda: "lost" in call.events.log, 5.0)
        assert not call.connection.is_connected
        await eventually(lambda: Ended.VANISHED in call.events.log, 6.0)


async def test_speech_goes_on_at_the_same_sample_after_a_reconnection() -> None:
    async with pair(Patience(silent_s=1.0, return_s=10.0)) as call:
        _pull_the_plug(call.caller)
        await eventually(lambda: "lost" in call.events.log, 5.0)
        again, channel = new_caller()
        got: list[str] = []
        channel.on("message", got.append)
        handed = call.source.playout.stats.handed_samples
        answer = await call.connection.answer(await offer(again), restart=True)
        await again.setRemoteDescription(RTCSessionDescription(answer, "answer"))
        await eventually(lambda: call.events.log.count("connected") == 2)
        heard = len(call.heard)
        await eventually(lambda: len(call.heard) > heard + 10)
        assert call.source.playout.stats.handed_samples > handed
        assert call.source.playout.stats.dropped_samples == 0
        await eventually(lambda: channel.readyState == "open")
        call.connection.send("hello again")
        await eventually(lambda: got == ['"hello again"'])
        await again.close()


async def test_a_renegotiation_keeps_the_call() -> None:
    async with pair() as call:
        await eventually(lambda: len(call.packets) > 5)
        call.caller.addTransceiver("video", direction="recvonly")
        answer = await call.connection.answer(await offer(call.caller))
        await call.caller.setRemoteDescription(RTCSessionDescription(answer, "answer"))
        sent = len(call.packets)
        await eventually(lambda: len(call.packets) > sent + 20)
        assert call.events.log == ["connected"]


async def test_a_caller_who_never_connects_is_given_up() -> None:
    connection, events = Connection(patience=_QUICK), Events()
    connection.listen(events)
    caller, _ = new_caller()
    await connection.answer(await offer(caller))
    await eventually(lambda: events.log == [Ended.NEVER_CONNECTED], 6.0)
    with pytest.raises(OfferError, match="over"):
        await connection.answer(await offer(caller))
    with pytest.raises(OfferError, match="over"):
        await connection.add_candidate("", None, None)
    await caller.close()


_NO_AUDIO = "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nt=0 0\r\n"


@pytest.mark.parametrize("sdp", ["", "hello", "v=0", "\x00\xff" * 40, "v=0\r\nm=audio", _NO_AUDIO + "m=audio x\r\n"])
async def test_malformed_offers_are_refused_and_leave_nothing(sdp: str) -> None:
    before = _sockets()
    connection = Connection()
    with pytest.raises(OfferError):
        await connection.answer(sdp)
    await connection.close()
    assert _sockets() <= before


async def test_an_offer_without_audio_is_refused_in_words() -> None:
    caller = RTCPeerConnection()
    caller.createDataChannel("chat")
    with pytest.raises(OfferError, match="no audio"):
        await Connection().answer(await offer(caller))
    await caller.close()


async def test_an_offer_with_codecs_we_lack_is_refused_in_words() -> None:
    caller, _ = new_caller()
    sdp = (await offer(caller)).replace("opus/48000/2", "amr/8000").replace("PCMU/8000", "evs/16000")
    sdp = sdp.replace("PCMA/8000", "evrc/8000").replace("G722/8000", "gsm/8000").replace(" 0 8", " 111 112")
    with pytest.raises(OfferError, match="codec"):
        await Connection().answer(sdp)
    await caller.close()


async def test_a_bad_offer_for_a_call_in_progress_leaves_it_unharmed() -> None:
    async with pair() as call:
        with pytest.raises(OfferError):
            await call.connection.answer("nonsense", restart=True)
        sent = len(call.packets)
        await eventually(lambda: len(call.packets) > sent + 20)


def _spoil(sdp: str, how: str) -> str:
    """An offer that looks well until it is answered."""
    match how:
        case "bundle":
            return sdp.replace("a=group:BUNDLE 0 1", "a=group:BUNDLE 7 8")
        case "fingerprint":
            return "".join(line + "\r\n" for line in sdp.splitlines() if not line.startswith("a=fingerprint"))
        case "ice":
            return "".join(line + "\r\n" for line in sdp.splitlines() if not line.startswith("a=ice-"))
        case "mid":
            return sdp.replace("a=mid:0", "a=mid:1")
        case _:
            return sdp.replace("m=audio", "m=text")


@pytest.mark.parametrize("how", ["bundle", "fingerprint", "ice", "mid", "kind"])
async def test_a_reconnection_that_cannot_be_answered_does_not_silence_the_call(how: str) -> None:
    async with pair() as call:
        again, _ = new_caller()
        sdp = _spoil(await offer(again), how)
        with suppress(OfferError):
            # Whatever aiortc can make of it: no other error, and the call goes on.
            await call.connection.answer(sdp, restart=True)
            await again.close()
            return
        await again.close()
        sent = len(call.packets)
        await eventually(lambda: len(call.packets) > sent + 20)


async def test_a_renegotiation_that_breaks_the_connection_frees_the_line() -> None:
    before = asyncio.all_tasks()
    connection, events = Connection(patience=Patience(silent_s=0.5, return_s=0.5)), Events()
    connection.line.plug(Ends(Steps(), lambda pcm: None))
    connection.listen(events)
    caller, _ = new_caller()
    sdp = await connection.answer(await offer(caller))
    await caller.setRemoteDescription(RTCSessionDescription(sdp, "answer"))
    await eventually(lambda: "connected" in events.log)
    sdp = (await offer(caller)).replace("a=group:BUNDLE 0 1", "a=group:BUNDLE bogus 0")
    with pytest.raises(OfferError):
        await connection.answer(sdp)
    await eventually(lambda: isinstance(events.log[-1], Ended), 8.0)
    await caller.close()
    # aiortc leaves a task of the half-closed connection behind.
    for task in asyncio.all_tasks() - before:
        task.cancel()


async def test_reconnections_that_never_connect_do_not_hold_the_line_for_ever() -> None:
    async with pair(Patience(connect_s=0.5, silent_s=0.5, return_s=1.0)) as call:
        _pull_the_plug(call.caller)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        callers: list[RTCPeerConnection] = []
        while call.connection.ended is None and loop.time() - began_s < 12.0:
            callers.append(new_caller()[0])
            with suppress(OfferError):
                await call.connection.answer(await offer(callers[-1]), restart=True)
            await asyncio.sleep(0.3)
        assert call.connection.ended is Ended.VANISHED
        await asyncio.gather(*(caller.close() for caller in callers))


async def test_nothing_that_comes_over_the_data_channel_ends_the_call() -> None:
    async with pair() as call:
        await eventually(lambda: call.channel.readyState == "open")
        for text in ("[" * 100_000, "{", "\x00", '{"a":' * 20_000, "ping"):
            with suppress(ValueError):
                call.channel.send(text[:60_000])
        call.channel.send('{"still": "there"}')
        await eventually(lambda: {"still": "there"} in call.events.log)
        sent = len(call.packets)
        await eventually(lambda: len(call.packets) > sent + 20)


async def test_any_text_can_be_sent_half_a_surrogate_pair_too() -> None:
    async with pair() as call:
        await eventually(lambda: call.channel.readyState == "open")
        call.connection.send({"text": "\ud83d and \u2028 and é"})
        await eventually(lambda: bool(call.messages))
        assert json.loads(call.messages[0]) == {"text": "\ud83d and \u2028 and é"}


async def test_a_listener_that_fails_ends_nothing() -> None:
    class Bad(Events):
        def lost(self) -> None:
            raise RuntimeError("a bug of the application")

        ended = message = connected = lost  # type: ignore[assignment]

    def fail(*_: object) -> None:
        raise RuntimeError("a bug of the application")

    connection, good, source = Connection(patience=_QUICK), Events(), Steps()
    frames: list[object] = []

    def count(*frame: object) -> None:
        frames.append(frame)
        fail()

    connection.line.plug(Ends(source, fail, on_frame=count, on_packet=fail))
    connection.listen(Bad())
    connection.listen(good)
    caller, _ = new_caller()
    sdp = await connection.answer(await offer(caller))
    await caller.setRemoteDescription(RTCSessionDescription(sdp, "answer"))
    await eventually(lambda: "connected" in good.log and len(frames) > 20)
    await connection.close()
    assert good.log[-1] is Ended.CLOSED
    await caller.close()


@pytest.mark.parametrize("candidate", ["candidate:", "nonsense", "candidate:1 1 udp x 127.0.0.1 9 typ host"])
async def test_bad_candidates_are_refused(candidate: str) -> None:
    async with pair() as call:
        with pytest.raises(OfferError, match="not an ICE candidate"):
            await call.connection.add_candidate(candidate, "0", 0)


def _pull_the_plug(caller: RTCPeerConnection) -> None:
    """The peer's machine is gone: nothing is sent any more, and nobody says goodbye."""
    for transceiver in caller.getTransceivers():
        transport = transceiver.sender.transport.transport._connection
        for protocol in transport._protocols:
            protocol.transport.close()


def _signalling(limit: int = 2) -> tuple[Signalling, list[Connection]]:
    made: list[Connection] = []

    def connect() -> Connection:
        made.append(Connection(patience=_QUICK))
        return made[-1]

    async def on_call(connection: Connection, data: object) -> None:
        over = asyncio.Event()

        class Until(Events):
            def ended(self, reason: Ended) -> None:
                over.set()

        connection.line.plug(Ends(Steps(), lambda pcm: None))
        connection.listen(Until())
        await over.wait()

    return Signalling(connect, on_call, limit), made


async def test_calls_past_the_limit_are_told_when_to_try_again() -> None:
    signalling, _ = _signalling(limit=2)
    callers = [new_caller()[0] for _ in range(6)]
    bodies = [{"sdp": await offer(caller), "type": "offer"} for caller in callers]
    results = await asyncio.gather(*(signalling.offer(body) for body in bodies), return_exceptions=True)
    refused = [result for result in results if isinstance(result, Refused)]
    assert len(refused) == 4
    assert {(one.status, one.retry_after_s) for one in refused} == {(503, 10)}
    await signalling.drain(0)
    assert signalling.calls == 0
    with pytest.raises(Refused, match="shutting down"):
        await signalling.offer(bodies[0])
    await asyncio.gather(*(caller.close() for caller in callers))


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ({}, 422, "sdp"),
        ({"sdp": "v=0", "type": "answer"}, 422, "must be 'offer'"),
        ({"sdp": 7, "type": "offer"}, 422, "sdp"),
        ({"sdp": "v=0", "type": "offer"}, 400, "malformed|no audio"),
    ],
)
async def test_bad_requests_are_refused_with_a_reason(body: dict[str, Any], status: int, reason: str) -> None:
    signalling, _ = _signalling()
    with pytest.raises(Refused, match=reason) as refused:
        await signalling.offer(body)
    assert refused.value.status == status
    assert signalling.calls == 0


async def test_candidates_find_their_call() -> None:
    signalling, _ = _signalling()
    caller, _ = new_caller()
    answer = await signalling.offer({"sdp": await offer(caller), "type": "offer", "requestData": {"a": 1}})
    good = {"candidate": "candidate:1 1 udp 2130706431 127.0.0.1 9 typ host", "sdp_mid": "0", "sdp_mline_index": 0}
    end = {"candidate": "", "sdp_mid": "0", "sdp_mline_index": 0}
    assert await signalling.candidates({"pc_id": answer["pc_id"], "candidates": [good, end]}) == {"status": "ok"}
    for body, status in (
        ({"pc_id": "nobody", "candidates": [good]}, 404),
        ({"pc_id": answer["pc_id"], "candidates": [{"candidate": "x"}]}, 400),
        ({"candidates": []}, 422),
    ):
        with pytest.raises(Refused) as refused:
            await signalling.candidates(body)
        assert refused.value.status == status
    await signalling.drain(0)
    await caller.close()


async def test_a_call_that_will_not_end_is_awaited_after_it_was_cancelled() -> None:
    done = asyncio.Event()

    async def stubborn(_: Connection, __: object) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.1)
            done.set()

    signalling = Signalling(lambda: Connection(patience=_QUICK), stubborn, 1, end_s=0.5)
    caller, _ = new_caller()
    await signalling.offer({"sdp": await offer(caller), "type": "offer"})
    await signalling.drain(0)
    assert done.is_set()
    assert signalling.calls == 0
    await caller.close()
