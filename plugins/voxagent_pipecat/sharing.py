"""Whose engine a service uses: one that all services of a model share on their event loop, or the caller's own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from voxagent.engine import Engine, EngineSettings
from voxagent.models import model_load

Key = tuple[str, tuple[tuple[str, str], ...], EngineSettings]


@dataclass(slots=True)
class _Shared:
    engine: Engine
    users: int = 0


_engines: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Key, _Shared]] = WeakKeyDictionary()


class OwnEngine:
    """A claim on an engine that somebody else made and will close."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def acquire(self) -> Engine:
        """Starts the engine, unless that is done."""
        await self._engine.start()
        return self._engine

    async def release(self) -> None:
        """Leaves it as it is."""


class EngineLease:
    """A claim on the engine for a model: the same one for everybody who asks for the same.

    Args:
        model: As `voxagent.models.model_load` takes it.
        options: The model's options.
        settings: Of the engine.

    Raises:
        ValueError: No such model is installed.
    """

    def __init__(self, model: str, options: Mapping[str, object] | None, settings: EngineSettings | None) -> None:
        self._load = model_load(model, options)
        self._settings = settings or EngineSettings()
        pairs = tuple(sorted((name, repr(value)) for name, value in (options or {}).items()))
        self._key: Key = (model, pairs, self._settings)
        self._shared: _Shared | None = None

    async def acquire(self) -> Engine:
        """Starts the engine, or joins those who use it already.

        Raises:
            ValueError: Bad options or files, with the cure.
            ModelError: The model could not be loaded.
        """
        engines = _engines.setdefault(asyncio.get_running_loop(), {})
        shared = engines.get(self._key)
        if shared is None:
            shared = engines[self._key] = _Shared(Engine(self._load, self._settings))
        shared.users += 1
        self._shared = shared
        try:
            await shared.engine.start()
        except BaseException:
            await self.release()
            raise
        return shared.engine

    async def release(self) -> None:
        """Gives the claim back. May be called twice, and without `acquire`."""
        shared, self._shared = self._shared, None
        if shared is None:
            return
        shared.users -= 1
        if shared.users == 0:
            engines = _engines.get(asyncio.get_running_loop(), {})
            if engines.get(self._key) is shared:
                del engines[self._key]
            await shared.engine.aclose()


def claim(
    model: str,
    engine: Engine | None,
    options: Mapping[str, object] | None,
    settings: EngineSettings | None,
) -> EngineLease | OwnEngine:
    """The claim for what a service was given.

    Raises:
        ValueError: No such model is installed, or options for an engine that exists already.
    """
    if engine is None:
        return EngineLease(model, options, settings)
    if options or settings:
        raise ValueError("an engine of your own has its model and settings already: leave out the options")
    return OwnEngine(engine)
