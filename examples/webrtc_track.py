"""Speech over WebRTC without Pipecat: an engine, a voice output, and a connection. Nothing else.

    pip install 'pipecat-voxagent[webrtc]'
    python examples/webrtc_track.py

A caller in the same process stands for the browser. It hears a reply that streams token by token, speaks over it, and
the bot falls silent and knows where it was stopped.
"""

import asyncio

from aiortc import RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import AudioStreamTrack

from voxagent.engine import Engine
from voxagent.models import model_load
from voxagent.output import VoiceOutput
from voxagent.say import tokens
from voxagent_webrtc import Connection, Ends

REPLY = "Good morning! There are two trains to the coast today. The first one leaves at nine, and you have to change."


async def main() -> None:
    """Speaks one reply, and is interrupted."""
    engine = Engine(model_load("piper"))
    await engine.start()

    # --- the bot's side: what your server does for each call
    output = VoiceOutput(sample_rate=48000, headroom_ms=80)
    connection = Connection()
    connection.line.plug(Ends(output, on_audio=lambda pcm: None))  # 16 kHz of the caller, as packets arrive

    # --- the caller's side: a browser, usually; offer and answer travel by HTTP
    caller = RTCPeerConnection()
    caller.addTrack(AudioStreamTrack())
    await caller.setLocalDescription(await caller.createOffer())
    answer = await connection.answer(caller.localDescription.sdp)
    await caller.setRemoteDescription(RTCSessionDescription(answer, "answer"))
    while not connection.is_connected:
        await asyncio.sleep(0.02)

    # --- a reply, as a language model streams it
    session = engine.open()
    output.play(session)
    for token in tokens(REPLY):
        session.push_text(token)
        await asyncio.sleep(0.04)
    session.end_input()

    await asyncio.sleep(1.5)
    position = output.interrupt()  # the caller speaks; `voxagent.floor.Floor` tells when
    assert position is not None
    heard = session.transcript()
    print(f"stopped after {position.ms:.0f} ms: heard {heard.heard!r}, cut in {heard.partly!r}")
    print(f"not heard: {heard.unheard!r}")
    print(connection.line.track_stats)

    await connection.close()
    await caller.close()
    await session.released()
    await engine.aclose()


if __name__ == "__main__":
    asyncio.run(main())
