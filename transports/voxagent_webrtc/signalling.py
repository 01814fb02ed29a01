"""`Signalling`: the calls of one agent, and what HTTP requests do to them.

Knows nothing of a web framework: dictionaries in, dictionaries out, `Refused` with a status otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from voxagent_webrtc.connection import Connection, Ended, OfferError

MAX_BODY_BYTES = 64 * 1024
"""An offer has 2 to 8 kB; candidates of a machine with many interfaces a few more."""

OnCall = Callable[[Connection, object], Awaitable[None]]


class Refused(Exception):
    """A request that was not granted.

    Attributes:
        status: For HTTP.
        reason: In words, for the caller.
        retry_after_s: When it may be tried again, for 503.
    """

    def __init__(self, status: int, reason: str, retry_after_s: int | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.retry_after_s = retry_after_s


class Offer(BaseModel):
    """The body of `POST /api/offer`, as Pipecat's clients send it too."""

    model_config = ConfigDict(extra="ignore")

    sdp: str = Field(min_length=1)
    type: str
    pc_id: str | None = None
    restart_pc: bool | None = None
    request_data: Any = Field(default=None, alias="requestData")


class Candidate(BaseModel):
    """One trickled candidate."""

    candidate: str
    sdp_mid: str | None = None
    sdp_mline_index: int | None = None


class Candidates(BaseModel):
    """The body of `PATCH /api/offer`."""

    pc_id: str
    candidates: list[Candidate] = Field(max_length=100)


class Signalling:
    """Admits calls, and finds the one a request is about.

    Args:
        connect: Makes the connection of a new call.
        on_call: Runs the call, from the answer to its end; the connection is closed when it returns.
        limit: Calls at once.
        retry_after_s: What a caller is told when there are as many.
        end_s: What a closed call gets to come to its end before it is cancelled.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        on_call: OnCall,
        limit: int,
        retry_after_s: int = 10,
        end_s: float = 10.0,
    ) -> None:
        if limit < 1:
            raise ValueError(f"the limit of calls must be at least 1, not {limit}")
        self.limit = limit
        self._connect = connect
        self._on_call = on_call
        self._retry_after_s = retry_after_s
        self._end_s = end_s
        self._calls: dict[str, Connection] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._draining = False

    @property
    def calls(self) -> int:
        """Calls in progress."""
        return len(self._calls)

    async def offer(self, body: Mapping[str, Any]) -> dict[str, str]:
        """`POST /api/offer`: starts a call, renegotiates one, or takes one up again.

        Raises:
            Refused: With status and reason.
        """
        try:
            offer = Offer.model_validate(body)
        except ValidationError as error:
            raise Refused(422, _flaw(error)) from None
        if offer.type != "offer":
            raise Refused(422, f"type must be 'offer', not {offer.type[:40]!r}")
        known = self._calls.get(offer.pc_id or "")
        if known is not None:
            return await self._answer(known, offer)
        return await self._admit(offer)

    async def candidates(self, body: Mapping[str, Any]) -> dict[str, str]:
        """`PATCH /api/offer`: candidates that came after the offer.

        Raises:
            Refused: With status and reason.
        """
        try:
            patch = Candidates.model_validate(body)
        except ValidationError as error:
            raise Refused(422, _flaw(error)) from None
        call = self._calls.get(patch.pc_id)
        if call is None:
            raise Refused(404, "no such call: it has ended, or never began")
        for one in patch.candidates:
            try:
                await call.add_candidate(one.candidate, one.sdp_mid, one.sdp_mline_index)
            except OfferError as error:
                raise Refused(400, str(error)) from None
        return {"status": "ok"}

    async def drain(self, patience_s: float) -> None:
        """Refuses new calls, waits for those in progress to end, and closes what is left then."""
        self._draining = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=patience_s)
        await asyncio.gather(*(call.close() for call in list(self._calls.values())))
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._end_s)
        left = list(self._tasks)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=self._end_s)

    async def _admit(self, offer: Offer) -> dict[str, str]:
        if self._draining:
            raise Refused(503, "the agent is shutting down", self._retry_after_s)
        if len(self._calls) >= self.limit:
            raise Refused(503, f"all {self.limit} lines are busy", self._retry_after_s)
        call = self._connect()
        # Taken before the answer is made: a crowd of offers must not slip past the limit meanwhile.
        self._calls[call.pc_id] = call
        try:
            answer = await self._answer(call, offer)
        except BaseException:
            del self._calls[call.pc_id]
            await call.close()
            raise
        task = asyncio.create_task(self._run(call, offer.request_data))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return answer

    async def _answer(self, call: Connection, offer: Offer) -> dict[str, str]:
        try:
            sdp = await call.answer(offer.sdp, restart=bool(offer.restart_pc))
        except OfferError as error:
            raise Refused(400, str(error)) from None
        return {"sdp": sdp, "type": "answer", "pc_id": call.pc_id}

    async def _run(self, call: Connection, data: object) -> None:
        try:
            await self._on_call(call, data)
        finally:
            await call.close(Ended.CLOSED)
            self._calls.pop(call.pc_id, None)


def _flaw(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"]) or "body"
    return f"{place}: {first['msg']}"
