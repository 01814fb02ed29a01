"""VoxCPM sessions: alone or in any company, cancelled, continued, watched; and its voices."""

from __future__ import annotations

import random
import wave
from dataclasses import replace

import av
import numpy as np
import pytest
import torch

from tests.voxcpm_rig import make_checkpoint
from voxagent.errors import EngineFull, ModelError
from voxagent.model import SpeechOptions
from voxagent.phrases import Phrase
from voxagent.speakable import speakable
from voxagent_voxcpm.casing import calm
from voxagent_voxcpm.guards import Guard, Limits
from voxagent_voxcpm.model import create
from voxagent_voxcpm.options import parse_options
from voxagent_voxcpm.slots import joined
from voxagent_voxcpm.voice import save_voice

EXACT = 1e-5
TEXT = "Good morning, what can I do for you?"
OTHER = "Your table is reserved for seven people."


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return make_checkpoint(tmp_path_factory.mktemp("model") / "v2", "v2", stops=True)


def load(directory, **options):
    return create(str(directory), {"dtype": "float32", "steps": 4, **options})


@pytest.fixture(scope="module")
def model(directory):
    return load(directory)


@pytest.fixture(scope="module")
def voice(model):
    return model.load_voice(None)


def phrase(text, start=0):
    return Phrase(text, start, speakable(text, "en"), "end")


def take_in(model, slot, what):
    while not model.prefill(slot, what):
        pass


def speak(model, slot, what):
    """All PCM of a phrase, and the last step."""
    take_in(model, slot, what)
    parts = []
    while True:
        (step,) = model.step([slot])
        if step.latents is not None:
            parts.extend(model.decode([slot], [step.latents]))
        if step.last:
            return np.concatenate([np.zeros(0, np.float32), *parts]), step


def alone(model, voice, text, seed):
    slot = model.open(voice, SpeechOptions(), seed)
    try:
        return speak(model, slot, phrase(text))[0]
    finally:
        model.close(slot)


def off(one, other):
    assert len(one) == len(other)
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


def write_wav(path, seconds, rate=16000, channels=1, level=0.3):
    samples = round(seconds * rate)
    tone = level * np.sin(2 * np.pi * 180 * np.arange(samples) / rate) * (1 + 0.3 * np.sin(np.arange(samples) / 900))
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.repeat((tone * 20000).astype(np.int16), channels).tobytes())
    return str(path)


class TestSessions:
    def test_eight_sessions_that_come_and_go_are_each_as_if_alone(self, model, voice):
        draw = random.Random(5)
        texts = [TEXT, OTHER, "Thank you very much!", "I am sorry, could you repeat that?"]
        expected = {(text, seed): alone(model, voice, text, seed) for text in texts for seed in range(4)}
        finished = 0
        live = []
        for _ in range(400):
            if len(live) < 8 and draw.random() < 0.5:
                key = (draw.choice(texts), draw.randrange(4))
                slot = model.open(voice, SpeechOptions(), key[1])
                live.append((slot, key, []))
                take_in(model, slot, phrase(key[0]))
            batch = [entry for entry in live if draw.random() < 0.7]
            steps = model.step([slot for slot, _, _ in batch]) if batch else []
            sounding = [(entry, step) for entry, step in zip(batch, steps, strict=True) if step.latents is not None]
            decoded = (
                model.decode([entry[0] for entry, _ in sounding], [step.latents for _, step in sounding])
                if sounding
                else []
            )
            for (entry, _), pcm in zip(sounding, decoded, strict=True):
                entry[2].append(pcm)
            for entry, step in zip(batch, steps, strict=True):
                slot, key, parts = entry
                if step.last:
                    assert off(np.concatenate(parts), expected[key]) < EXACT
                    finished += 1
                if step.last or draw.random() < 0.03:
                    model.cancel(slot)
                    model.close(slot)
                    live.remove(entry)
        assert finished > 20
        for slot, _, _ in live:
            model.close(slot)
        assert model.free_slots == model.spec.slots

    def test_equal_seeds_give_equal_audio_and_others_do_not(self, model, voice):
        assert np.array_equal(alone(model, voice, TEXT, 7), alone(model, voice, TEXT, 7))
        one, other = alone(model, voice, TEXT, 7), alone(model, voice, TEXT, 8)
        assert len(one) != len(other) or off(one, other) > 0.1

    def test_a_phrase_that_was_only_likely_leaves_no_trace(self, model, voice):
        slot = model.open(voice, SpeechOptions(), 3)
        take_in(model, slot, phrase(OTHER))
        model.prefill(slot, phrase("Something else again."))
        assert np.array_equal(speak(model, slot, phrase(TEXT))[0], alone(model, voice, TEXT, 3))
        model.close(slot)

    def test_small_pieces_of_intake_change_nothing(self, directory, model, voice):
        small = load(directory, piece=3)
        slot = small.open(small.load_voice(None), SpeechOptions(), 2)
        assert small.prefill(slot, phrase(TEXT)) is False
        assert off(speak(small, slot, phrase(TEXT))[0], alone(model, voice, TEXT, 2)) < EXACT

    def test_slots_run_out_with_a_named_error_and_come_back_at_once(self, directory):
        model = load(directory, slots=2)
        voice = model.load_voice(None)
        slots = [model.open(voice, SpeechOptions(), seed) for seed in range(2)]
        with pytest.raises(EngineFull):
            model.open(voice, SpeechOptions(), 3)
        model.close(slots[0])
        model.close(slots[0])
        model.open(voice, SpeechOptions(), 3)
        assert model.free_slots == 0

    def test_a_cancel_inside_a_step_is_over_after_one_solver_call(self, directory, monkeypatch):
        model = load(directory, steps=50, first_steps=50)
        slot = model.open(model.load_voice(None), SpeechOptions(), 1)
        take_in(model, slot, phrase(TEXT))
        calls = []
        velocity = model.network.dit.velocity

        def counted(*args):
            calls.append(1)
            model.cancel(slot)
            return velocity(*args)

        monkeypatch.setattr(model.network.dit, "velocity", counted)
        (step,) = model.step([slot])
        assert step.last
        assert step.latents is None
        assert len(calls) == 1

    def test_a_text_without_anything_to_say_is_a_silent_phrase(self, model, voice):
        slot = model.open(voice, SpeechOptions(), 1)
        pcm, step = speak(model, slot, phrase("…"))
        assert len(pcm) == 0
        assert step.last
        model.close(slot)

    def test_a_phrase_that_does_not_fit_is_refused_and_says_what_to_do(self, model, voice):
        slot = model.open(voice, SpeechOptions(), 1)
        with pytest.raises(ModelError, match=r"more positions than the 768 .* cut it into phrases"):
            model.prefill(slot, phrase("word " * 600))
        model.close(slot)

    def test_a_speed_that_the_model_cannot_have_is_refused(self, model, voice):
        with pytest.raises(ModelError, match="no setting for speed"):
            model.open(voice, SpeechOptions(speed=1.2), 1)
        assert model.free_slots == model.spec.slots

    def test_characters_the_tokenizer_lacks_are_spoken_as_bytes(self, model, voice):
        assert len(alone(model, voice, "Zażółć gęślą ☃ 𝄞", 1)) > 0

    def test_out_of_memory_ends_only_those_who_find_no_room(self, directory, monkeypatch):
        model = load(directory)
        voice = model.load_voice(None)
        slots = [model.open(voice, SpeechOptions(), seed) for seed in range(3)]
        for slot, text in zip(slots, (TEXT, OTHER, TEXT), strict=True):
            take_in(model, slot, phrase(text))
        velocity = model.network.dit.velocity

        def cramped(x, mu, time, context):
            if len(x) > 2 or torch.equal(mu[0], guilty):
                raise torch.OutOfMemoryError("out of memory")
            return velocity(x, mu, time, context)

        guilty = model.network.guidance(slots[1].session.hidden)[0]
        monkeypatch.setattr(model.network.dit, "velocity", cramped)
        first, second, third = model.step(slots)
        assert isinstance(second, ModelError)
        monkeypatch.undo()
        for seed, step in ((0, first), (2, third)):
            (fresh,) = model.decode([slots[seed]], [step.latents])
            assert off(fresh, alone(model, voice, TEXT, seed)[: len(fresh)]) < EXACT

    def test_steps_follow_the_place_in_the_turn_and_the_audio_ahead(self, directory):
        model = load(directory, steps=6, first_steps=2, short_steps=3, spare_steps=9, min_len=20)
        slot = model.open(model.load_voice(None), SpeechOptions(), 1)
        take_in(model, slot, phrase(TEXT))
        counts = []
        velocity = model.network.dit.velocity
        model.network.dit.velocity = lambda *args: counts.append(1) or velocity(*args)
        seen = []
        for ahead in (0.0, 0.1, 0.1, 0.5, 1.5):
            counts.clear()
            (step,) = model.step([slot], [ahead])
            model.decode([slot], [step.latents])
            seen.append(len(counts))
        assert seen == [1, 1, 2, 5, 8]


class TestTurns:
    @staticmethod
    def second(directory, strategy, text):
        model = load(directory, strategy=strategy)
        slot = model.open(model.load_voice(None), SpeechOptions(), 4)
        speak(model, slot, phrase(text))
        model.prefill(slot, phrase(OTHER, start=40))
        taken = slot.session.position
        model.close(slot)
        return taken

    def test_a_turn_goes_on_from_what_it_said_and_independent_phrases_do_not(self, directory):
        apart = {self.second(directory, "independent", text) for text in (TEXT, "Thank you very much!")}
        assert len(apart) == 1
        together = {self.second(directory, "continue", text) for text in (TEXT, "Thank you very much!")}
        assert min(together) > max(apart)

    def test_history_is_bounded_however_long_the_turn(self, directory):
        model = load(directory, history_s=1.0)
        slot = model.open(model.load_voice(None), SpeechOptions(), 4)
        sizes = []
        for turn in range(8):
            speak(model, slot, phrase(TEXT, start=turn * 40))
            sizes.append(sum(len(spoken.patches) for spoken in slot.history))
        longest = max(len(spoken.patches) for spoken in slot.history)
        assert max(sizes[1:]) <= max(longest, 6) + 6
        assert len(slot.history) <= 2

    def test_a_phrase_that_ran_away_is_nothing_to_go_on_from(self, tmp_path):
        model = load(make_checkpoint(tmp_path / "c"))  # its stop head never stops
        slot = model.open(model.load_voice(None), SpeechOptions(), 4)
        _, step = speak(model, slot, phrase("Thank you!"))
        assert step.reason == "cap"
        model.prefill(slot, phrase(TEXT, start=40))
        assert not slot.history

    def test_the_decoder_runs_through_the_turn(self, model, voice):
        slot = model.open(voice, SpeechOptions(), 4)
        speak(model, slot, phrase(TEXT))
        before = slot.session.decoder
        take_in(model, slot, phrase(OTHER, start=40))
        assert slot.session.decoder is before
        assert any(float(layer.abs().max()) > 0 for layer in before)
        model.close(slot)


class TestGuards:
    @staticmethod
    def guard(tokens=10, **changed):
        return Guard(tokens, 6.25, replace(Limits(), **changed))

    @staticmethod
    def patches(count, seed=0):
        return np.random.default_rng(seed).normal(size=(count, 4, 64)).astype(np.float32)

    def test_a_phrase_ends_at_its_cap(self):
        guard = self.guard(tokens=5)
        reasons = [guard.take(patch) for patch in self.patches(guard.cap)]
        assert guard.cap == 30
        assert reasons == [""] * 29 + ["cap"]

    def test_short_patches_have_the_same_cap_in_seconds(self):
        assert Guard(5, 12.5, Limits()).cap == 2 * self.guard(tokens=5).cap

    @pytest.mark.parametrize(("tokens", "first"), [(3, 4), (12, 5), (80, 22)])
    def test_the_stop_head_is_not_heard_before_anybody_could_have_said_the_text(self, tokens, first):
        guard = self.guard(tokens=tokens)
        heard = []
        for patch in self.patches(first):
            guard.take(patch)
            heard.append(guard.may_stop())
        assert heard == [False] * (first - 1) + [True]

    @pytest.mark.parametrize("cycle", [1, 2, 4])
    def test_a_phrase_that_repeats_itself_is_stuck(self, cycle):
        guard = self.guard(tokens=50)
        guard.hear(np.full(7680, 0.1, np.float32))
        fresh = self.patches(5)
        assert [guard.take(patch) for patch in fresh] == [""] * 5
        stuck = [guard.take(fresh[5 - cycle + index % cycle] * 1.001) for index in range(6)]
        assert stuck == [""] * 5 + ["repetition"]

    def test_silence_before_speech_is_no_repetition(self):
        guard = self.guard(tokens=50)
        for patch in [self.patches(1)[0]] * 20:
            assert guard.take(patch) == guard.hear(np.zeros(7680, np.float32)) == ""

    def test_one_patch_like_another_is_no_repetition(self):
        guard = self.guard(tokens=50)
        one, *others = self.patches(21)
        assert all(guard.take(patch) == "" for pair in zip([one] * 20, others, strict=True) for patch in pair)

    def test_a_silent_tail_ends_the_phrase_but_silence_before_speech_does_not(self):
        guard = self.guard()
        silence, speech = np.zeros(7680, np.float32), np.full(7680, 0.1, np.float32)
        assert [guard.hear(silence) for _ in range(20)] == [""] * 20
        assert guard.hear(speech) == ""
        assert [guard.hear(silence) for _ in range(8)] == [""] * 7 + ["silence"]

    def test_a_patch_that_is_no_number_is_made_again_from_other_noise(self, model, voice):
        slots = [model.open(voice, SpeechOptions(), seed) for seed in range(2)]
        for slot in slots:
            take_in(model, slot, phrase(TEXT))
        slots[0].session.noise = torch.full((4, 64), float("nan"))
        mended, good = model.step(slots)
        assert bool(torch.isfinite(mended.latents).all())
        (pcm,) = model.decode(slots[1:], [good.latents])
        assert off(pcm, alone(model, voice, TEXT, 1)[: len(pcm)]) < EXACT
        for slot in slots:
            model.close(slot)

    def test_a_session_whose_numbers_are_wrong_for_good_ends_alone(self, model, voice):
        slots = [model.open(voice, SpeechOptions(), seed) for seed in range(2)]
        for slot in slots:
            take_in(model, slot, phrase(TEXT))
        with torch.inference_mode():
            slots[0].session.hidden.lm.fill_(float("nan"))
        bad, good = model.step(slots)
        assert isinstance(bad, ModelError)
        assert good.latents is not None
        for slot in slots:
            model.close(slot)


class TestGivenOut:
    """What is heard of a phrase, by decoded patches whose sound is known."""

    SPEECH = np.full(7680, 0.1, np.float32)
    SILENCE = np.zeros(7680, np.float32)

    @pytest.fixture
    def slot(self, model, voice):
        slot = model.open(voice, SpeechOptions(), 1)
        take_in(model, slot, phrase(TEXT))
        yield slot
        model.close(slot)

    @staticmethod
    def give(model, slot, *pieces, ahead_s=0.5, last=False):
        slot.ahead_s, out = ahead_s, []
        for index, pcm in enumerate(pieces):
            slot.last = last and index == len(pieces) - 1
            out.append(len(model._given_out(slot, pcm)))
        return out

    def test_silence_before_the_first_sound_is_left_out(self, model, slot):
        late = np.concatenate([self.SILENCE[:5000], self.SPEECH[:2680]])
        assert self.give(model, slot, self.SILENCE, late, self.SPEECH) == [0, 2680 + 96, 7680]

    def test_silence_after_the_last_sound_is_left_out_but_for_its_fading(self, model, slot):
        early = np.concatenate([self.SPEECH[:1000], self.SILENCE[:6680]])
        assert self.give(model, slot, self.SPEECH, early, last=True) == [7680, 1000 + 2880]

    def test_a_pause_is_held_back_while_there_is_time_and_given_when_speech_goes_on(self, model, slot):
        pause = self.give(model, slot, self.SPEECH, self.SILENCE, self.SILENCE, self.SPEECH)
        assert pause == [7680, 0, 0, 3 * 7680]

    def test_a_pause_is_given_at_once_when_audio_runs_short(self, model, slot):
        assert self.give(model, slot, self.SPEECH, self.SILENCE, ahead_s=0.1) == [7680, 7680]

    def test_a_silent_end_that_was_held_back_is_never_heard(self, model, slot):
        slot.patches = [slot.session.latest] * 8
        assert self.give(model, slot, self.SPEECH, *[self.SILENCE] * 8) == [7680, *[0] * 8]
        (step,) = model.step([slot])
        assert (step.last, step.latents, step.reason) == (True, None, "silence")
        assert not slot.patches
        take_in(model, slot, phrase(OTHER, start=40))
        assert self.give(model, slot, self.SPEECH) == [7680]

    def test_a_repetition_that_was_held_back_is_never_heard(self, directory, monkeypatch):
        model = load(directory, most_per_token=20)
        slot = model.open(model.load_voice(None), SpeechOptions(), 1)
        take_in(model, slot, phrase(TEXT))
        steps = []
        solve = model._sessions._solve
        stuck = torch.randn(4, 64, generator=torch.Generator().manual_seed(1))
        monkeypatch.setattr(
            model._sessions, "_solve", lambda tasks: [stuck] * len(tasks) if len(steps) > 2 else solve(tasks)
        )
        monkeypatch.setattr(model.network, "stops", lambda hidden: torch.zeros(len(hidden.lm), dtype=torch.bool))
        heard = []
        while not steps or not steps[-1].last:
            steps.extend(model.step([slot], [0.5]))
            heard.append(len(model.decode([slot], [steps[-1].latents])[0]))
        assert steps[-1].reason == "repetition"
        assert heard[:4] == [heard[0], 7680, 7680, 7680]
        assert not any(heard[4:])


class TestVoices:
    def test_a_reference_changes_the_voice_and_costs_its_intake_once(self, directory, tmp_path, monkeypatch):
        model = load(directory)
        voice = model.load_voice(write_wav(tmp_path / "a.wav", 2.0))
        assert voice.prefix is not None
        assert voice.prefix.positions == len(voice.reference) + 2 == 15
        taken = []
        advance = model.network.advance
        monkeypatch.setattr(model.network, "advance", lambda x, *rest: taken.append(len(x)) or advance(x, *rest))
        for seed in range(2):
            slot = model.open(voice, SpeechOptions(), seed)
            model.prefill(slot, phrase(TEXT))
            model.close(slot)
        assert taken[0] == taken[1] < 15

    def test_what_is_said_in_a_reference_is_not_spoken(self, directory, tmp_path):
        model, recording = load(directory), write_wav(tmp_path / "a.wav", 2.0)
        told = model.record_voice("a", recording, None, "These words are in the recording.")
        assert np.array_equal(alone(model, told, TEXT, 1), alone(model, model.load_voice(recording), TEXT, 1))

    def test_sessions_over_one_reference_do_not_disturb_it(self, directory, tmp_path):
        model = load(directory)
        voice = model.load_voice(write_wav(tmp_path / "a.wav", 2.0))
        first = alone(model, voice, TEXT, 1)
        alone(model, model.load_voice(None), OTHER, 2)
        alone(model, voice, OTHER, 3)
        assert np.array_equal(alone(model, voice, TEXT, 1), first)

    @pytest.mark.parametrize("release", ["v2", "1.5"])
    def test_a_prompt_is_gone_on_from(self, tmp_path, release):
        model = load(
            make_checkpoint(tmp_path / "c", release),
            prompt_wav=write_wav(tmp_path / "p.wav", 1.5),
            prompt_text="So it is.",
        )
        voice = model.load_voice(None)
        assert voice.prefix is None
        slot = model.open(voice, SpeechOptions(), 1)
        assert slot.session.decoder is voice.primed
        take_in(model, slot, phrase(TEXT))
        assert torch.equal(slot.session.latest, voice.prompt[-1])

    def test_a_release_without_reference_mode_says_what_it_needs(self, tmp_path):
        model = load(make_checkpoint(tmp_path / "c", "0.5b"))
        with pytest.raises(ValueError, match="--prompt-wav and --prompt-text"):
            model.load_voice(write_wav(tmp_path / "a.wav", 2.0))

    def test_a_prompt_without_its_text_is_refused(self, directory, tmp_path):
        model = load(directory, prompt_wav=write_wav(tmp_path / "p.wav", 1.5))
        with pytest.raises(ValueError, match="--prompt-text"):
            model.load_voice(None)

    @pytest.mark.parametrize(("rate", "channels"), [(8000, 1), (44100, 2), (16000, 2)])
    def test_any_rate_and_stereo_are_taken(self, model, tmp_path, rate, channels):
        voice = model.load_voice(write_wav(tmp_path / "a.wav", 2.0, rate, channels))
        assert len(voice.reference) == 13

    def test_an_mp3_is_taken(self, model, tmp_path):
        path = tmp_path / "a.mp3"
        with av.open(str(path), "w") as container:
            stream = container.add_stream("mp3", rate=24000, layout="mono")
            tone = (0.3 * np.sin(np.arange(48000) / 20)).astype(np.float32)
            frame = av.AudioFrame.from_ndarray(tone[None], format="fltp", layout="mono")
            frame.sample_rate = 24000
            container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
        assert 12 <= len(model.load_voice(str(path)).reference) <= 14

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda path: write_wav(path, 0.0), "lasts 0.0 s"),
            (lambda path: write_wav(path, 0.2), "lasts 0.2 s"),
            (
                lambda path: write_wav(path, 600.0, 8000),
                "lasts 61.0 s; recordings of 0.5 to 60 s|0.5 to 60 s can be used",
            ),
            (lambda path: write_wav(path, 2.0, level=0.0), "is silent"),
            (lambda path: path.write_bytes(b""), "cannot be read as audio"),
            (lambda path: path.write_bytes(b"RIFF" + b"\0" * 500), "cannot be read as audio"),
            (lambda path: path.write_text("a letter"), "cannot be read as audio"),
        ],
    )
    def test_a_recording_that_is_of_no_use_is_refused_with_the_cause(self, model, tmp_path, make, message):
        path = tmp_path / "a.wav"
        make(path)
        with pytest.raises(ValueError, match=message):
            model.load_voice(str(path))

    def test_a_missing_voice_says_how_to_add_one(self, model):
        with pytest.raises(ValueError, match="voxagent voice add"):
            model.load_voice("/nowhere/voice.safetensors")

    def test_a_stored_voice_is_the_same_voice(self, model, tmp_path):
        voice = model.load_voice(write_wav(tmp_path / "a.wav", 2.0))
        save_voice(tmp_path / "v.safetensors", voice, model.revision)
        again = model.load_voice(str(tmp_path / "v.safetensors"))
        assert again.name == "a"
        assert np.array_equal(alone(model, again, TEXT, 1), alone(model, voice, TEXT, 1))

    def test_a_stored_voice_of_another_checkpoint_is_refused(self, model, tmp_path):
        other = load(
            make_checkpoint(tmp_path / "c", "1.5"),
            prompt_wav=write_wav(tmp_path / "p.wav", 1.5),
            prompt_text="So it is.",
        )
        save_voice(tmp_path / "v.safetensors", other.load_voice(None), other.revision)
        with pytest.raises(ValueError, match="another checkpoint"):
            model.load_voice(str(tmp_path / "v.safetensors"))

    def test_a_file_that_is_no_voice_is_refused(self, model, tmp_path):
        path = tmp_path / "v.safetensors"
        for content in (b"", b"nonsense", (b"\x08" + b"\0" * 7 + b"{}      ")):
            path.write_bytes(content)
            with pytest.raises(ValueError, match="no voice"):
                model.load_voice(str(path))


class TestOptions:
    @pytest.mark.parametrize("name", ["steps", "first_steps", "short_steps", "spare_steps"])
    def test_one_solver_step_is_refused(self, name):
        with pytest.raises(ValueError, match=rf"{name}.*single step gives noise"):
            parse_options({name: "1"})

    @pytest.mark.parametrize(
        "options", [{"cfg": 0}, {"slots": 0}, {"dtype": "int8"}, {"strategy": "both"}, {"colour": "red"}]
    )
    def test_a_bad_option_is_named_and_all_are_listed(self, options):
        with pytest.raises(ValueError, match=rf"voxcpm option '{next(iter(options))}'.*Options: device, dtype"):
            parse_options(options)

    def test_a_device_that_is_not_there_is_named(self, directory):
        with pytest.raises(ValueError, match="'cuda:7' cannot be used"):
            load(directory, device="cuda:7")

    @pytest.mark.parametrize("source", ["/nowhere/at-all", "not an id", None])
    def test_a_checkpoint_that_is_not_there_says_what_to_give(self, source, monkeypatch):
        monkeypatch.delenv("VOXAGENT_VOXCPM", raising=False)
        with pytest.raises(ValueError, match="openbmb/VoxCPM2"):
            create(source, {})


@pytest.mark.parametrize(
    ("text", "calmed"),
    [
        ("PLEASE HOLD THE LINE", "please hold the line"),
        ("This is VERYIMPORTANT now.", "This is veryimportant now."),
        ("The USB port and the HTML page", "The USB port and the HTML page"),
        ("I said NEVER.", "I said never."),
        ("DON'T WORRY, IT'S FINE", "don't worry, it's fine"),
        ("A B C", "A B C"),
        ("Привет, ЭТО ОЧЕНЬ ВАЖНО", "Привет, это очень важно"),
    ],
)
def test_shouted_words_are_lowered_and_acronyms_are_not(text, calmed):
    assert calm(text, text) == calmed


def test_a_shouted_sentence_is_known_by_what_was_written():
    assert calm("please HOLD the LINE", "PLEASE HOLD THE LINE") == "please hold the line"


@pytest.mark.parametrize(
    ("parts", "whole"),
    [(["One.", "", " Two. "], "One. Two."), (["早安。", "你好"], "早安。你好"), (["Hi", "早"], "Hi 早"), ([], "")],
)
def test_texts_are_joined_as_their_script_does(parts, whole):
    assert joined(parts) == whole
