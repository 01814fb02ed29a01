"""Drives an installed headless Chromium through Playwright, with a WAV file as its microphone; downloads nothing."""

from __future__ import annotations

import shutil
import wave
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from voxagent.pcm import Pcm

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--autoplay-policy=no-user-gesture-required",
    "--use-fake-ui-for-media-stream",
    "--use-fake-device-for-media-stream",
    # Host candidates as plain addresses: nobody answers mDNS on loopback.
    "--disable-features=WebRtcHideLocalIpsWithMdns",
)


def write_microphone(path: Path, pcm: Pcm, sample_rate: int) -> Path:
    """Writes mono float32, shape (n,), as the 16-bit WAV that Chromium loops as its microphone."""
    with wave.open(str(path), "wb") as wav:
        wav.setnchannels(1)
        wav.setsampwidth(2)
        wav.setframerate(sample_rate)
        wav.writeframes((np.clip(pcm, -1, 1) * 32767).astype("<i2").tobytes())
    return path


@asynccontextmanager
async def chromium(microphone: Path | None = None, flags: tuple[str, ...] = ()) -> AsyncIterator[Any]:
    """A running browser (Playwright's async `Browser`); skips the test where there is none.

    Args:
        microphone: WAV played in a loop as the microphone; Chromium's own beeps without it.
        flags: Further command-line flags.
    """
    playwright = pytest.importorskip("playwright.async_api")
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    sound = (f"--use-file-for-fake-audio-capture={microphone}",) if microphone else ()
    async with playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS, *sound, *flags])
        try:
            yield browser
        finally:
            await browser.close()
