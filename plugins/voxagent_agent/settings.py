"""`AgentSettings`: everything that can be set: by flags, the environment, a TOML file, and defaults, in this order."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import AliasChoices, BaseModel, Field, SecretStr, ValidationError
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from voxagent.floor import BargeInPolicy

CONFIG = Path("voxagent.toml")
"""Read from the working directory when no other file is named."""
PREFIX = "VOXAGENT_"


class IceServer(BaseModel):
    """A STUN or TURN server."""

    urls: str | list[str]
    username: str | None = None
    credential: SecretStr | None = None


class AgentSettings(BaseSettings):
    """The agent's settings. Every one has an environment variable: `VOXAGENT_` and its name in capitals."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", populate_by_name=True)

    host: str = Field("127.0.0.1", description="Address to listen on. Beyond loopback put TLS and a login before it.")
    port: int = Field(7860, ge=0, le=65535, description="Port; 0 takes a free one.")
    name: str = Field("voxagent", description="What the page calls the agent.")
    model: str = Field("piper", description="Speech model, as name or name:source.")
    voice: str | None = Field(None, description="Voice, by name or path; the model's own by default.")
    language: str | None = Field(None, description="Language of the text, e.g. en; the voice's own by default.")
    speed: float = Field(1.0, ge=0.5, le=2.0, description="Speech rate relative to the voice's own.")
    preset: Literal["headset", "speakerphone", "phone"] = Field("headset", description="Kind of device callers use.")
    duck_ms: int | None = Field(
        None, description="Caller's voice before the bot gets quieter; the preset's by default."
    )
    pause_ms: int | None = Field(None, description="Caller's voice before the bot holds; the preset's by default.")
    cancel_ms: int | None = Field(None, description="Voice that stops the bot without words; the preset's by default.")
    greeting: str = Field("", description="What the agent says first; empty: it waits to be spoken to.")
    system_prompt: str = Field(
        "You are on a voice call. Answer in one to three short spoken sentences, without markup.",
        description="How the language model is told to answer.",
    )
    llm_url: str | None = Field(None, description="Base URL of an OpenAI-compatible endpoint; none: the offline agent.")
    llm_model: str = Field("gpt-4o-mini", description="The model's name at that endpoint.")
    llm_key: SecretStr | None = Field(
        None,
        validation_alias=AliasChoices("llm_key", PREFIX + "LLM_KEY", "OPENAI_API_KEY"),
        description="Its key. Only from the environment; local servers need none.",
    )
    offline_tokens_per_s: float = Field(25.0, gt=0, description="How fast the offline agent streams.")
    offline_first_token_s: float = Field(0.2, ge=0, description="How long it thinks.")
    stt_threads: int = Field(2, ge=1, le=64, description="CPU threads of one recognition.")
    calls: int = Field(4, ge=1, le=1000, description="Calls at once; more are told to try again.")
    idle_s: float = Field(120.0, gt=0, description="A call in which nobody speaks for this long is ended.")
    max_call_s: float = Field(1800.0, gt=0, description="Longest call.")
    drain_s: float = Field(20.0, ge=0, description="How long calls may go on after SIGTERM.")
    record_dir: Path | None = Field(None, description="Folder for call records (JSON lines); none: no records.")
    record_texts: bool = Field(True, description="Whether records hold what was said, or only its length.")
    ice_servers: list[IceServer] = Field(default_factory=list, description="STUN and TURN servers.")
    connect_s: float = Field(15.0, gt=0, description="How long a caller may take to connect.")
    silent_s: float = Field(3.0, gt=0, description="Without a packet for this long a caller counts as lost.")
    return_s: float = Field(15.0, gt=0, description="How long a lost caller may take to come back.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then the environment, then the file."""
        return init_settings, env_settings, InitSettingsSource(settings_cls, dict(_File.values))

    def policy(self) -> BargeInPolicy:
        """The policy of barge-in: the preset, with what was set on top.

        Raises:
            ValueError: The thresholds do not climb.
        """
        policy = BargeInPolicy.preset(self.preset, self.language)
        changes = {name: getattr(self, name) for name in ("duck_ms", "pause_ms", "cancel_ms")}
        changes = {name: value for name, value in changes.items() if value is not None}
        return replace(policy, thresholds=replace(policy.thresholds, **changes)) if changes else policy

    def as_toml(self) -> str:
        """All settings with what they mean, as a file to start from; secrets are left out."""
        lines = []
        for name, field in type(self).model_fields.items():
            if name == "llm_key":
                continue
            value = getattr(self, name)
            lines += [f"# {field.description}", f"{'# ' if value is None else ''}{name} = {_toml(value)}", ""]
        return "\n".join(lines)


class _File:
    """The values of the file that is being read; pydantic's sources take no arguments."""

    values: Mapping[str, Any] = {}


def load_settings(config: Path | None = None, **flags: object) -> AgentSettings:
    """Reads the settings.

    Args:
        config: TOML file; by default `voxagent.toml` in the working directory, if there is one.
        flags: What was given on the command line; None counts as not given.

    Raises:
        ValueError: In one line, with the key, the value and the cure.
    """
    path = config or (CONFIG if CONFIG.is_file() else None)
    _File.values = _read(path) if path is not None else {}
    try:
        settings = AgentSettings(**{name: value for name, value in flags.items() if value is not None})  # type: ignore[arg-type]
        settings.policy()
    except ValidationError as error:
        raise ValueError(_flaw(error, path)) from None
    finally:
        _File.values = {}
    return settings


def _read(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no TOML: {error}") from None
    if "llm_key" in values:
        raise ValueError(f"{path}: llm_key belongs in the environment, as {PREFIX}LLM_KEY")
    return values


def _flaw(error: ValidationError, path: Path | None) -> str:
    first = error.errors(include_url=False)[0]
    name = ".".join(str(part) for part in first["loc"])
    where = f", in {path}" if path is not None and name.split(".")[0] in _File.values else ""
    if first["type"] == "extra_forbidden":
        known = ", ".join(sorted(AgentSettings.model_fields))
        return f"there is no setting {name!r}{where}: choose among {known}"
    return f"{name} = {first['input']!r}{where}: {first['msg'][0].lower()}{first['msg'][1:]}"


def _toml(value: object) -> str:
    if value is None:
        return '""'
    if isinstance(value, list):
        return json.dumps([item.model_dump(mode="json", exclude_none=True) for item in value])
    return json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)
