"""The agent application: a whole voice agent over WebRTC, as `voxagent run` starts it."""
