"""Speech output for real-time voice agents. See README.md for the layers."""

from __future__ import annotations

__version__ = "0.1.0"
