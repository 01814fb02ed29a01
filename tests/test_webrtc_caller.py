"""The headless caller against a small answerer of its own: what is heard is what was sent, and nothing stays behind."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import wave
from contextlib import asynccontextmanager, contextmanager
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import typer
from aiohttp import web
from aiortc import RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError, MediaStreamTrack
from typer.testing import CliRunner

from voxagent.errors import EngineFull, RemoteError
from voxagent.pcm import to_float32, write_wav
from voxagent_webrtc.call_command import (
    Line,
    Script,
    Turn,
    call,
    converse,
    ice_server,
    line,
    turn_figures,
    write_record,
)
from voxagent_webrtc.caller import CallEnd, Caller, Utterance, read_wav
from voxagent_webrtc.line import tap
from voxagent_webrtc.plot import Mark, Recording, Wire, draw_call

RATE = 48000
FRAME = 960


def buzz(seconds, hz=150, level=0.3):
    """A voice of a kind: many harmonics, always loud, never the same twice within a tenth of a second."""
    at = np.arange(int(RATE * seconds)) / RATE
    tone = sum(np.sin(2 * np.pi * hz * n * at + 3 * np.sin(2 * np.pi * 1.7 * n * at)) / n for n in range(1, 8))
    return (level * 32767 * tone / np.abs(tone).max()).astype(np.int16)


def silence(seconds):
    return np.zeros(int(RATE * seconds), np.int16)


SPEECH = np.concatenate((silence(0.3), buzz(1.0)))


class Voice(MediaStreamTrack):
    """Plays a signal once at the pace of the clock, then silence."""

    kind = "audio"

    def __init__(self, pcm):
        super().__init__()
        self._pcm, self._frames, self._start_s = pcm, 0, None

    async def recv(self):
        if self.readyState != "live":
            raise MediaStreamError
        loop = asyncio.get_running_loop()
        self._start_s = loop.time() if self._start_s is None else self._start_s
        await asyncio.sleep(max(0.0, self._start_s + self._frames * 0.02 - loop.time()))
        pcm = np.zeros(FRAME, np.int16)
        piece = self._pcm[self._frames * FRAME : (self._frames + 1) * FRAME]
        pcm[: len(piece)] = piece
        frame = av.AudioFrame.from_ndarray(pcm.reshape(1, -1), format="s16", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = RATE, self._frames * FRAME, Fraction(1, RATE)
        self._frames += 1
        return frame


class Answerer:
    """An agent that plays `pcm` to everybody, hears them, and sends their messages back."""

    def __init__(self, pcm):
        self.pcm, self.url, self.pcs, self.heard, self.texts = pcm, "", [], [], []
        self.pinged = asyncio.Event()

    async def offer(self, request):
        body = await request.json()
        pc = RTCPeerConnection()
        wire = Wire(lambda: None)
        self.pcs.append(pc)
        name = f"call-{len(self.pcs)}"
        self.heard.append(wire)
        pc.on("datachannel", lambda channel: channel.on("message", lambda text: self.echo(channel, text)))
        await pc.setRemoteDescription(RTCSessionDescription(body["sdp"], body["type"]))
        audio = pc.getTransceivers()[0]
        tap(audio.receiver, wire)
        audio.direction = "sendrecv"
        audio.sender.replaceTrack(Voice(self.pcm))
        await pc.setLocalDescription(await pc.createAnswer())
        return web.json_response({"sdp": pc.localDescription.sdp, "type": "answer", "pc_id": name})

    def echo(self, channel, text):
        self.texts.append(text)
        if text.startswith("ping"):
            self.pinged.set()
        else:
            channel.send(text)


@asynccontextmanager
async def serving(handler):
    app = web.Application()
    app.router.add_post("/api/offer", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def answerer(pcm=SPEECH):
    agent = Answerer(pcm)
    async with serving(agent.offer) as agent.url:
        try:
            yield agent
        finally:
            await asyncio.gather(*(pc.close() for pc in agent.pcs))


def sockets():
    fds = Path("/proc/self/fd")
    found = set()
    for fd in os.listdir(fds):
        try:
            found.add(os.readlink(fds / fd))
        except OSError:
            continue
    return {name for name in found if name.startswith("socket")}


def others():
    return asyncio.all_tasks() - {asyncio.current_task()}


def coded(pcm, layout, bit_rate, complexity=10):
    """What Opus makes of it: a codec changes a waveform more than a network may."""
    encoder, decoder = av.CodecContext.create("libopus", "w"), av.CodecContext.create("libopus", "r")
    encoder.format, encoder.layout, encoder.sample_rate, encoder.bit_rate = "s16", layout, RATE, bit_rate
    encoder.options = {"application": "voip", "compression_level": str(complexity)}
    decoder.layout, decoder.sample_rate = "mono", RATE
    out = []
    for first in range(0, len(pcm) - FRAME + 1, FRAME):
        sides = np.repeat(pcm[first : first + FRAME], 2 if layout == "stereo" else 1).reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(sides, format="s16", layout=layout)
        frame.sample_rate = RATE
        for packet in encoder.encode(frame):
            out += [decoded.to_ndarray().ravel() for decoded in decoder.decode(av.Packet(bytes(packet)))]
    return np.concatenate(out)


def lag_and_likeness(sent, got):
    """Where `sent` is found in `got`, and how well it correlates there."""
    sent, got = sent.astype(np.float64), got.astype(np.float64)
    size = len(sent) + len(got)
    product = np.fft.irfft(np.fft.rfft(got, size) * np.conj(np.fft.rfft(sent, size)), size)[: len(got)]
    lag = int(np.argmax(product))
    piece = got[lag : lag + len(sent)]
    return lag, float(product[lag] / np.sqrt((sent[: len(piece)] ** 2).sum() * (piece**2).sum()))


async def test_what_is_heard_is_what_was_sent():
    async with answerer() as agent, await Caller.connect(agent.url) as caller:
        start_s = caller.wire.packets[0].arrived_s
        await caller.until(lambda: caller.wire.packets[-1].arrived_s > start_s + 1.4)
        numbers = [packet.sequence_number for packet in caller.wire.packets]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert (caller.wire.lost, caller.wire.late, caller.wire.bad) == (0, 0, 0)
        sent = caller.wire.by_timestamp()
        reference = coded(SPEECH, "stereo", 96000)[RATE // 4 : RATE * 5 // 4]
        lag, likeness = lag_and_likeness(reference, sent.pcm)
        assert likeness > 0.999
        # Frames may have left before the caller was ready to receive.
        assert (lag - RATE // 4) % FRAME == 0
        assert lag / RATE == pytest.approx(0.25, abs=0.1)
        assert not sent.made_up_gaps()
        # The same by arrival, as even as this machine's clock allows.
        arrived = caller.wire.by_arrival()
        assert arrived.first_audible_after(0) - start_s == pytest.approx(0.3, abs=0.1)
        assert len(caller.wire.replies) == 1
        assert caller.call_id == "call-1"
        assert 0 < caller.ice_ms <= caller.connect_ms < caller.first_audible_ms


async def test_an_utterance_is_spoken_at_its_time_to_the_sample():
    speech = to_float32(buzz(0.2))
    async with answerer() as agent, await Caller.connect(agent.url) as caller:
        start_s = caller.spoken.start_s
        at_s = asyncio.get_running_loop().time() + 0.1234567
        timed = caller.say(speech, at_s)
        queued = caller.say(speech)
        assert timed.start_s == pytest.approx(at_s, abs=0.5 / RATE)
        assert queued.start_s == pytest.approx(timed.end_s, abs=0.5 / RATE)
        assert await queued is queued
        mic = caller.spoken.pcm
        first = round((timed.start_s - start_s) * RATE)
        assert np.abs(mic[first : first + 9600] / 32768 - speech).max() < 0.003
        level = caller.spoken.loudness()
        assert np.median(level[: first // 240 - 1]) == pytest.approx(-70, abs=2)
        heard = agent.heard[0]
        await caller.until(lambda: len(heard.packets) * FRAME > queued.end_s * RATE - start_s * RATE + 2 * FRAME)
        mic = caller.spoken.pcm
        begin, end = first - 2400, first + 2 * len(speech)
        lag, likeness = lag_and_likeness(coded(mic, "mono", 64000, complexity=5)[begin:end], heard.by_timestamp().pcm)
        assert likeness > 0.999
        # Frames may have left before the other side was ready.
        assert (lag - begin) % FRAME == 0
        assert heard.lost == 0


async def test_a_time_that_is_past_becomes_the_next_possible_one():
    async with answerer() as agent, await Caller.connect(agent.url) as caller:
        said = caller.say(to_float32(buzz(0.05)), 0.0)
        assert said.start_s >= caller.spoken.end_s
        await said
        assert caller.spoken.first_audible_after(0) == pytest.approx(said.start_s, abs=0.006)


async def test_messages_come_back_with_their_times_and_pings_go_out():
    told = []
    async with answerer() as agent, await Caller.connect(agent.url, on_message=told.append) as caller:
        await asyncio.wait_for(agent.pinged.wait(), 5)
        caller.send({"type": "voxagent", "event": "echo"})
        caller.send({"label": "rtvi-ai", "type": "bot-ready"})
        await caller.until(lambda: len(caller.messages) == 2)
        assert [message.body.get("event") for message in caller.messages] == ["echo", None]
        assert told == caller.messages
        assert told[0].at_s <= told[1].at_s <= asyncio.get_running_loop().time()
        assert agent.texts[0] == "ping 0"


async def test_two_callers_at_once_hear_each_their_own():
    async with answerer() as agent:
        script = Script([], [], seconds=1.5)
        one, two = await asyncio.gather(converse(agent.url, script), converse(agent.url, script))
        for each in (one, two):
            assert each.error is None
            figures = each.as_dict()
            assert figures["lost"] == 0
            assert figures["bot_spoke_s"] == pytest.approx(1.0, abs=0.1)
            assert figures["ended"] == CallEnd.HUNG_UP.value
        assert {one.caller.call_id, two.caller.call_id} == {"call-1", "call-2"}


async def test_a_hang_up_leaves_nothing_behind():
    async with answerer() as agent:
        tasks, before, threads = others(), sockets(), threading.active_count()
        caller = await Caller.connect(agent.url)
        said = caller.say(to_float32(buzz(5.0)))
        await asyncio.gather(caller.hang_up(), caller.hang_up())
        assert await caller.over() is CallEnd.HUNG_UP
        assert said.left.is_set()
        await agent.pcs[0].close()
        await settled(tasks)
        assert sockets() <= before
        # The default executor, in which the answerer encodes, keeps its threads.
        assert not [t.name for t in threading.enumerate() if "decoder" in t.name]
        assert threads <= threading.active_count()


async def settled(tasks):
    """Waits for what the ends of connections still have to do; what stays fails the test."""
    left = {task for task in others() - tasks if "aiohttp" not in repr(task) and "web_protocol" not in repr(task)}
    if left:
        await asyncio.wait(left, timeout=3)
    assert not [task for task in left if not task.done()]


async def test_an_agent_that_hangs_up_ends_the_call():
    async with answerer() as agent:
        tasks, before = others(), sockets()
        caller = await Caller.connect(agent.url)
        await agent.pcs[0].close()
        assert await asyncio.wait_for(caller.over(), 5) is CallEnd.AGENT_LEFT
        await settled(tasks)
        assert sockets() <= before


async def test_an_agent_that_vanishes_ends_the_call():
    async with answerer() as agent:
        tasks, before = others(), sockets()
        caller = await Caller.connect(agent.url)
        transport = agent.pcs[0].getTransceivers()[0].receiver.transport

        async def nowhere(_data):
            pass

        # Not even a goodbye.
        transport.transport._send = nowhere
        assert await asyncio.wait_for(caller.over(), 10) is CallEnd.SILENT
        await agent.pcs[0].close()
        await settled(tasks)
        assert sockets() <= before


def refusing(status, text, **headers):
    async def handler(_request):
        return web.Response(status=status, text=text, headers=headers)

    return handler


@pytest.mark.parametrize(
    ("handler", "error", "words"),
    [
        (refusing(503, '{"detail": "all 2 lines are busy"}', **{"Retry-After": "7"}), EngineFull, "2 lines.*in 7 s"),
        (refusing(422, '{"detail": "type must be offer"}'), RemoteError, "422.*type must be offer"),
        (refusing(404, "404: Not Found"), RemoteError, "404.*Not Found"),
        (refusing(200, "<html>a page</html>"), RemoteError, "no WebRTC answer.*a page"),
        (refusing(200, '{"sdp": "nonsense", "type": "answer"}'), RemoteError, "no WebRTC answer"),
    ],
)
async def test_a_refusal_is_told_in_words(handler, error, words):
    async with serving(handler) as url:
        before = others()
        with pytest.raises(error, match=words) as caught:
            await Caller.connect(url)
        if error is EngineFull:
            assert caught.value.retry_after_s == 7
        await settled(before)


async def test_an_agent_that_cannot_be_reached_is_told_in_words():
    async def far_away(request):
        pc = RTCPeerConnection()
        body = await request.json()
        await pc.setRemoteDescription(RTCSessionDescription(body["sdp"], "offer"))
        await pc.setLocalDescription(await pc.createAnswer())
        sdp = "\r\n".join(row for row in pc.localDescription.sdp.split("\r\n") if "candidate" not in row)
        await pc.close()
        return web.json_response({"sdp": sdp, "type": "answer", "pc_id": "x"})

    async def silent(_request):
        await asyncio.sleep(30)

    async with serving(far_away) as url:
        with pytest.raises(RemoteError, match=r"no packets get through.*TURN"):
            await Caller.connect(url, timeout_s=1)
    async with serving(silent) as url:
        with pytest.raises(RemoteError, match=r"did not answer it within 0\.2 s"):
            await Caller.connect(url, timeout_s=0.2)
    with pytest.raises(RemoteError, match=r"nobody listens at .*: start the agent"):
        await Caller.connect(url)
    with pytest.raises(ValueError, match="like http://"):
        await Caller.connect("127.0.0.1:7860")


@contextmanager
def in_a_thread():
    """An answerer on a loop of its own: the command runs one itself."""
    ready, done = threading.Event(), []

    async def serve():
        stop = asyncio.Event()
        async with answerer(np.concatenate((silence(0.2), buzz(1.0), silence(1.2), buzz(3.0)))) as agent:
            done.extend((agent.url, asyncio.get_running_loop(), stop))
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(10)
    try:
        yield done[0]
    finally:
        done[1].call_soon_threadsafe(done[2].set)
        thread.join()


def command():
    app = typer.Typer()
    app.command()(call)
    return app


def test_the_command_tells_the_call_as_json_and_keeps_it(tmp_path):
    write_wav(tmp_path / "a.wav", buzz(0.3), RATE)
    write_wav(tmp_path / "b.wav", buzz(0.4)[::3].copy(), 16000)
    with in_a_thread() as url:
        files = ["--say", str(tmp_path / "a.wav"), "--barge-in", f"{tmp_path / 'b.wav'}@0.2"]
        outputs = ["--record", str(tmp_path / "out.wav"), "--plot", str(tmp_path / "call.png"), "--json"]
        result = CliRunner().invoke(command(), [url, *files, "--seconds", "3.8", *outputs])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout.strip().splitlines()[-1])
    (one,) = told["calls"]
    assert (told["together"]["calls"], told["together"]["failed"]) == (1, 0)
    assert [turn["kind"] for turn in one["turns"]] == ["say", "barge_in"]
    say, over = one["turns"]
    # The second reply begins at 2.4 s whatever the caller does, so the barge-in is at 2.6 s.
    assert over["onset_s"] - say["onset_s"] > 0.5
    assert say["response_ms"] is not None
    assert over["duck_ms"] is None
    assert one["lost"] == 0
    with wave.open(str(tmp_path / "out.wav")) as file:
        assert (file.getframerate(), file.getnchannels()) == (RATE, 2)
        sides = np.frombuffer(file.readframes(file.getnframes()), "<i2").reshape(-1, 2)
    said_at = np.flatnonzero(np.abs(sides[:, 0]) > 1000)[0] / RATE
    assert said_at == pytest.approx(say["onset_s"], abs=0.006)
    assert (tmp_path / "call.png").stat().st_size > 10_000


def test_the_command_makes_several_calls_at_once():
    with in_a_thread() as url:
        result = CliRunner().invoke(command(), [url, "--calls", "2", "--every", "0.1", "--seconds", "0.5", "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout.strip().splitlines()[-1])
    assert told["together"]["packets"] == sum(one["packets"] for one in told["calls"]) > 20
    assert told["together"]["connect_ms"]["n"] == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["http://127.0.0.1:9"], "nobody listens"),
        (["http://127.0.0.1:9", "--say", "missing.wav"], "missing.wav"),
        (["http://127.0.0.1:9", "--record", "nowhere/out.wav"], "make it first"),
        (["http://127.0.0.1:9", "--ice-server", "stan:x"], "stun:host:port"),
    ],
)
def test_the_command_fails_in_words(arguments, words):
    result = CliRunner().invoke(command(), arguments)
    assert result.exit_code == 2
    assert words in result.output


def test_wav_files_of_other_kinds_are_read_or_refused(tmp_path):
    path = tmp_path / "x@2.wav"
    write_wav(path, buzz(0.5)[::6].copy(), 8000)
    assert len(read_wav(path)) == pytest.approx(RATE / 2, abs=100)
    assert (line(str(path)).at_s, line(f"{path}@1.5").at_s) == (None, 1.5)
    path.write_bytes(b"OggS and so on")
    with pytest.raises(ValueError, match="convert it to 16-bit PCM"):
        read_wav(path)
    write_wav(path, buzz(0.1), 96000)
    with pytest.raises(ValueError, match="8000 to 48000 Hz"):
        read_wav(path)
    server = ice_server("turn:me:s3cret@host:3478")
    assert (server.urls, server.username, server.credential) == ("turn:host:3478", "me", "s3cret")


def test_a_recording_tells_when_what_could_be_heard():
    voice = np.concatenate((silence(0.5), buzz(1.0), silence(0.1), buzz(1.0), silence(0.5)))
    recording = Recording(100.0, voice)
    assert recording.first_audible_after(100.0) == pytest.approx(100.5, abs=0.006)
    assert recording.last_audible_before(101.55) == pytest.approx(101.5, abs=0.006)
    assert recording.last_audible_after(100.7) == pytest.approx(102.6, abs=0.006)
    assert recording.last_audible_after(100.7, quiet_s=0.05) == pytest.approx(101.5, abs=0.006)
    assert recording.last_audible_after(102.7) is None
    (pause,) = recording.silences()
    assert (pause.start_s, pause.length_s) == pytest.approx((101.5, 0.1), abs=0.006)
    assert recording.first_audible_after(103.0) is None


def test_a_recording_tells_ducking_from_the_voice_as_it_is():
    voice = buzz(3.0)
    assert Recording(0.0, voice).ducked_at(1.0, 6) is None
    voice[int(1.5 * RATE) :] //= 4
    assert Recording(0.0, voice).ducked_at(1.0, 6) == pytest.approx(1.5, abs=0.02)
    assert Recording(0.0, voice).ducked_at(1.0, 20) is None


async def test_a_barge_in_tells_duck_and_silence_and_a_pause_is_neither():
    voice = np.concatenate((buzz(2.5), silence(1.5), buzz(1.0)))
    voice[int(2.2 * RATE) : int(2.5 * RATE)] //= 4
    bot = Recording(0.0, voice)
    said = Line("b.wav", to_float32(buzz(0.4)), 0.0, 0.0, 0.4)
    over, between = (Turn("barge_in", said, Utterance(at_s, 19200, asyncio.Event())) for at_s in (2.0, 3.2))
    figures = turn_figures(over, np.inf, bot, bot)
    assert (figures["duck_ms"], figures["silence_ms"]) == pytest.approx((200, 500), abs=20)
    assert figures["response_ms"] == pytest.approx(1600, abs=6)
    figures = turn_figures(between, np.inf, bot, bot)
    assert (figures["duck_ms"], figures["silence_ms"], figures["splash_db"]) == (None, None, None)
    assert turn_figures(over, 2.3, bot, bot)["response_ms"] is None


def test_a_hard_cut_splashes_and_a_fade_does_not():
    # Cut at a crest.
    at = RATE + int(np.argmax(np.abs(buzz(2.0)[RATE : RATE + 2000])))
    hard, faded = buzz(2.0), buzz(2.0)
    hard[at:] = 0
    ramp = 0.5 + 0.5 * np.cos(np.linspace(0, np.pi, 480))
    faded[at : at + 480] = faded[at : at + 480] * ramp
    faded[at + 480 :] = 0
    assert Recording(0.0, hard).splash_db(at / RATE) > Recording(0.0, faded).splash_db(at / RATE + 0.01) + 15


@pytest.mark.parametrize("gap_ms", [10, 20])
def test_a_gap_that_the_sender_made_is_found(gap_ms):
    voice = buzz(1.0)
    assert not Recording(0.0, voice).made_up_gaps()
    voice[RATE // 2 : RATE // 2 + gap_ms * 48] = 0
    (gap,) = Recording(0.0, voice).made_up_gaps()
    assert (gap.start_s, gap.length_s) == pytest.approx((0.5, gap_ms / 1000), abs=0.0021)


class Rtp:
    def __init__(self, number, timestamp, payload=b""):
        self.sequence_number, self.timestamp, self.marker, self.payload = number, timestamp, 0, payload


async def test_numbers_wrap_losses_and_late_packets_are_counted_and_a_new_stream_is_no_loss():
    wire = Wire(lambda: None)
    for step in (0, 1, 3, 2, 2, 5):
        wire.add(Rtp((65534 + step) & 0xFFFF, (2**32 - FRAME + step * FRAME) & 0xFFFFFFFF))
    assert (len(wire.packets), wire.lost, wire.late) == (5, 1, 1)
    assert wire.packets[-1].timestamp - wire.packets[0].timestamp == 5 * FRAME
    wire.add(Rtp(20000, 12345))
    assert (wire.lost, len(wire.packets)) == (1, 6)
    assert len(wire.by_timestamp().pcm) < RATE


def test_pictures_and_records_of_an_empty_call_can_be_made(tmp_path):
    nothing = Recording(0.0, silence(0))
    draw_call(tmp_path / "x.png", nothing, nothing, [Mark(0.0, "$ üß")])
    write_record(tmp_path / "x.wav", Recording(1.0, silence(0.1)), Recording(0.5, buzz(1.0)))
    with wave.open(str(tmp_path / "x.wav")) as file:
        assert file.getnframes() == RATE // 2
