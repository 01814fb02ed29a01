"""The step loop without a thread: takes commands, advances the model by one call at a time, tells what came of it.

Owns the model and every slot. Whoever drives it (a thread, or the event loop under virtual time) is its one owner.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np

from voxagent.errors import ModelError
from voxagent.model import LatentModel, Pcm, SpeechOptions, Step, Voice, WordTime
from voxagent.phrases import Phrase
from voxagent.scheduler import Bounds, Candidate, Need, plan

_NOTHING: Pcm = np.zeros(0, np.float32)


@dataclass(slots=True, eq=False)
class Job:
    """One session as the stepper sees it.

    `cancelled`, `played_samples` and `speaking` are written by the session's side only; everything else by the
    stepper only. Plain attributes suffice: each has one writer, and a stale read is corrected by the next command.
    """

    options: SpeechOptions
    seed: int
    cancelled: bool = False
    played_samples: int = 0
    speaking: bool = False
    wake_at_samples: int | None = None
    slot: Any = None
    phrases: deque[Phrase] = field(default_factory=deque)
    current: Phrase | None = None
    ready: bool = False
    likely: Phrase | None = None
    foreseen: Phrase | None = None
    phrase_started: bool = False
    made_samples: int = 0
    input_ended: bool = False
    finished: bool = False


@dataclass(frozen=True, slots=True)
class OpenSlot:
    """Gives the job a slot."""

    job: Job
    voice: Voice


@dataclass(frozen=True, slots=True)
class Feed:
    """One more phrase to speak."""

    job: Job
    phrase: Phrase


@dataclass(frozen=True, slots=True)
class Expect:
    """The job will probably speak this phrase next: an idle model may take it in already."""

    job: Job
    phrase: Phrase


@dataclass(frozen=True, slots=True)
class EndInput:
    """No phrase will follow."""

    job: Job


@dataclass(frozen=True, slots=True)
class Cancel:
    """The job was cancelled: give its slot back."""

    job: Job


@dataclass(frozen=True, slots=True)
class Wake:
    """Look again: a job may have room now."""


Command = OpenSlot | Feed | Expect | EndInput | Cancel | Wake


@dataclass(frozen=True, slots=True)
class Chunk:
    """PCM of one step.

    Attributes:
        job: Whose.
        pcm: Mono float32.
        phrase: Which phrase it belongs to.
        first: It is the phrase's first.
        last: It is the phrase's last (and may be empty).
        words: Word times of the phrase that became known.
        reason: Why the phrase ended when not by itself.
    """

    job: Job
    pcm: Pcm
    phrase: Phrase
    first: bool
    last: bool
    words: tuple[WordTime, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """The job has spoken every phrase, no more will come, and its slot is free."""

    job: Job


@dataclass(frozen=True, slots=True)
class Failed:
    """The job's slot is free, because of this error."""

    job: Job
    error: ModelError


@dataclass(frozen=True, slots=True)
class Released:
    """The acknowledgement of a cancel: the model is idle for this job and its slot is free."""

    job: Job


Outcome = Chunk | Ended | Failed | Released

T = TypeVar("T")


class Stepper:
    """Advances sessions over one model.

    Args:
        model: The loaded model; nobody else calls it but for `load_voice` and `cancel`.
        max_ahead_s: A session with this much audio unplayed rests.
        clock: Seconds, for measures only.
    """

    def __init__(
        self, model: LatentModel[Any], max_ahead_s: float, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.model = model
        self.steps = 0
        self.busy_s = 0.0
        self.busy_since: float | None = None
        self._bounds = Bounds(max_ahead_s=max_ahead_s, max_batch=model.spec.max_batch)
        self._clock = clock
        self._jobs: dict[int, Job] = {}
        self._outcomes: list[Outcome] = []

    @property
    def slots_taken(self) -> int:
        """Slots the model holds."""
        return len(self._jobs)

    @property
    def queued_phrases(self) -> int:
        """Phrases not yet given to the model."""
        return sum(len(job.phrases) for job in list(self._jobs.values()))

    def apply(self, command: Command) -> None:
        """Takes a command; `advance` does the work."""
        match command:
            case OpenSlot(job, voice):
                if not job.cancelled and not job.finished:
                    self._jobs[id(job)] = job
                    self._guarded(job, lambda: self._open(job, voice))
            case Feed(job, phrase):
                job.phrases.append(phrase)
            case Expect(job, phrase):
                if job.foreseen is None or not _sounds_alike(job.foreseen, phrase):
                    job.likely = phrase
            case EndInput(job):
                job.input_ended = True
                self._finish_if_done(job)
            case Cancel(job):
                self._release(job)
                self._outcomes.append(Released(job))
            case Wake():
                pass

    def advance(self) -> tuple[list[Outcome], bool]:
        """Makes one model call at most.

        Returns:
            What happened, and whether there may be more to do without another command.
        """
        candidates = [c for job in list(self._jobs.values()) if (c := self._candidate(job))]
        certain = [c for c in candidates if self._jobs[c.key].current is not None]
        # What may never be spoken is worth no more than idle time.
        work = plan(certain, self._bounds) or plan(candidates, self._bounds)
        if work is not None:
            jobs = [self._jobs[key] for key in work.keys]
            if work.need is Need.PREFILL and jobs[0].current is None:
                self._foresee(jobs[0])
            elif work.need is Need.PREFILL:
                self._guarded(jobs[0], lambda: self._prefill(jobs[0]))
            else:
                self._step(jobs)
        outcomes, self._outcomes = self._outcomes, []
        return outcomes, work is not None

    def cancel_all(self) -> None:
        """Cuts the call in progress short, for a process that ends; from any thread."""
        for job in list(self._jobs.values()):
            job.cancelled = True
            slot = job.slot
            if slot is not None:
                self.model.cancel(slot)

    def close(self) -> None:
        """Gives every slot back."""
        for job in list(self._jobs.values()):
            self._release(job)

    def _open(self, job: Job, voice: Voice) -> None:
        job.slot = self.model.open(voice, job.options, job.seed)

    def _candidate(self, job: Job) -> Candidate | None:
        if job.cancelled or job.slot is None:
            return None
        if job.current is None and job.phrases:
            job.current, job.likely = job.phrases.popleft(), None
            job.ready = job.foreseen is not None and _sounds_alike(job.foreseen, job.current)
            job.foreseen, job.phrase_started = None, False
        if job.current is None and job.likely is None:
            return None
        rate = self.model.spec.sample_rate
        # Set before `played_samples` is read, so that whoever plays on after that sees it and wakes us.
        job.wake_at_samples = job.made_samples - int(self._bounds.max_ahead_s * rate) + 1
        ahead_s = (job.made_samples - job.played_samples) / rate
        if ahead_s < self._bounds.max_ahead_s:
            job.wake_at_samples = None
        steps = job.current is not None and job.ready
        return Candidate(id(job), Need.STEP if steps else Need.PREFILL, ahead_s, job.speaking)

    def _prefill(self, job: Job) -> None:
        assert job.current is not None
        job.ready = self.model.prefill(job.slot, job.current)

    def _foresee(self, job: Job) -> None:
        """Takes in a phrase that is only likely. When that fails, nothing was lost: the real one will tell."""
        phrase, job.foreseen = job.likely, None
        done: list[bool] = []
        error = self._call(lambda: done.append(phrase is None or self.model.prefill(job.slot, phrase)))
        if error is not None:
            job.likely = None
        elif done[0]:
            job.foreseen, job.likely = phrase, None

    def _step(self, jobs: Sequence[Job]) -> None:
        rate = self.model.spec.sample_rate
        ahead_s = [(job.made_samples - job.played_samples) / rate for job in jobs]
        stepped = self._together(jobs, lambda: self.model.step([job.slot for job in jobs], ahead_s))
        self.steps += 1
        sounding = [(job, step) for job, step in stepped if step.latents is not None]
        latents = [step.latents for _, step in sounding]
        decoded = self._together(
            [job for job, _ in sounding], lambda: self.model.decode([job.slot for job, _ in sounding], latents)
        )
        pcm = {id(job): samples for job, samples in decoded}
        for job, step in stepped:
            if step.latents is None or id(job) in pcm:
                samples = pcm.get(id(job), _NOTHING)
                self._guarded(job, partial(self._settle, job, step, samples))

    def _together(self, jobs: Sequence[Job], call: Callable[[], Sequence[T | Exception]]) -> list[tuple[Job, T]]:
        """Makes one call for several jobs. Those that got an exception fail; all of them when it was raised."""
        if not jobs:
            return []
        results: list[T | Exception] = []
        error = self._call(lambda: results.extend(call()))
        if error is None and len(results) != len(jobs):
            error = ModelError(f"the model answered {len(results)} of {len(jobs)} sessions")
        if error is not None:
            results = [error] * len(jobs)
        answered: list[tuple[Job, T]] = []
        for job, result in zip(jobs, results, strict=True):
            if isinstance(result, Exception):
                self._fail(job, result)
            else:
                answered.append((job, result))
        return answered

    def _settle(self, job: Job, step: Step, pcm: Pcm) -> None:
        phrase = job.current
        if job.cancelled or phrase is None:
            return
        if not np.isfinite(pcm).all():
            raise ModelError("the model made samples that are no numbers: its weights or its input are damaged")
        job.made_samples += len(pcm)
        first = not job.phrase_started
        job.phrase_started = True
        self._outcomes.append(Chunk(job, pcm, phrase, first, step.last, step.words, step.reason))
        if step.last:
            job.current = None
            self._finish_if_done(job)

    def _finish_if_done(self, job: Job) -> None:
        """Frees the slot with the last chunk, so that whoever is admitted because this one ended finds it free."""
        if job.input_ended and job.current is None and not job.phrases and not job.finished:
            job.finished = True
            self._release(job)
            self._outcomes.append(Ended(job))

    def _guarded(self, job: Job, call: Callable[[], None]) -> None:
        if (error := self._call(call)) is not None:
            self._fail(job, error)

    def _call(self, call: Callable[[], None]) -> Exception | None:
        started = self.busy_since = self._clock()
        try:
            call()
        except Exception as error:
            return error
        finally:
            self.busy_since = None
            self.busy_s += self._clock() - started
        return None

    def _fail(self, job: Job, error: Exception) -> None:
        if job.cancelled:
            return  # A cancel may surface as an error of the call it cut short.
        self._outcomes.append(Failed(job, error if isinstance(error, ModelError) else _described(error)))
        self._release(job)

    def _release(self, job: Job) -> None:
        self._jobs.pop(id(job), None)
        job.phrases.clear()
        job.current = None
        slot, job.slot = job.slot, None
        if slot is not None and (error := self._call(lambda: self.model.close(slot))) is not None:
            self._outcomes.append(Failed(job, _described(error)))


def _sounds_alike(one: Phrase, other: Phrase) -> bool:
    return (one.spoken, one.start, one.final) == (other.spoken, other.start, other.final)


def _described(error: Exception) -> ModelError:
    failure = ModelError(f"the model failed: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
