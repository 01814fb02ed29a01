"""The step loop without a thread: takes commands, advances the model by one call at a time, tells what came of it.

Owns the model and every slot. Whoever drives it (a thread, or the event loop under virtual time) is its one owner.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
    resting: bool = False
    voice: Voice | None = None
    slot: Any = None
    phrases: deque[Phrase] = field(default_factory=deque)
    current: Phrase | None = None
    ready: bool = False
    phrase_started: bool = False
    made_samples: int = 0
    input_ended: bool = False


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


Command = OpenSlot | Feed | EndInput | Cancel | Wake


@dataclass(frozen=True, slots=True)
class Chunk:
    """PCM of one step.

    Attributes:
        job: Whose.
        pcm: Mono float32.
        phrase: Which phrase it belongs to.
        first: It is the phrase's first; `words` are complete then.
        last: It is the phrase's last (and may be empty).
        words: Word times of the phrase.
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
    at_s: float


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
                if not job.cancelled:
                    job.voice = voice
                    self._jobs[id(job)] = job
                    self._guarded(job, lambda: self._open(job, voice))
            case Feed(job, phrase):
                job.phrases.append(phrase)
            case EndInput(job):
                job.input_ended = True
            case Cancel(job):
                self._release(job)
                self._outcomes.append(Released(job, self._clock()))
            case Wake():
                pass

    def advance(self) -> tuple[list[Outcome], bool]:
        """Makes one model call at most.

        Returns:
            What happened, and whether there may be more to do without another command.
        """
        candidates = [c for job in list(self._jobs.values()) if (c := self._candidate(job))]
        work = plan(candidates, self._bounds)
        if work is not None:
            jobs = [self._jobs[key] for key in work.keys]
            if work.need is Need.PREFILL:
                self._guarded(jobs[0], lambda: self._prefill(jobs[0]))
            else:
                self._step(jobs)
        outcomes, self._outcomes = self._outcomes, []
        return outcomes, work is not None

    def cancel_all(self) -> None:
        """Cuts the call in progress short, for a process that ends; from any thread."""
        for job in list(self._jobs.values()):
            job.cancelled = True
            if job.slot is not None:
                self.model.cancel(job.slot)

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
            job.current = job.phrases.popleft()
            job.ready = job.phrase_started = False
        if job.current is None:
            if job.input_ended:
                self._release(job)
                self._outcomes.append(Ended(job))
            return None
        # Set before `played_samples` is read, so that a reader who frees room after that sees it and wakes us.
        job.resting = True
        ahead_s = (job.made_samples - job.played_samples) / self.model.spec.sample_rate
        if ahead_s < self._bounds.max_ahead_s:
            job.resting = False
        return Candidate(id(job), Need.STEP if job.ready else Need.PREFILL, ahead_s, job.speaking)

    def _prefill(self, job: Job) -> None:
        assert job.current is not None
        job.ready = self.model.prefill(job.slot, job.current)

    def _step(self, jobs: Sequence[Job]) -> None:
        stepped = self._together(jobs, lambda some: self.model.step([job.slot for job in some]))
        self.steps += 1
        latents = {id(job): step.latents for job, step in stepped}
        sounding = [job for job, step in stepped if step.latents is not None]
        decoded = self._together(
            sounding, lambda some: self.model.decode([j.slot for j in some], [latents[id(j)] for j in some])
        )
        pcm = {id(job): samples for job, samples in decoded}
        for job, step in stepped:
            if step.latents is None or id(job) in pcm:
                self._settle(job, step, pcm.get(id(job), _NOTHING))

    def _together(self, jobs: Sequence[Job], call: Callable[[Sequence[Job]], list[T]]) -> list[tuple[Job, T]]:
        """Calls for all jobs at once; when that raises, for each alone, so that only the culprit fails."""
        if not jobs:
            return []
        results: list[T] = []
        error = self._call(lambda: results.extend(call(jobs)))
        if error is None and len(results) != len(jobs):
            error = ModelError(f"the model answered {len(results)} of {len(jobs)} sessions")
        if error is None:
            return list(zip(jobs, results, strict=True))
        if len(jobs) == 1:
            self._fail(jobs[0], error)
            return []
        return [pair for job in jobs for pair in self._together([job], call)]

    def _settle(self, job: Job, step: Step, pcm: Pcm) -> None:
        phrase = job.current
        starved = step.latents is None and not step.last
        if job.cancelled or phrase is None or starved:
            return
        job.made_samples += len(pcm)
        first = not job.phrase_started
        job.phrase_started = True
        self._outcomes.append(Chunk(job, pcm, phrase, first, step.last, step.words, step.reason))
        if step.last:
            job.current = None

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
        failure = error if isinstance(error, ModelError) else _described(error)
        self._release(job)
        self._outcomes.append(Failed(job, failure))

    def _release(self, job: Job) -> None:
        self._jobs.pop(id(job), None)
        job.phrases.clear()
        job.current = None
        slot, job.slot = job.slot, None
        if slot is not None and (error := self._call(lambda: self.model.close(slot))) is not None:
            self._outcomes.append(Failed(job, _described(error)))


def _described(error: Exception) -> ModelError:
    failure = ModelError(f"the model failed: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
