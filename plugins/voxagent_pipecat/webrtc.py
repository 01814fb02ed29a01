"""`VoxAgentWebRTCTransport`: a voice call as a Pipecat transport, where `SmallWebRTCTransport` would stand.

Owns Pipecat's side: frames in and out, events, the order of what follows audio. What is played and when is the
playhead's business, who has the floor the floor's, the network the connection's.
"""

# mypy: disallow-untyped-calls=False
# Much of Pipecat is not annotated.

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from pipecat.frames.frames import (
    CancelFrame,
    ClientConnectedFrame,
    ControlFrame,
    EndFrame,
    Frame,
    InputAudioRawFrame,
    InputTransportMessageFrame,
    InterruptionFrame,
    OutputAudioRawFrame,
    OutputTransportMessageFrame,
    OutputTransportMessageUrgentFrame,
    StartFrame,
    TTSAudioRawFrame,
    TTSStoppedFrame,
    UserMuteStartedFrame,
    UserMuteStoppedFrame,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessorSetup
from pipecat.transports.base_input import BaseInputTransport
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import BaseTransport, TransportParams

from voxagent.bargein import Action
from voxagent.floor import RATE as HEARD_RATE
from voxagent.floor import BargeInPolicy, Decision, Floor
from voxagent.pcm import Pcm16, Resampler, to_float32, to_int16
from voxagent.playout import Frame as VoiceFrame
from voxagent_pipecat.gate import CutContexts
from voxagent_pipecat.peers import Peer, peer_of
from voxagent_pipecat.playhead import IN_ORDER, Playhead, PlayheadFrame
from voxagent_pipecat.turns import BargeInFrame, BargeInUserTurnStartStrategy
from voxagent_webrtc import Ended, Ends, SentPacket

# The peer plays what it was sent after its jitter buffer, 40 to 120 ms behind.
_GOODBYE_S = 0.25
# An interruption that was signalled directly comes down the pipeline within milliseconds, unless somebody swallows it.
_SWALLOWED_S = 2.0
# A pause of the caller's takes as long as it takes; the transport knows when its peer is gone.
_NEVER_S = 86_400.0
_REMEMBERED = 64
# Ten packets in a row that did not come.
_DEAF_S = 0.2
# Every frame in the pipeline costs each processor a tenth of a millisecond; the floor has heard the packets already.
_BLOCK = HEARD_RATE // 25
_SILENCE: Pcm16 = np.zeros(HEARD_RATE // 50, np.int16)


@dataclass
class _Reopen(ControlFrame):
    """Follows an interruption through the queue of audio: behind it only new speech comes."""

    number: int = 0
    interruptible: bool = field(default=False, init=False)


class VoxAgentWebRTCTransport(BaseTransport):
    """Audio and messages over WebRTC; video is not carried.

    Event handlers:
        on_client_connected: (transport, connection) when the peer is there.
        on_client_lost: (transport, connection) when nothing of it has come for seconds; it may come back.
        on_client_disconnected: (transport, connection) when the call is over.
        on_app_message: (transport, message, sender) for messages over the data channel.
        on_decision: (transport, decision) for every step of the barge-in ladder, a `voxagent.floor.Decision`.

    Args:
        webrtc_connection: A `voxagent_webrtc.Connection`, or the `SmallWebRTCConnection` of Pipecat's runner.
        params: Audio in and out, rates, mixer and filters, as everywhere in Pipecat.
        policy: Of barge-in. Without one the floor stays with Pipecat's turn strategies, whose interruptions reach the
            track directly; with one, use `user_turn_start_strategy()` as the only start strategy.
        headroom_ms: Audio held ready for the sender.
        input_name: As in `BaseTransport`.
        output_name: As in `BaseTransport`.

    Raises:
        ValueError: Video was asked for.
        TypeError: `webrtc_connection` is none.
    """

    def __init__(
        self,
        webrtc_connection: object,
        params: TransportParams,
        *,
        policy: BargeInPolicy | None = None,
        headroom_ms: float = 80.0,
        input_name: str | None = None,
        output_name: str | None = None,
    ) -> None:
        super().__init__(input_name=input_name, output_name=output_name)
        if params.video_in_enabled or params.video_out_enabled:
            raise ValueError("this transport carries no video: leave video_in_enabled and video_out_enabled off")
        if not 60 <= headroom_ms <= 200:
            raise ValueError(f"headroom_ms lies between 60 and 200, not {headroom_ms}")
        self._connection = webrtc_connection
        self._params = params.model_copy(
            update={
                "audio_out_10ms_chunks": 4,
                "audio_out_end_silence_secs": 0,
                "audio_out_write_timeout_secs": _NEVER_S,
            }
        )
        self.peer: Peer = peer_of(webrtc_connection)
        self.playhead = Playhead(headroom_ms)
        self.floor: Floor | None = None
        if policy is not None:
            self.floor = Floor(self.playhead, policy, self._decide)
        self.on_frame: list[Callable[[VoiceFrame, float], None]] = []
        """Called with every frame handed to the sender, and how late it was in seconds."""
        self.on_floor: list[Callable[[Decision], None]] = []
        """Called with every decision, at once."""
        self.on_packet: list[Callable[[SentPacket], None]] = []
        """Called with every packet of the bot's voice, a `voxagent_webrtc.SentPacket`."""
        self._input = VoiceInput(self)
        self._output = VoiceOutputTransport(self)
        self._listening = False
        self._heard_s = 0.0
        self._hung_up = False
        for event in ("on_client_connected", "on_client_lost", "on_client_disconnected", "on_app_message"):
            self._register_event_handler(event)
        self._register_event_handler("on_decision")

    @property
    def params(self) -> TransportParams:
        """As adapted."""
        return self._params

    def input(self) -> VoiceInput:
        """The caller's side."""
        return self._input

    def output(self) -> VoiceOutputTransport:
        """The bot's side."""
        return self._output

    def user_turn_start_strategy(self) -> BargeInUserTurnStartStrategy:
        """The start strategy for `UserTurnStrategies`: the floor decides.

        Raises:
            ValueError: The transport has no policy.
        """
        if self.floor is None:
            raise ValueError("barge-in needs a policy: VoxAgentWebRTCTransport(..., policy=BargeInPolicy())")
        return BargeInUserTurnStartStrategy(self.floor)

    def get_client_id(self, client: object) -> str:
        """The id of the peer connection."""
        return str(getattr(client, "pc_id", ""))

    # --- the peer ------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The pipeline is up: plays and listens."""
        if not self._listening:
            self._listening = True
            self.peer.line.plug(Ends(self.playhead, self._hear, self._sent_frame, self._sent_packet))
            self.peer.listen(self)

    async def hang_up(self) -> None:
        """Ends the call. May be called twice."""
        self._hung_up = True
        self.playhead.close()
        await self.peer.close()

    def connected(self) -> None:
        """The peer is there, for the first time or again."""
        self.playhead.hold(False)
        self._input.create_task(self._connected())

    def lost(self) -> None:
        """The peer is gone; it may come back."""
        self.playhead.hold(True)
        self._input.create_task(self._call_event_handler("on_client_lost", self._connection))

    def message(self, message: object) -> None:
        """A message came over the data channel."""
        self._input.create_task(self._message(message))

    def ended(self, _: Ended) -> None:
        """The call is over."""
        if not self._hung_up:
            self._input.create_task(self._call_event_handler("on_client_disconnected", self._connection))
        self.playhead.close()

    async def _connected(self) -> None:
        await self._call_event_handler("on_client_connected", self._connection)
        await self._input.push_frame(ClientConnectedFrame())

    async def _message(self, message: object) -> None:
        await self._input.broadcast_frame(InputTransportMessageFrame, message=message)
        await self._call_event_handler("on_app_message", message, self.get_client_id(self._connection))

    # --- audio ---------------------------------------------------------------------------------------------------

    def _hear(self, pcm: Pcm16) -> None:
        self._heard_s = asyncio.get_running_loop().time()
        self._take(pcm)

    def _take(self, pcm: Pcm16) -> None:
        self._input.hear(self.floor.hear(pcm) if self.floor is not None else pcm)

    def _sent_frame(self, frame: VoiceFrame, late_s: float) -> None:
        if asyncio.get_running_loop().time() - self._heard_s > _DEAF_S:
            # A microphone that is switched off sends nothing: that is silence, and whoever waits for it should get it.
            self._take(_SILENCE)
        if self.floor is not None:
            self.floor.played(frame)
        for listener in self.on_frame:
            listener(frame, late_s)

    def _sent_packet(self, packet: SentPacket) -> None:
        for listener in self.on_packet:
            listener(packet)

    def _decide(self, decision: Decision) -> None:
        for listener in self.on_floor:
            listener(decision)
        if decision.action is Action.CANCEL:
            self._output.await_interruption()
            self._input.create_task(self._input.push_frame(BargeInFrame(decision)))
        self._input.create_task(self._call_event_handler("on_decision", decision))


class VoiceInput(BaseInputTransport):
    """The caller's audio into the pipeline, and interruptions straight to the track."""

    def __init__(self, transport: VoxAgentWebRTCTransport) -> None:
        super().__init__(transport.params, name=transport._input_name)
        self._transport = transport
        self._resampler: Resampler | None = None
        self._waiting: Pcm16 = np.zeros(0, np.int16)

    async def start(self, frame: StartFrame) -> None:
        """Listens."""
        await super().start(frame)
        await self.set_transport_ready(frame)
        self._transport.begin()

    async def cancel(self, frame: CancelFrame) -> None:
        """Hangs up."""
        await super().cancel(frame)
        await self._transport.hang_up()

    async def cleanup(self) -> None:
        """Hangs up, unless that is done."""
        await super().cleanup()
        await self._transport.hang_up()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Passes everything on; the way round through the pipeline is too long for an interruption."""
        if isinstance(frame, InterruptionFrame):
            self._transport.output().interrupt_directly(frame)
        elif self._transport.floor is not None and isinstance(frame, (UserMuteStartedFrame, UserMuteStoppedFrame)):
            self._transport.floor.enabled = isinstance(frame, UserMuteStoppedFrame)
        await super().process_frame(frame, direction)

    def hear(self, pcm: Pcm16) -> None:
        """Takes the caller's audio, 16 kHz mono, as it arrives."""
        if self._audio_task is None or self._paused:
            return
        self._waiting = np.concatenate((self._waiting, pcm))
        if len(self._waiting) < _BLOCK:
            return
        pcm, self._waiting = self._waiting, self._waiting[:0]
        if self.sample_rate != HEARD_RATE:
            if self._resampler is None:
                self._resampler = Resampler(HEARD_RATE, self.sample_rate)
            pcm = to_int16(self._resampler.push(to_float32(pcm)))
        if self._params.audio_in_channels == 2:
            pcm = np.repeat(pcm, 2)
        self._audio_in_queue.put_nowait(
            InputAudioRawFrame(pcm.tobytes(), self.sample_rate, self._params.audio_in_channels)
        )


class VoiceOutputTransport(BaseOutputTransport):
    """The bot's audio to the track, and everything that follows audio when it was handed to the network."""

    def __init__(self, transport: VoxAgentWebRTCTransport) -> None:
        super().__init__(transport.params, name=transport._output_name)
        self._transport = transport
        self._playhead = transport.playhead
        self._contexts = CutContexts()
        self._releasing: asyncio.Task[None] | None = None
        self._release_lock = asyncio.Lock()
        self._done: list[int] = []
        self._swallowed: asyncio.TimerHandle | None = None
        self._pending_bytes = self._reopening = 0

    async def setup(self, setup: FrameProcessorSetup) -> None:  # type: ignore[override]
        """Gets ready."""
        await super().setup(setup)
        if self._params.audio_out_channels != 1:
            raise ValueError("the bot's voice is mono: leave audio_out_channels at 1")

    async def start(self, frame: StartFrame) -> None:
        """Speaks."""
        await super().start(frame)
        self._releasing = self.create_task(self._release())
        # First, so that no word is timed by a clock before it can be timed by what was played.
        await self.push_frame(PlayheadFrame(self._playhead), FrameDirection.UPSTREAM)
        await self.set_transport_ready(frame)

    async def stop(self, frame: EndFrame) -> None:
        """Says what is left, then hangs up."""
        await super().stop(frame)
        while not self._playhead.drained and not self._playhead.closed:
            await self._playhead.wait_due()
        await self._push_due()
        if not self._playhead.closed:
            await asyncio.sleep(_GOODBYE_S)
        await self._end()

    async def cancel(self, frame: CancelFrame) -> None:
        """Hangs up."""
        await super().cancel(frame)
        await self._end()

    async def cleanup(self) -> None:
        """Frees everything. May be called twice."""
        await super().cleanup()
        await self._end()

    async def _end(self) -> None:
        self._forget_swallowed()
        await self._transport.hang_up()
        if self._releasing is not None:
            task, self._releasing = self._releasing, None
            await self.cancel_task(task)

    # --- frames --------------------------------------------------------------------------------------------------

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Takes audio, interruptions and everything else."""
        if isinstance(frame, InterruptionFrame):
            self._contexts.interrupt(frame)
            self.interrupt_directly(frame)
            await self._push_due()
            # What was just pushed would be overtaken where its receiver has not begun to process it.
            for _ in range(3):
                await asyncio.sleep(0)
            await super().process_frame(frame, direction)
            await self._close_interruption(frame)
        elif direction is FrameDirection.DOWNSTREAM and self._contexts.hold(frame):
            return
        else:
            await super().process_frame(frame, direction)

    async def push_frame(self, frame: Frame, direction: FrameDirection = FrameDirection.DOWNSTREAM) -> None:
        """Pushes a frame on: what follows audio in the order of the pipeline when that audio was handed over."""
        sender = self._media_senders.get(None)
        if isinstance(frame, _Reopen):
            return
        if sender is not None and asyncio.current_task() is sender._audio_task:
            self._playhead.follow(frame, direction)
        else:
            await super().push_frame(frame, direction)

    async def _handle_frame(self, frame: Frame) -> None:
        if frame.transport_destination is None:
            self._note(frame)
        await super()._handle_frame(frame)

    def _note(self, frame: Frame) -> None:
        """Keeps track of whose audio is on its way, the silence that fills up the last block included."""
        if isinstance(frame, TTSStoppedFrame):
            padding = -self._pending_bytes % self.audio_chunk_size
            self._pending_bytes = 0
            if padding:
                self._playhead.enter(None, padding / 2 / self.sample_rate, frame.interruptible)
            self._playhead.mark(frame)
        elif frame.metadata.get(IN_ORDER):
            frame.pts = None
            self._playhead.mark(frame)
        elif isinstance(frame, OutputAudioRawFrame):
            key = frame.context_id if isinstance(frame, TTSAudioRawFrame) else None
            samples = len(frame.audio) // 2 // frame.num_channels
            self._playhead.enter(key, samples / frame.sample_rate, frame.interruptible)
            self._pending_bytes += round(samples * self.sample_rate / frame.sample_rate) * 2

    async def write_audio_frame(self, frame: OutputAudioRawFrame) -> bool:
        """Plays a block; returns when there is room for the next one."""
        return await self._playhead.write(frame.audio, frame.sample_rate, frame.interruptible)

    async def send_message(self, frame: OutputTransportMessageFrame | OutputTransportMessageUrgentFrame) -> None:
        """Sends a message over the data channel."""
        self._transport.peer.send(frame.message)

    # --- interruptions -------------------------------------------------------------------------------------------

    def interrupt_directly(self, frame: InterruptionFrame) -> None:
        """Silences the track at once; the frame itself comes down the pipeline in its own time."""
        if frame.id in self._done or frame.broadcast_sibling_id in self._done:
            return
        self._playhead.interrupt()
        self.await_interruption()

    def await_interruption(self) -> None:
        """The track was silenced: unless the pipeline confirms that, the bot may speak again after a while."""
        self._forget_swallowed()
        loop = asyncio.get_running_loop()
        self._swallowed = loop.call_later(_SWALLOWED_S, self._go_on)

    def _go_on(self) -> None:
        """Nobody confirmed the interruption: what Pipecat holds of the cut reply, less than a block, goes too."""
        if (sender := self._media_senders.get(None)) is not None:
            sender._audio_runs = deque(run for run in sender._audio_runs if run[1])
        self._pending_bytes = 0
        self._playhead.go_on()

    async def _close_interruption(self, frame: InterruptionFrame) -> None:
        self._done = [*self._done, frame.id, *filter(None, (frame.broadcast_sibling_id,))][-_REMEMBERED:]
        self._pending_bytes = 0
        self._forget_swallowed()
        self._playhead.renew()
        self._reopening += 1
        if (sender := self._media_senders.get(None)) is not None:
            await sender.handle_sync_frame(_Reopen(self._reopening))

    async def write_transport_frame(self, frame: Frame) -> None:
        """What was taken from the queue before the interruption has been refused: the next reply may begin."""
        if isinstance(frame, _Reopen) and frame.number == self._reopening:
            self._playhead.reopen()

    def _forget_swallowed(self) -> None:
        if self._swallowed is not None:
            self._swallowed.cancel()
            self._swallowed = None

    # --- what follows audio --------------------------------------------------------------------------------------

    async def _release(self) -> None:
        while True:
            await self._playhead.wait_due()
            await self._push_due()

    async def _push_due(self) -> None:
        async with self._release_lock:
            for frame, direction in self._playhead.take_due():
                await super().push_frame(frame, direction)
