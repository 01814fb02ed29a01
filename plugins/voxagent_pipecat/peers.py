"""Who a transport talks to: our own connection, or Pipecat's `SmallWebRTCConnection`, seen the same way."""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from pipecat.transports.smallwebrtc.connection import SmallWebRTCConnection

from voxagent_webrtc import AudioLine, Ended, Listener


class Peer(Protocol):
    """What a transport needs of a connection; `voxagent_webrtc.Connection` is one."""

    @property
    def line(self) -> AudioLine: ...

    def listen(self, listener: Listener) -> None: ...

    def send(self, message: object) -> None: ...

    async def close(self) -> None: ...


class SmallWebRTCPeer:
    """A connection that Pipecat's runner or request handler made."""

    def __init__(self, connection: SmallWebRTCConnection) -> None:
        self.line = AudioLine()
        self._connection = connection
        self._connecting: asyncio.Task[None] | None = None
        self._closed = False

    def listen(self, listener: Listener) -> None:
        """Tells `listener` from now on, and at once if the peer is there already."""

        async def on_connected(connection: SmallWebRTCConnection) -> None:
            self.line.attach(connection.pc)
            listener.connected()

        async def on_disconnected(connection: SmallWebRTCConnection) -> None:
            listener.lost()

        async def on_closed(connection: SmallWebRTCConnection) -> None:
            self.line.detach()
            if not self._closed:
                self._closed = True
                listener.ended(Ended.HUNG_UP)

        async def on_message(connection: SmallWebRTCConnection, message: object) -> None:
            listener.message(message)

        self._connection.add_event_handler("connected", on_connected)
        self._connection.add_event_handler("disconnected", on_disconnected)
        self._connection.add_event_handler("closed", on_closed)
        self._connection.add_event_handler("app-message", on_message)
        self._connecting = asyncio.create_task(self._connection.connect())

    def send(self, message: object) -> None:
        """Sends JSON over the data channel."""
        if not self._closed:
            self._connection.send_app_message(message)

    async def close(self) -> None:
        """Ends the call. May be called twice."""
        if not self._closed:
            self._closed = True
            self.line.detach()
            await self._connection.disconnect()


def peer_of(connection: object) -> Peer:
    """The peer behind what a transport was given.

    Raises:
        TypeError: It is no connection.
    """
    if isinstance(connection, SmallWebRTCConnection):
        return SmallWebRTCPeer(connection)
    if hasattr(connection, "line") and hasattr(connection, "listen"):
        return cast(Peer, connection)
    raise TypeError(
        f"webrtc_connection is a voxagent_webrtc.Connection or a SmallWebRTCConnection, not {type(connection).__name__}"
    )
