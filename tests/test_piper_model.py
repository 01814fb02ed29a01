"""The Piper model as the engine uses it, with the real voice: exact, repeatable, bounded, cancellable."""

from __future__ import annotations

import threading
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import voxagent_piper
from voxagent.model import LatentModel, Pcm, SpeechOptions, WordTime
from voxagent.phrases import Phrase
from voxagent.speakable import Piece, Speakable
from voxagent_piper import PiperModel, PiperSlot

LONG = (
    "The weather tomorrow will be mostly sunny with a light breeze from the west and a small chance of rain later "
    "in the evening near the coast"
)
QUIET_DB = -45.0


@pytest.fixture(scope="module")
def model() -> PiperModel:
    return voxagent_piper.create(None, {"threads": 2})


def phrase(text: str, final: bool = False) -> Phrase:
    return Phrase(text, 0, Speakable(text, (Piece(0, len(text), 0, len(text)),)), "sentence", final)


def open_slot(model: PiperModel, seed: int = 1, speed: float = 1.0) -> PiperSlot:
    return model.open(model.load_voice(None), SpeechOptions(speed=speed), seed)


def steps(model: PiperModel, slot: PiperSlot) -> tuple[list[Pcm], list[WordTime]]:
    chunks: list[Pcm] = []
    words: list[WordTime] = []
    while True:
        step = model.step([slot])[0]
        words += step.words
        if step.latents is not None:
            chunks += model.decode([slot], [step.latents])
        if step.last:
            return chunks, words


def say(model: PiperModel, text: str, seed: int = 1, speed: float = 1.0, final: bool = False) -> Pcm:
    slot = open_slot(model, seed, speed)
    assert model.prefill(slot, phrase(text, final))
    return np.concatenate([np.zeros(0, np.float32), *steps(model, slot)[0]])


def levels_db(pcm: Pcm) -> np.ndarray:
    """RMS of every 256 samples."""
    frames = pcm[: pcm.size // 256 * 256].reshape(-1, 256)
    return 20 * np.log10(np.sqrt((frames**2).mean(1)) + 1e-9)


def test_it_is_a_latent_model(model):
    checked: LatentModel[PiperSlot] = model
    assert (checked.spec.sample_rate, checked.spec.chunk_samples) == (22050, 14 * 256)
    assert checked.spec.times_words
    assert checked.spec.languages == ("en",)
    assert checked.load_voice(None).language == "en-US"
    assert checked.load_voice("en_US-joe-medium") is checked.load_voice(None)


# Options


def test_options_are_parsed_from_text():
    options = voxagent_piper.PiperOptions.model_validate(
        {"threads": "1", "noise_scale": "0", "noise_w": "0.5", "slots": "3", "gain": "2", "g2p": "lexicon"}
    )
    assert (options.threads, options.noise_scale, options.noise_w, options.slots, options.gain) == (1, 0, 0.5, 3, 2)


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"thread": 1}, r"'thread'.*Options: threads, noise_scale"),
        ({"threads": "many"}, "'threads'"),
        ({"threads": 0}, "'threads'"),
        ({"noise_w": -1}, "'noise_w'"),
        ({"g2p": "magic"}, "'g2p'.*'espeak'"),
        ({"gain": "0"}, "'gain'"),
    ],
)
def test_bad_options_name_the_cause(options, cause):
    with pytest.raises(ValueError, match=cause):
        voxagent_piper.create(None, options)


def test_slots_are_the_models():
    assert voxagent_piper.create(None, {"slots": "3", "threads": 1}).spec.slots == 3


# Exactness


@pytest.mark.parametrize(
    "text",
    ["Yes.", "Sure, I can do that.", "I have booked your table for seven people this evening.", LONG, "one, " * 60],
)
def test_chunks_add_up_to_the_whole(model, text):
    chunked = say(model, text)
    whole = model.decode_whole(open_slot(model), phrase(text))
    silent = whole.size - chunked.size
    assert 0 <= silent <= 0.03 * 22050
    assert np.abs(whole[:silent]).max(initial=0) < 0.001
    assert np.abs(chunked - whole[silent:]).max() < 1e-4


def test_chunks_are_at_most_a_chunk_long(model):
    slot = open_slot(model)
    model.prefill(slot, phrase("I have booked your table for seven people."))
    chunks, _ = steps(model, slot)
    assert all(chunk.dtype == np.float32 and 0 < chunk.size <= model.spec.chunk_samples for chunk in chunks)
    assert all(chunk.size == model.spec.chunk_samples for chunk in chunks[1:-1])


def test_equal_seeds_give_equal_audio(model):
    one, same, other = (say(model, "Could you repeat the number?", seed) for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert one.size != other.size or np.abs(one - other).max() > 1e-2


def test_sessions_do_not_touch_each_other(model):
    texts = ["Please hold the line.", "What is your account number?", "Sure, one moment."]
    alone = [say(model, text, seed) for seed, text in enumerate(texts)]
    slots = [open_slot(model, seed) for seed in range(3)]
    heard: list[list[Pcm]] = [[], [], []]
    for slot, text in zip(slots, texts, strict=True):
        model.prefill(slot, phrase(text))
    running = [0, 1, 2]
    while running:
        for index in list(running):
            step = model.step([slots[index]])[0]
            heard[index] += model.decode([slots[index]], [step.latents])
            if step.last:
                running.remove(index)
    for chunks, expected in zip(heard, alone, strict=True):
        assert np.array_equal(np.concatenate(chunks), expected)


def test_phrases_of_a_session_draw_on(model):
    """The second phrase of a turn depends on the seed and its place, not on what else the model did."""

    def second(between: bool) -> Pcm:
        slot = open_slot(model, 5)
        model.prefill(slot, phrase("Hello there."))
        steps(model, slot)
        if between:
            say(model, "Something else.", 9)
        model.prefill(slot, phrase("How are you?"))
        return np.concatenate(steps(model, slot)[0])

    assert np.array_equal(second(False), second(True))


def test_without_noise_the_seed_does_not_matter():
    model = voxagent_piper.create(None, {"noise_scale": "0", "noise_w": "0", "threads": 2})
    assert np.array_equal(say(model, "Same again.", 1), say(model, "Same again.", 2))


def test_speed_shortens(model):
    normal, fast = say(model, LONG), say(model, LONG, speed=2.0)
    assert 0.4 < fast.size / normal.size < 0.65


# Level and silence


def test_gain_is_fixed_and_nothing_leaves_full_scale(model):
    loud = voxagent_piper.create(None, {"gain": 8, "threads": 2})
    raw = voxagent_piper.create(None, {"gain": 1, "threads": 2})
    quiet, normal, bent = (say(m, "Stop! Please stop!") for m in (raw, model, loud))
    assert 0.3 < np.abs(quiet).max() < 0.9
    assert np.allclose(normal, 1.25 * quiet, atol=1e-6)
    assert 0.9 < np.abs(bent).max() <= 1.0
    untouched = np.abs(8 * quiet) < 0.9
    assert np.allclose(bent[untouched], 8 * quiet[untouched], atol=1e-6)


OPENINGS = ["Sure", "Okay", "Please", "It", "Actually", "Check", "We", "Just"]
ENDINGS = ["stop", "test", "rooms", "fish", "go", "laugh", "car", "hello"]
MARKS = {"": 30, ",": 100, ";": 150, ".": 220, "?": 220}


@pytest.mark.parametrize(
    ("opening", "ending", "mark"), list(zip(OPENINGS, ENDINGS, [*MARKS, "", ",", "."], strict=True))
)
def test_trimming_cuts_silence_and_no_speech(model, opening, ending, mark):
    text = f"{opening} the next one is about {ending}{mark}"
    slot = open_slot(model)
    kept = say(model, text)
    model.prefill(slot, phrase(text))
    piece = slot.piece
    assert piece is not None
    start, end = piece.next, piece.end
    piece.next, piece.end = 0, piece.prior.shape[2]
    piece.first = piece.known = 0
    everything = np.concatenate(steps(model, slot)[0])
    everything = np.concatenate((np.zeros(piece.end * 256 - everything.size, np.float32), everything))
    levels = levels_db(everything)
    assert levels[:start].max(initial=-99) < QUIET_DB
    assert levels[end:].max(initial=-99) < QUIET_DB
    assert np.abs(everything[end * 256 - kept.size : end * 256] - kept).max() < 1e-4
    loud = np.nonzero(levels_db(kept) > QUIET_DB)[0]
    frame_ms = 256 / 22.05
    assert loud[0] * frame_ms <= 50
    # The last phoneme itself may be too quiet to count, hence the allowance.
    assert (end - start - 1 - loud[-1]) * frame_ms <= MARKS[mark] + 190


def test_the_last_phrase_ends_soon(model):
    assert say(model, "Thank you.", final=True).size < say(model, "Thank you.").size


# Word times


def test_word_times_index_the_text_and_lie_in_the_audio(model):
    text = "I have booked your table for 25 people this evening."
    slot = open_slot(model)
    model.prefill(slot, phrase(text))
    chunks, words = steps(model, slot)
    assert [text[w.start : w.end] for w in words] == text.rstrip(".").split()
    edges = [edge for word in words for edge in (word.start_sample, word.end_sample)]
    assert edges == sorted(edges)
    assert 0 <= edges[0] <= 0.05 * 22050
    assert edges[-1] <= sum(chunk.size for chunk in chunks)


def test_word_times_come_with_the_first_chunk(model):
    slot = open_slot(model)
    model.prefill(slot, phrase("Sure, I can."))
    assert len(model.step([slot])[0].words) == 3


def test_a_pause_is_heard_between_the_words_it_parts(model):
    for seed in range(4):
        slot = open_slot(model, seed)
        model.prefill(slot, phrase("Yes, sir: now."))
        chunks, words = steps(model, slot)
        levels = levels_db(np.concatenate(chunks))
        quietest = int(np.argmin(levels[5:-25])) + 5
        gaps = [(a.end_sample // 256, b.start_sample // 256) for a, b in pairwise(words)]
        assert any(low - 2 <= quietest <= high + 2 for low, high in gaps)


def test_long_text_is_spoken_in_stretches_with_times_that_go_on(model):
    text = "and then another thing happened to us " * 12
    slot = open_slot(model)
    model.prefill(slot, phrase(text))
    chunks, words = steps(model, slot)
    assert [text[w.start : w.end] for w in words] == text.split()
    starts = [w.start_sample for w in words]
    assert starts == sorted(starts)
    assert words[-1].end_sample <= sum(chunk.size for chunk in chunks)


# Text that should not be there


@pytest.mark.parametrize("text", ["", "😀", "...", "Москва", "\ud800", "\x00\x1b", "   "])
def test_unspeakable_text_is_a_silent_phrase(model, text):
    slot = open_slot(model)
    assert model.prefill(slot, phrase(text)) is True
    (step,) = model.step([slot])
    assert step.latents is None
    assert step.last


def test_a_word_of_four_thousand_letters_is_bounded(model):
    assert 0 < say(model, "a" * 4000).size < 10 * 22050
    assert 0 < say(model, "W" * 4000).size < 30 * 22050


def test_a_slot_speaks_after_a_silent_phrase(model):
    slot = open_slot(model)
    model.prefill(slot, phrase("😀"))
    model.step([slot])
    model.prefill(slot, phrase("Hello."))
    assert steps(model, slot)[0]


# Cancel


def cancelled_after(model: PiperModel, slot: PiperSlot, delay_s: float) -> float:
    """Runs the prefill of a long phrase, cancels it meanwhile; seconds from the cancel to the return."""
    ended: list[float] = []

    def work() -> None:
        model.prefill(slot, phrase(LONG))
        ended.append(time.perf_counter())

    thread = threading.Thread(target=work)
    thread.start()
    threading.Event().wait(delay_s)
    asked = time.perf_counter()
    model.cancel(slot)
    thread.join()
    return ended[0] - asked


def test_cancel_ends_a_running_front(model):
    begun = time.perf_counter()
    model.prefill(open_slot(model), phrase(LONG))
    whole_s = time.perf_counter() - begun
    waits = []
    for _ in range(8):
        slot = open_slot(model)
        waits.append(cancelled_after(model, slot, whole_s / 4))
        assert slot.piece is None
    assert np.median(waits) < whole_s / 3


def test_cancel_between_calls_makes_the_next_return_at_once(model):
    slot, prefilled = open_slot(model), open_slot(model)
    model.prefill(prefilled, phrase(LONG))
    window = model.step([prefilled])[0].latents
    for each in (slot, prefilled):
        model.cancel(each)
        model.cancel(each)
    begun = time.perf_counter()
    model.prefill(slot, phrase(LONG))
    assert model.step([slot, prefilled])[0].latents is None
    assert model.decode([prefilled], [window])[0].size == 0
    assert time.perf_counter() - begun < 0.01
    model.close(slot)


def test_cancel_does_not_touch_others(model):
    expected = say(model, LONG, 3)
    other = open_slot(model, 3)
    model.prefill(other, phrase(LONG))
    victim = open_slot(model)
    model.prefill(victim, phrase(LONG))
    model.cancel(victim)
    model.close(victim)
    assert np.array_equal(np.concatenate(steps(model, other)[0]), expected)


def resident_mb() -> float:
    status = Path("/proc/self/statm")
    if not status.exists():
        pytest.skip("needs /proc")
    return int(status.read_text().split()[1]) * 4096 / 1e6


def test_memory_is_flat(model):
    """A short version of the thousand cycles measured by hand: under 2 MB."""
    words = LONG.split()

    def cycle(index: int) -> None:
        slot = open_slot(model, index)
        count = index % 12
        model.prefill(slot, phrase(" ".join(words[count : 2 * count + 2])))
        step = model.step([slot])[0]
        model.decode([slot], [step.latents])
        model.cancel(slot)
        model.close(slot)

    for index in range(24):
        cycle(index)
    before = resident_mb()
    for index in range(48):
        cycle(index)
    assert resident_mb() - before < 5
