"""What happened in one call: `CallRecord` notes it as it happens, `read_record` and `summary` read it back.

Owns the file (one JSON object a line) and the one thread that touches the disk. Knows nothing of pipelines or pictures.
A record holds what was said unless it is made with `texts=False`: treat the file like the call itself.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

JSON: TypeAlias = "bool | int | float | str | Sequence[JSON] | Mapping[str, JSON] | None"
Listener: TypeAlias = Callable[[Mapping[str, object]], None]

KINDS: Mapping[str, str] = {
    "start": "call, version, started_at (ISO wall time), clock_s (clock at t = 0), preset, model, voice, sample_rate",
    "token": "turn, text: a piece of text from the LLM",
    "phrase": "turn, text, reason, seed: what went to the model at once, why it was cut there, and the noise it got",
    "chunk": "turn, start_sample, samples, sample_rate, made_ms: audio made; it took made_ms and ended at t",
    "user_voice": "on: an edge of the caller's voice activity",
    "transcript": "text, final, ms: what the caller said, and how long recognising took",
    "user_turn": "event: started, stopped",
    "decision": "action: duck, pause, cancel, resume; cause, voice_ms, position_samples",
    "llm": "event: request, first_token, end",
    "bot": "event: started, stopped",
    "word": "turn, text, start, end: a word was heard to its end; offsets in the turn's written text",
    "cut": "turn, heard, partly, unheard, said_over, position_ms: the turn was interrupted",
    "spoken": "turn, heard: the turn was heard to its end",
    "packets": "first_seq (if known), count, speech, late_ms_max: what was sent in the last second",
    "packet": "event: last_audible, first_audible",
    "underrun": "ms: the caller heard a gap",
    "context": "role, text: what the conversation's memory got",
    "latency": "response_ms, parts (turn, stt, llm, phrase, tts, network; ms)",
    "backchannel": "text: said over the bot without stopping it",
    "error": "message; may quote what failed, also without texts",
    "lost": "count: events this file lacks because the disk did not keep up",
    "end": "reason, duration_s, stats",
}
"""Kind of event: its fields. Every event also has `t` (seconds since the call began) and `kind`."""

_TEXTS = frozenset({"text", "heard", "partly", "unheard", "said_over"})
_FLUSH_S = 1.0
# A busy call makes about 200 events a second: the disk may stand still for most of a minute.
_QUEUE_EVENTS = 10_000

_log = logging.getLogger(__name__)


class CallRecord:
    """The flight recorder of one call. Belongs to the event loop's thread; `note` never waits.

    The file is complete up to the last second at any moment, even if the process dies. A disk that fails or does not
    keep up costs events, which are counted in `lost`, never time. An existing file is replaced.

    Args:
        clock: Seconds; the event loop's `time`.
        path: File to write; its folder is made. None: only listeners see the events.
        call_id: Name of the call, for logs.
        keep: How many of the latest events stay in `kept`, for a listener that comes late.
        texts: False replaces everything said, by whomever, by its number of characters; listeners see that too.

    Attributes:
        clock_s: The clock's reading at `t` = 0.
        call_id: As given.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        path: Path | None = None,
        *,
        call_id: str = "",
        keep: int = 0,
        texts: bool = True,
    ) -> None:
        if keep < 0:
            raise ValueError(f"keep is a number of events, 0 or more, not {keep}")
        self.clock_s = clock()
        self.call_id = call_id
        self._clock = clock
        self._texts = texts
        self._kept: deque[Mapping[str, object]] = deque(maxlen=keep)
        self._listeners: list[Listener] = []
        self._closed = False
        self._file = _File(path, call_id) if path is not None else None
        if self._file is not None:
            atexit.register(self.close)

    @property
    def lost(self) -> int:
        """Events that did not reach the file."""
        return 0 if self._file is None else self._file.refused + self._file.unwritten

    @property
    def kept(self) -> tuple[Mapping[str, object], ...]:
        """The latest events, oldest first."""
        return tuple(self._kept)

    def note(self, kind: str, /, **fields: JSON) -> None:
        """Notes an event that happens now. After `close` it is ignored: a pipeline may go on for a moment.

        Values are copied as plain JSON; a number that JSON does not know becomes null.

        Args:
            kind: One of `KINDS`, or one of your own.
            fields: Anything but `t` and `kind`.
        """
        if "t" in fields or "kind" in fields:
            raise ValueError("every event has a `t` and a `kind` of its own: give the field another name")
        if self._closed:
            return
        event: dict[str, object] = {"t": round(self._clock() - self.clock_s, 6), "kind": kind}
        for name, value in fields.items():
            hides = not self._texts and name in _TEXTS
            event[name] = len(value) if hides and isinstance(value, str) else _plain(value)
        if self._file is not None:
            self._file.put(event)
        self._kept.append(event)
        for listener in tuple(self._listeners):
            self._tell(listener, event)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Calls `listener` with every event from now on, in the loop's thread; a listener that raises is dropped.

        Returns:
            A function that ends it, any number of times.
        """
        self._listeners.append(listener)
        return lambda: self._drop(listener)

    def close(self, wait_s: float = 1.0) -> None:
        """Writes what is left and closes the file; idempotent. On an event loop that serves others use `aclose`.

        Args:
            wait_s: How long to wait for the disk. A healthy one takes a millisecond; a sick one goes on by itself.
        """
        self._end()
        if self._file is not None:
            with suppress(TimeoutError):
                self._file.done.result(wait_s)

    async def aclose(self, wait_s: float = 10.0) -> None:
        """Like `close`, without holding up the event loop."""
        self._end()
        if self._file is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.wrap_future(self._file.done), wait_s)

    def _end(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._listeners.clear()
        if self._file is not None:
            atexit.unregister(self.close)
            last = {"t": round(self._clock() - self.clock_s, 6), "kind": "lost", "count": self.lost}
            self._file.end(last if self.lost else None)

    def _tell(self, listener: Listener, event: Mapping[str, object]) -> None:
        try:
            listener(event)
        except Exception:
            _log.exception("call %s: a listener of its record failed and hears no more", self.call_id)
            self._drop(listener)

    def _drop(self, listener: Listener) -> None:
        with suppress(ValueError):
            self._listeners.remove(listener)


class _File:
    """A file and the thread that writes it. The two sides share a deque, whose ends are safe without a lock."""

    def __init__(self, path: Path, call_id: str) -> None:
        self.done: Future[None] = Future()
        # A future that runs cannot be cancelled, so that nobody who waits for it can take it from the others.
        self.done.set_running_or_notify_cancel()
        self._path = path
        self._call_id = call_id
        self._queue: deque[Mapping[str, object]] = deque()
        self._ending = threading.Event()
        self._over = False
        self.refused = self.unwritten = 0
        # A daemon: a call that is never closed must not keep the process alive.
        threading.Thread(target=self._run, name=f"record {call_id}", daemon=True).start()

    def put(self, event: Mapping[str, object]) -> None:
        """Takes an event, or counts it as refused."""
        if self._over or len(self._queue) >= _QUEUE_EVENTS:
            self.refused += 1
        else:
            self._queue.append(event)

    def end(self, last: Mapping[str, object] | None) -> None:
        """Has the thread write what waits, and `last`, and close."""
        if last is not None:
            self._queue.append(last)
        self._ending.set()

    def _run(self) -> None:
        batch: list[Mapping[str, object]] = []
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("wb", buffering=0) as file:
                ending = False
                while not ending:
                    ending = self._ending.wait(_FLUSH_S)
                    batch = [self._queue.popleft() for _ in range(len(self._queue))]
                    lines = b"".join(map(_line, batch))
                    while lines:
                        lines = lines[file.write(lines) :]
        except OSError as error:
            # What follows a torn line would be lost to a reader, so the file ends here.
            self._over = True
            self.unwritten = len(batch) + len(self._queue)
            _log.error("call %s: its record ends here (%s): see to the disk or its folder", self._call_id, error)
        finally:
            self.done.set_result(None)


def _line(event: Mapping[str, object]) -> bytes:
    # Half a character from a stream of text becomes the escape that JSON has for it.
    text = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", errors="backslashreplace") + b"\n"


def _plain(value: object) -> JSON:
    """Copies a value as what JSON knows; numpy's numbers become Python's."""
    match value:
        case None | str() | bool():
            return value
        case Enum():
            return _plain(value.value)
        case int():
            return int(value)
        case float():
            return float(value) if math.isfinite(value) else None
        case Mapping():
            return {str(name): _plain(item) for name, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(item) for item in value]
        case _ if hasattr(value, "tolist"):
            return _plain(value.tolist())
        case _:
            return str(value)


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a record.

    Attributes:
        at_s: Seconds since the call began.
        kind: See `KINDS`.
        fields: The rest.
    """

    at_s: float
    kind: str
    fields: Mapping[str, Any]


def read_record(path: Path) -> list[Event]:
    """Reads a record. A last line that the end of the process tore is left out.

    Raises:
        OSError: It cannot be read.
        ValueError: Another line is no event; the message names it.
    """
    lines = [(number, line) for number, line in enumerate(path.read_bytes().split(b"\n"), 1) if line.strip()]
    events = []
    for number, line in lines:
        event = _event(line)
        if event is not None:
            events.append(event)
        elif number != lines[-1][0] or not events:
            raise ValueError(f"{path}, line {number}: no event of a call; give a file written by a call's record")
    return events


def _event(line: bytes) -> Event | None:
    try:
        fields = json.loads(line)
    except ValueError:
        return None
    match fields:
        case {"t": int() | float() as at_s, "kind": str() as kind}:
            return Event(float(at_s), kind, {name: fields[name] for name in fields if name not in ("t", "kind")})
    return None


@dataclass(frozen=True, slots=True)
class CallSummary:
    """A call in one row.

    Attributes:
        call: Its id.
        started_at: ISO wall time; empty when unknown.
        duration_s: Seconds; to the last event when the end was not noted.
        turns: Replies of the bot.
        interruptions: Replies that the caller cut.
        response_median_ms: End of the caller's turn to the first audible sample; None without any.
        end_reason: "unfinished" when the end was not noted.
    """

    call: str
    started_at: str
    duration_s: float
    turns: int
    interruptions: int
    response_median_ms: float | None
    end_reason: str


def summary(events: Iterable[Event]) -> CallSummary:
    """Sums a call up; a call that is still going on, too."""
    start: Mapping[str, Any] = {}
    end: Mapping[str, Any] = {}
    turns: set[object] = set()
    responses: list[float] = []
    cuts = 0
    at_s = 0.0
    for event in events:
        at_s = event.at_s
        if "turn" in event.fields:
            turns.add(event.fields["turn"])
        match event.kind:
            case "start":
                start = event.fields
            case "end":
                end = event.fields
            case "cut":
                cuts += 1
            case "latency" if event.fields.get("response_ms") is not None:
                responses.append(event.fields["response_ms"])
    return CallSummary(
        call=str(start.get("call", "")),
        started_at=str(start.get("started_at", "")),
        duration_s=float(end.get("duration_s", at_s)),
        turns=len(turns),
        interruptions=cuts,
        response_median_ms=median(responses) if responses else None,
        end_reason=str(end.get("reason", "unfinished")),
    )
