"""`voxagent run`: the whole agent in one process."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
import uvicorn
from loguru import logger
from rich.console import Console
from rich.markup import escape

from voxagent.errors import VoxagentError
from voxagent_agent.settings import AgentSettings, load_settings


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
    calls: Annotated[int | None, typer.Option(help="Calls at once.")] = None,
    record_dir: Annotated[Path | None, typer.Option(help="Folder for call records.")] = None,
    log_level: Annotated[str, typer.Option(help="Of the log on standard error.")] = "WARNING",
    print_config: Annotated[bool, typer.Option("--print-config", help="Print all settings as TOML, and end.")] = False,
) -> None:
    """Starts a voice agent: open the page it prints, press the button, talk."""
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
            calls=calls,
            record_dir=record_dir,
        )
        if print_config:
            typer.echo(settings.as_toml())
            return
        logger.remove()
        logger.add(sys.stderr, level=log_level.upper())
        asyncio.run(_serve(console, settings))
    except (ValueError, VoxagentError, OSError) as error:
        console.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(2) from error


async def _serve(console: Console, settings: AgentSettings) -> None:
    listener = _listen(settings)
    # Here, not above: Pipecat takes seconds to import, and greets on the log.
    from voxagent_agent.app import create_app
    from voxagent_agent.pipeline import Agent

    agent = Agent(settings)
    try:
        with console.status("loading the models …"):
            await agent.start()
        server = _Server(uvicorn.Config(create_app(agent, settings), log_level="warning", timeout_graceful_shutdown=5))
        port = listener.getsockname()[1]
        typer.echo(f"http://{settings.host}:{port}/")
        console.print("Open this page, press the button, talk. Ctrl+C ends.")
        if settings.host not in ("127.0.0.1", "localhost", "::1"):
            console.print("[yellow]Anybody who reaches this address can call: put TLS and a login before it.[/]")
        await server.serve([listener])
    finally:
        listener.close()
        await agent.aclose()


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
    except OSError as error:
        listener.close()
        where = f"{settings.host}:{settings.port}"
        raise OSError(f"cannot listen on {where} ({error.strerror}): choose another with --host or --port") from error
    return listener


class _Server(uvicorn.Server):
    """Ends calls in its lifespan's own time: the first signal drains, the second one ends at once."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called on SIGTERM and SIGINT."""
        if self.should_exit:
            os._exit(128 + sig)
        self.should_exit = True
