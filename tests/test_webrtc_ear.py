"""The ear: packets in any order, and losses, become audio of the right length at once."""

from __future__ import annotations

from dataclasses import dataclass

import av
import numpy as np
import pytest
from aiortc.rtcrtpparameters import RTCRtpCodecParameters

from voxagent.pcm import G711
from voxagent_webrtc.ear import RATE, Ear

_OPUS = RTCRtpCodecParameters(mimeType="audio/opus", clockRate=48000, channels=2, payloadType=96)
_PCMU = RTCRtpCodecParameters(mimeType="audio/PCMU", clockRate=8000, channels=1, payloadType=0)
_PCMA = RTCRtpCodecParameters(mimeType="audio/PCMA", clockRate=8000, channels=1, payloadType=8)
_G722 = RTCRtpCodecParameters(mimeType="audio/G722", clockRate=8000, channels=1, payloadType=9)
_CODECS = {codec.payloadType: codec for codec in (_OPUS, _PCMU, _PCMA, _G722)}


@dataclass
class Packet:
    sequence_number: int
    timestamp: int
    payload_type: int
    payload: bytes


def _tone(seconds: float, rate: int) -> np.ndarray:
    return np.round(8000 * np.sin(2 * np.pi * 440 * np.arange(int(seconds * rate)) / rate)).astype(np.int16)


def _opus(count: int, first: int = 0, start: int = 0) -> list[Packet]:
    codec = av.CodecContext.create("libopus", "w")
    codec.sample_rate, codec.layout, codec.format = 48000, "mono", "s16"
    tone = _tone(0.02 * count, 48000).reshape(count, 1, 960)
    packets = []
    for index in range(count):
        frame = av.AudioFrame.from_ndarray(tone[index], format="s16", layout="mono")
        frame.sample_rate, frame.pts = 48000, index * 960
        payload = b"".join(bytes(packet) for packet in codec.encode(frame))
        number = (first + index) & 0xFFFF
        packets.append(Packet(number, (start + index * 960) & 0xFFFFFFFF, 96, payload))
    return packets


def _hear(packets: list[Packet]) -> tuple[np.ndarray, Ear, list[int]]:
    heard: list[np.ndarray] = []
    ear = Ear(_CODECS, heard.append)
    sizes = []
    for packet in packets:
        before = sum(map(len, heard))
        ear.packet(packet)
        sizes.append(sum(map(len, heard)) - before)
    return np.concatenate(heard), ear, sizes


def test_a_packet_is_heard_when_it_arrives() -> None:
    pcm, ear, sizes = _hear(_opus(20))
    assert all(300 <= size <= 321 for size in sizes)
    assert ear.stats.packets == 20
    assert np.abs(pcm[RATE // 10 :]).max() == pytest.approx(8000, rel=0.15)


@pytest.mark.parametrize("start", [0, 0xFFFF - 5])
def test_order_is_restored_and_numbers_wrap(start: int) -> None:
    packets = _opus(20, first=start, start=0xFFFFFFFF - 4000)
    straight, _, _ = _hear(packets)
    swapped = list(packets)
    swapped[7], swapped[8] = swapped[8], swapped[7]
    assert np.array_equal(_hear(swapped)[0], straight)


@pytest.mark.parametrize("lost", [1, 4])
def test_what_is_lost_becomes_silence_of_the_same_length(lost: int) -> None:
    packets = _opus(30)
    whole, _, _ = _hear(packets)
    pcm, ear, _ = _hear(packets[:10] + packets[10 + lost :])
    assert ear.stats.lost == lost
    assert abs(len(pcm) - len(whole)) <= 8
    hole = pcm[10 * 320 : (10 + lost) * 320 - 64]
    assert np.count_nonzero(hole) < len(hole) / 4


def test_a_late_packet_changes_nothing() -> None:
    packets = _opus(20)
    late = [*packets[:5], *packets[6:12], packets[5], *packets[12:]]
    without = [*packets[:5], *packets[6:]]
    assert np.array_equal(_hear(late)[0], _hear(without)[0])


def test_a_stream_that_starts_anew_is_heard_on() -> None:
    pcm, ear, _ = _hear(_opus(10, first=100) + _opus(10, first=30000, start=1_000_000_000))
    assert ear.stats == type(ear.stats)(packets=20, lost=0, bad=0)
    assert len(pcm) == pytest.approx(20 * 320, abs=16)


def test_garbage_is_counted_and_survived() -> None:
    packets = _opus(10)
    packets[4].payload = b"\xff" * 400
    packets[6].payload = b""
    _, ear, _ = _hear(packets)
    assert ear.stats.bad <= 1
    assert ear.stats.packets >= 9


def test_an_unknown_payload_type_is_passed_over() -> None:
    packets = _opus(5)
    packets[2].payload_type = 13
    _, ear, _ = _hear(packets)
    assert ear.stats.packets == 4


@pytest.mark.parametrize(("payload_type", "law"), [(0, "mulaw"), (8, "alaw")])
def test_g711_is_heard(payload_type: int, law: str) -> None:
    tone = _tone(0.4, 8000).reshape(20, 160)
    packets = [Packet(i, i * 160, payload_type, G711(law).encode(tone[i])) for i in range(20)]
    pcm, _, _ = _hear(packets)
    assert len(pcm) == pytest.approx(20 * 320, abs=40)
    assert np.abs(pcm[RATE // 10 :]).max() == pytest.approx(8000, rel=0.15)


def test_g722_is_heard() -> None:
    codec = av.CodecContext.create("g722", "w")
    codec.sample_rate, codec.layout, codec.format = 16000, "mono", "s16"
    tone = _tone(0.4, 16000).reshape(20, 1, 320)
    packets = []
    for index in range(20):
        frame = av.AudioFrame.from_ndarray(tone[index], format="s16", layout="mono")
        frame.sample_rate = 16000
        packets.append(Packet(index, index * 160, 9, b"".join(bytes(p) for p in codec.encode(frame))))
    pcm, _, _ = _hear(packets)
    assert len(pcm) == 20 * 320
    assert np.abs(pcm[RATE // 10 :]).max() == pytest.approx(8000, rel=0.15)
