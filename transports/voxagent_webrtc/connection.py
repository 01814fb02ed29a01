"""`Connection`: one call's peer connection, its replacements, and its end.

Owns offer and answer, trickled candidates, reconnection, the data channel, and finding out that the peer is gone.
Knows nothing of HTTP, and nothing of what is said.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from aiortc import (
    RTCBundlePolicy,
    RTCConfiguration,
    RTCDataChannel,
    RTCIceServer,
    RTCPeerConnection,
    RTCSessionDescription,
)
from aiortc.exceptions import InternalError, InvalidAccessError, InvalidStateError, OperationError
from aiortc.sdp import candidate_from_sdp

from voxagent_webrtc.line import AudioLine, abandon, audio_of, packets_received

_log = logging.getLogger(__name__)

_POLL_S = 0.5
_WAITING_MESSAGES = 50
# Closing takes milliseconds.
_CLOSE_S = 3.0


class OfferError(ValueError):
    """An offer or candidate that cannot be used; the message tells the peer why."""


class Ended(Enum):
    """Why a connection ended."""

    HUNG_UP = "the caller hung up"
    CLOSED = "closed by the agent"
    NEVER_CONNECTED = "the caller never connected"
    VANISHED = "the caller vanished"


class Listener(Protocol):
    """Who is told what happens to a connection. Called on the event loop; must not block."""

    def connected(self) -> None:
        """The peer is there, for the first time or again."""

    def lost(self) -> None:
        """The peer is gone; it may come back."""

    def message(self, message: object) -> None:
        """A JSON message came over the data channel."""

    def ended(self, reason: Ended) -> None:
        """The call is over. Comes once."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a connection waits, in seconds.

    Attributes:
        connect_s: From the answer to the first packet. ICE over TURN takes a few seconds; nobody waits longer.
        silent_s: Without any packet before the peer counts as lost. A browser sends 50 a second, even when muted, and
            a receiver's reports come at least every 1.5 s.
        return_s: For a lost peer to come back with a new offer. Browsers notice a loss after 5 to 7 s.
    """

    connect_s: float = 15.0
    silent_s: float = 3.0
    return_s: float = 15.0

    def __post_init__(self) -> None:
        if min(self.connect_s, self.silent_s, self.return_s) <= 0:
            raise ValueError("every patience must be positive, in seconds")


@dataclass(slots=True)
class _Peer:
    """One peer connection, and how much came over it."""

    pc: RTCPeerConnection
    channel: RTCDataChannel | None = None
    packets: int = 0
    heard_at_s: float = 0.0
    connected: bool = False


@dataclass(slots=True)
class _State:
    listeners: list[Listener] = field(default_factory=list)
    ended: Ended | None = None
    met: bool = False
    lost: bool = False


class Connection:
    """A call with one peer, over one `RTCPeerConnection` after another.

    Args:
        ice_servers: STUN and TURN servers.
        patience: See `Patience`.
    """

    def __init__(self, ice_servers: Sequence[RTCIceServer] = (), patience: Patience | None = None) -> None:
        self.pc_id = uuid.uuid4().hex
        self.line = AudioLine()
        self._ice_servers = list(ice_servers)
        self._patience = patience or Patience()
        self._peer: _Peer | None = None
        self._state = _State()
        self._waiting: list[str] = []
        self._watch: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    @property
    def ended(self) -> Ended | None:
        """Why the call is over, if it is."""
        return self._state.ended

    @property
    def is_connected(self) -> bool:
        """Whether packets of the peer arrive."""
        return self._peer is not None and self._peer.connected and not self._state.lost

    def listen(self, listener: Listener) -> None:
        """Tells `listener` from now on, and at once if the peer is there already."""
        self._state.listeners.append(listener)
        if self._state.ended is not None:
            listener.ended(self._state.ended)
        elif self.is_connected:
            listener.connected()

    async def answer(self, sdp: str, *, restart: bool = False) -> str:
        """Answers an offer: the first, a renegotiation, or with `restart` one of a peer that lost us.

        Returns:
            The answer's SDP, all candidates of ours in it.

        Raises:
            OfferError: With the reason. With `restart` a call in progress goes on as it was; a renegotiation that
                breaks off half way may end it.
        """
        async with self._lock:
            if self._state.ended is not None:
                raise OfferError("this call is over: start a new one without pc_id")
            peer = self._peer
            if peer is not None and not restart:
                return await self._negotiate(peer.pc, sdp)
            now_s = asyncio.get_running_loop().time()
            # The wait goes on where it was: offers that never connect must not hold the line for ever.
            fresh = _Peer(self._new_pc(), heard_at_s=peer.heard_at_s if peer is not None else now_s)
            self._state.met = self._state.met or (peer is not None and peer.connected)
            try:
                answer = await self._negotiate(fresh.pc, sdp)
            except BaseException:
                await _shut(fresh.pc)
                raise
            self._peer = fresh
            if peer is not None:
                await _close(peer)
            if self._watch is None:
                self._watch = asyncio.create_task(self._watch_peer())
            return answer

    async def add_candidate(self, candidate: str, sdp_mid: str | None, sdp_mline_index: int | None) -> None:
        """Takes a trickled candidate of the peer; an empty one says that it was the last.

        Raises:
            OfferError: It is malformed.
        """
        peer = self._peer
        if peer is None or self._state.ended is not None:
            raise OfferError("this call is over: start a new one")
        if not candidate:
            await peer.pc.addIceCandidate(None)
            return
        try:
            parsed = candidate_from_sdp(candidate.removeprefix("candidate:"))
            parsed.sdpMid, parsed.sdpMLineIndex = sdp_mid, sdp_mline_index
            await peer.pc.addIceCandidate(parsed)
        except (ValueError, AssertionError, IndexError, KeyError, InvalidStateError) as error:
            raise OfferError(f"not an ICE candidate: {candidate[:80]!r}") from error

    def send(self, message: object) -> None:
        """Sends JSON over the data channel; what comes before it is open waits, up to 50 messages."""
        # In ASCII: half a surrogate pair, which a language model may well send, has no UTF-8.
        text = json.dumps(message)
        channel = self._peer.channel if self._peer is not None else None
        if channel is not None and channel.readyState == "open":
            channel.send(text)
        elif len(self._waiting) < _WAITING_MESSAGES:
            self._waiting.append(text)

    async def close(self, reason: Ended = Ended.CLOSED) -> None:
        """Ends the call and frees everything. May be called twice, and from anywhere."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(reason))
        await asyncio.shield(self._closing)

    # --- inside --------------------------------------------------------------------------------------------------

    def _new_pc(self) -> RTCPeerConnection:
        # With aiortc's balanced policy a second media section stays off the bundled transport.
        pc = RTCPeerConnection(RTCConfiguration(self._ice_servers, bundlePolicy=RTCBundlePolicy.MAX_BUNDLE))
        pc.on("datachannel", lambda channel: self._take_channel(pc, channel))
        pc.on("connectionstatechange", lambda: self._look_again(pc))
        return pc

    async def _negotiate(self, pc: RTCPeerConnection, sdp: str) -> str:
        with _refusals():
            await pc.setRemoteDescription(RTCSessionDescription(sdp, "offer"))
        try:
            audio_of(pc)
        except ValueError as error:
            raise OfferError(str(error)) from error
        with _refusals():
            await pc.setLocalDescription(await pc.createAnswer())
        # Last: until here a call in progress is as it was.
        self.line.attach(pc)
        return str(pc.localDescription.sdp)

    def _take_channel(self, pc: RTCPeerConnection, channel: RTCDataChannel) -> None:
        peer = self._peer
        if peer is None or peer.pc is not pc:
            return
        peer.channel = channel
        channel.on("message", self._receive)
        waiting, self._waiting = self._waiting, []
        for text in waiting:
            channel.send(text)

    def _receive(self, text: str | bytes) -> None:
        if not isinstance(text, str) or text.startswith("ping"):
            return
        try:
            message = json.loads(text)
        except (ValueError, RecursionError):
            _log.debug("a message that is no JSON was ignored")
            return
        self._tell(lambda listener: listener.message(message))

    async def _watch_peer(self) -> None:
        """Looks twice a second whether packets arrive: neither ICE nor aiortc tells in time that a peer is gone."""
        loop = asyncio.get_running_loop()
        reason = None
        while reason is None:
            await asyncio.sleep(_POLL_S)
            if self._peer is not None and not self._lock.locked():
                reason = self._look(self._peer, loop.time())
        self._closing = self._closing or asyncio.create_task(self._close(reason))

    def _look_again(self, pc: RTCPeerConnection) -> None:
        """The connection's state changed: no need to wait for the next look."""
        peer = self._peer
        if peer is not None and peer.pc is pc and self._closing is None:
            reason = self._look(peer, asyncio.get_running_loop().time())
            if reason is not None:
                self._closing = asyncio.create_task(self._close(reason))

    def _look(self, peer: _Peer, now_s: float) -> Ended | None:
        packets = _packets_received(peer.pc)
        silent_s = now_s - peer.heard_at_s
        if peer.pc.connectionState == "connected" and packets > peer.packets:
            peer.packets, peer.heard_at_s = packets, now_s
            if not peer.connected or self._state.lost:
                peer.connected, self._state.lost = True, False
                self._tell(lambda listener: listener.connected())
        elif peer.connected and _hung_up(peer.pc):
            return Ended.HUNG_UP
        elif peer.connected and not self._state.lost and silent_s > self._patience.silent_s:
            self._state.lost = True
            self._tell(lambda listener: listener.lost())
        elif silent_s > self._longest_silence_s(peer):
            return Ended.VANISHED if peer.connected or self._state.met else Ended.NEVER_CONNECTED
        return None

    def _longest_silence_s(self, peer: _Peer) -> float:
        back_s = self._patience.silent_s + self._patience.return_s
        if peer.connected:
            return back_s
        return self._patience.connect_s + (back_s if self._state.met else 0.0)

    async def _close(self, reason: Ended) -> None:
        if self._state.ended is not None:
            return
        self._state.ended = reason
        if self._watch is not None:
            self._watch.cancel()
        self.line.detach()
        try:
            async with self._lock:
                if self._peer is not None:
                    await _close(self._peer)
        finally:
            self._tell(lambda listener: listener.ended(reason))
            self._state.listeners.clear()
            self._waiting.clear()

    def _tell(self, say: Callable[[Listener], None]) -> None:
        for listener in list(self._state.listeners):
            try:
                say(listener)
            except Exception:
                # The others, and the watch over the call, have nothing to do with it.
                _log.exception("a listener of the connection failed")


@contextmanager
def _refusals() -> Iterator[None]:
    """Says in words what aiortc has against an offer. It takes well-formed SDP for granted, also when it answers."""
    try:
        yield
    except OperationError as error:
        raise OfferError(f"no codec in common ({error}): offer Opus, G.722, PCMU or PCMA") from error
    except (InvalidStateError, InvalidAccessError, InternalError) as error:
        raise OfferError(f"the offer does not fit this call: {error}") from error
    except (AssertionError, LookupError, AttributeError, TypeError, ValueError) as error:
        raise OfferError("malformed SDP: it is no WebRTC offer") from error


def _packets_received(pc: RTCPeerConnection) -> int:
    return next((packets_received(transceiver.receiver) for transceiver in pc.getTransceivers()), 0)


def _hung_up(pc: RTCPeerConnection) -> bool:
    """Whether the peer said goodbye: it closed its DTLS session."""
    return pc.connectionState in ("closed", "failed")


async def _close(peer: _Peer) -> None:
    peer.pc.remove_all_listeners()
    await _shut(peer.pc)
    peer.channel = None


async def _shut(pc: RTCPeerConnection) -> None:
    """Closes a peer connection, also one that a refused offer left half made: aiortc stumbles over it, or hangs."""
    try:
        async with asyncio.timeout(_CLOSE_S):
            await pc.close()
    except (AttributeError, TimeoutError):
        _log.debug("a connection could not be closed cleanly", exc_info=True)
        abandon(pc)
