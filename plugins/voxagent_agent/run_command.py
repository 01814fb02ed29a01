"""`voxagent run`: the whole agent in one process."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer
import uvicorn
from loguru import logger
from rich.console import Console
from rich.markup import escape

from voxagent.errors import VoxagentError
from voxagent_agent.settings import AgentSettings, load_settings

if TYPE_CHECKING:
    from voxagent_agent.app import Conversation

_WILDCARDS = ("0.0.0.0", "::", "")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def run(
    host: Annotated[str | None, typer.Option(help="Address to listen on; 127.0.0.1 by default.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 7860 by default, 0 takes a free one.")] = None,
    config: Annotated[Path | None, typer.Option(help="Settings as TOML; ./voxagent.toml by default.")] = None,
    model: Annotated[str | None, typer.Option(help="Speech model, as name or name:source.")] = None,
    voice: Annotated[str | None, typer.Option(help="Voice, by name or path.")] = None,
    language: Annotated[str | None, typer.Option(help="Language of the text, e.g. en.")] = None,
    preset: Annotated[str | None, typer.Option(help="headset, speakerphone or phone.")] = None,
    llm_url: Annotated[str | None, typer.Option(help="OpenAI-compatible endpoint; none: the offline agent.")] = None,
    llm_model: Annotated[str | None, typer.Option(help="The model's name there.")] = None,
    greeting: Annotated[str | None, typer.Option(help="What the agent says first.")] = None,
    pronunciations: Annotated[Path | None, typer.Option(help="TOML file of pronunciations.")] = None,
    calls: Annotated[int | None, typer.Option(help="Calls at once.")] = None,
    record_dir: Annotated[Path | None, typer.Option(help="Folder for call records.")] = None,
    log_level: Annotated[str, typer.Option(help="Of the log on standard error.")] = "WARNING",
    print_config: Annotated[bool, typer.Option("--print-config", help="Print all settings as TOML, and end.")] = False,
) -> None:
    """Starts a voice agent: open the page it prints, press the button, talk.

    The first SIGTERM or Ctrl+C takes no new calls and waits for those in progress, the second ends at once.
    Exit codes: 0 after a signal, 2 for bad settings, a taken port or a model that does not load, 128 and the signal's
    number after a second one.
    """
    console = Console(stderr=True, highlight=False)
    try:
        settings = load_settings(
            config,
            host=host,
            port=port,
            model=model,
            voice=voice,
            language=language,
            preset=preset,
            llm_url=llm_url,
            llm_model=llm_model,
            greeting=greeting,
            pronunciations=pronunciations,
            calls=calls,
            record_dir=record_dir,
        )
        if print_config:
            typer.echo(settings.as_toml())
            return
        logger.remove()
        logger.add(sys.stderr, level=log_level.upper())
        asyncio.run(serve(console, settings))
    except (ValueError, VoxagentError, OSError) as error:
        console.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(2) from error


async def serve(console: Console, settings: AgentSettings, agent: Conversation | None = None) -> None:
    """Serves until a signal ends it; prints the page's address on standard output.

    Args:
        console: For hints.
        settings: See `AgentSettings`.
        agent: Holds the conversations; the pipeline's by default.

    Raises:
        ValueError: Bad settings, with the cure.
        VoxagentError: The model could not be loaded.
        OSError: The port is taken.
    """
    listener = _listen(settings)
    try:
        # Here, not above: Pipecat takes seconds to import, and greets on the log.
        from voxagent_agent.app import create_app, drain

        if agent is None:
            from voxagent_agent.pipeline import Agent

            agent = Agent(settings)
        try:
            with console.status("loading the models …"):
                await agent.start()
            app = create_app(agent, settings)
            config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5)
            server = _Server(config, lambda: drain(app, settings.drain_s))
            _announce(console, settings.host, listener.getsockname()[1])
            await server.serve([listener])
        finally:
            await agent.aclose()
    finally:
        listener.close()


def _announce(console: Console, host: str, port: int) -> None:
    shown = "localhost" if host in _WILDCARDS else f"[{host}]" if ":" in host else host
    # Whoever started this process waits for the line.
    print(f"http://{shown}:{port}/", flush=True)
    console.print("Open this page, press the button, talk. Ctrl+C ends.")
    if host not in _LOOPBACK:
        console.print(
            "[yellow]Anybody who reaches this address can call, and browsers give the microphone to https and to "
            "localhost only: put TLS and a login before it.[/]"
        )


def _listen(settings: AgentSettings) -> socket.socket:
    """Takes the port before the models are loaded: a port that is taken should not cost ten seconds.

    Raises:
        OSError: With the cure.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen()
    except OSError as error:
        listener.close()
        where = f"{settings.host}:{settings.port}"
        raise OSError(f"cannot listen on {where} ({error.strerror}): choose another with --host or --port") from error
    return listener


class _Server(uvicorn.Server):
    """The first signal drains, while requests are still answered; the second one ends at once."""

    def __init__(self, config: uvicorn.Config, drain: Callable[[], Awaitable[None]]) -> None:
        super().__init__(config)
        self._drain = drain
        self._loop = asyncio.get_running_loop()
        self._leaving: asyncio.Task[None] | None = None
        self._signalled = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called on SIGTERM and SIGINT, between any two instructions."""
        if self._signalled:
            os._exit(128 + sig)
        self._signalled = True
        self._loop.call_soon_threadsafe(self._begin_to_leave)

    def _begin_to_leave(self) -> None:
        self._leaving = asyncio.create_task(self._leave())

    async def _leave(self) -> None:
        try:
            await self._drain()
        finally:
            self.should_exit = True
