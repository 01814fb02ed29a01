"""The voice of an agent over WebRTC, on aiortc: track, line, connection, signalling, and a caller to try them with."""

from voxagent_webrtc.connection import Connection, Ended, Listener, OfferError, Patience
from voxagent_webrtc.line import AudioLine, Ends, SentPacket
from voxagent_webrtc.signalling import MAX_BODY_BYTES, Refused, Signalling
from voxagent_webrtc.track import TrackStats, VoiceTrack

__all__ = [
    "MAX_BODY_BYTES",
    "AudioLine",
    "Connection",
    "Ended",
    "Ends",
    "Listener",
    "OfferError",
    "Patience",
    "Refused",
    "SentPacket",
    "Signalling",
    "TrackStats",
    "VoiceTrack",
]
