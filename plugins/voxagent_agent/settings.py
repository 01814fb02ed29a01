"""`AgentSettings`: everything that can be set: by flags, the environment, a TOML file, and defaults, in this order."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from voxagent.floor import BargeInPolicy
from voxagent.pronunciations import PronunciationFile
from voxagent.reading import Code, Reading, Url

CONFIG = Path("voxagent.toml")
"""Read from the working directory when no other file is named."""
PREFIX = "VOXAGENT_"
_MASK = "**********"
_ICE_SCHEMES = ("stun:", "stuns:", "turn:", "turns:")


class IceServer(BaseModel):
    """A STUN or TURN server."""

    model_config = ConfigDict(extra="forbid")

    urls: str | list[str]
    username: str | None = None
    credential: SecretStr | None = None

    @field_validator("urls")
    @classmethod
    def _known_scheme(cls, urls: str | list[str]) -> str | list[str]:
        for url in [urls] if isinstance(urls, str) else urls:
            if not url.startswith(_ICE_SCHEMES):
                raise ValueError(f"{url!r} is no ICE server: it has the form turn:turn.example.org:3478")
        return urls

    @field_validator("credential")
    @classmethod
    def _unmasked(cls, credential: SecretStr | None) -> SecretStr | None:
        if credential is not None and credential.get_secret_value() == _MASK:
            raise ValueError("it is masked, as --print-config writes it: put the real one here")
        return credential


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
    code: Code = Field("skip", description="Blocks of code: skip, announce, read.")
    url: Url = Field("short", description="Addresses: domain, short (host and short path), full.")
    pronunciations: Path | None = Field(
        None, description="TOML file of pronunciations, read again when it changes; see the README."
    )
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
        validation_alias=AliasChoices(PREFIX + "LLM_KEY", "OPENAI_API_KEY"),
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
    allow_origins: list[str] = Field(
        default_factory=list,
        description="Other origins whose pages may call, e.g. https://shop.example; none: only ours.",
    )
    connect_s: float = Field(15.0, gt=0, description="How long a caller may take to connect.")
    silent_s: float = Field(3.0, gt=0, description="Without a packet for this long a caller counts as lost.")
    return_s: float = Field(15.0, gt=0, description="How long a lost caller may take to come back.")

    @field_validator("llm_url")
    @classmethod
    def _reachable(cls, url: str | None) -> str | None:
        if url is not None:
            check_url(url)
        return url

    @field_validator("allow_origins")
    @classmethod
    def _origins(cls, origins: list[str]) -> list[str]:
        for origin in origins:
            parts = urlsplit(origin)
            if origin != "*" and (not parts.hostname or origin != f"{parts.scheme}://{parts.netloc}"):
                raise ValueError(f"{origin!r} is no origin: it has the form https://shop.example, without a path")
        return origins

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

    def reading(self) -> Reading:
        """How text is read where tastes differ.

        Raises:
            ValueError: The dictionary cannot be used.
        """
        words = None if self.pronunciations is None else PronunciationFile(self.pronunciations)
        return Reading(self.code, self.url, words)

    def as_toml(self) -> str:
        """All settings with what they mean, as a file to start from; secrets are left out."""
        lines = []
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            lines.append(f"# {field.description}")
            if name == "llm_key":
                # Reading a file refuses it.
                lines += [f"# {'set' if value else 'not set'}", ""]
                continue
            lines += [f"{'# ' if value is None else ''}{name} = {'' if value is None else _toml(value)}".rstrip(), ""]
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
    given = {name: value for name, value in flags.items() if value is not None}
    path = config or (CONFIG if CONFIG.is_file() else None)
    _check_names(os.environ)
    _File.values = _read(path) if path is not None else {}
    try:
        settings = AgentSettings(**given)  # type: ignore[arg-type]
    except ValidationError as error:
        raise ValueError(_flaw(error, given, path)) from None
    except SettingsError as error:
        raise ValueError(f'{error}: lists in the environment are written as JSON, e.g. \'["a", "b"]\'') from None
    finally:
        _File.values = {}
    settings.reading()
    try:
        settings.policy()
    except ValueError as error:
        chosen = {name: getattr(settings, name) for name in ("duck_ms", "pause_ms", "cancel_ms")}
        raise ValueError(f"{error}; set are {chosen}, the others are those of preset {settings.preset!r}") from None
    return settings


def check_url(url: str) -> None:
    """Refuses what is no address of an OpenAI-compatible endpoint.

    Raises:
        ValueError: With the form it should have.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is no endpoint: it has the form http://127.0.0.1:11434/v1")
    if parts.username or parts.password or parts.query:
        raise ValueError(f"an endpoint's URL holds no login and no query: put the key into {PREFIX}LLM_KEY")
    if parts.path.rstrip("/").endswith("/completions"):
        raise ValueError(f"{url!r} is too long: leave off /chat/completions")


def _check_names(environment: Mapping[str, str]) -> None:
    """A misspelt variable would be ignored silently; other parts of voxagent have variables of their own."""
    for variable in environment:
        name = variable.removeprefix(PREFIX).lower()
        if not variable.startswith(PREFIX) or name in AgentSettings.model_fields:
            continue
        meant = get_close_matches(name, AgentSettings.model_fields, 1, cutoff=0.85)
        if meant:
            raise ValueError(f"{variable} in the environment is no setting: {PREFIX}{meant[0].upper()} is meant?")


def _read(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no TOML: {error}") from None
    if any(name.lower() in ("llm_key", "voxagent_llm_key", "openai_api_key") for name in values):
        raise ValueError(f"{path}: keys belong in the environment, as {PREFIX}LLM_KEY")
    return values


def _flaw(error: ValidationError, flags: Mapping[str, object], path: Path | None) -> str:
    """The first flaw in one line: the setting, its value, where it was set, and what it should be."""
    first = error.errors(include_url=False)[0]
    name, top = ".".join(str(part) for part in first["loc"]), str(first["loc"][0])
    if top in flags:
        where = f"--{top.replace('_', '-')}"
    elif any(variable.upper() == f"{PREFIX}{top}".upper() for variable in os.environ):
        where = f"{PREFIX}{top.upper()} in the environment"
    else:
        where = str(path)
    if first["type"] == "extra_forbidden":
        meant = get_close_matches(name, AgentSettings.model_fields, 1)
        cure = f"{meant[0]!r} is meant?" if meant else "`voxagent run --print-config` lists them all"
        return f"there is no setting {name!r} ({where}): {cure}"
    message = first["msg"].removeprefix("Value error, ")
    # A URL may hold a password that somebody put there by mistake.
    secret = "credential" in first["loc"] or top in ("llm_key", "llm_url")
    value = "" if secret or repr(first["input"]) in message else f" = {first['input']!r}"
    return f"{name}{value} ({where}): {message[0].lower()}{message[1:]}"


def _toml(value: object) -> str:
    match value:
        case list():
            return f"[{', '.join(_toml(item) for item in value)}]"
        case IceServer():
            fields = value.model_dump(mode="json", exclude_none=True)
            return "{ " + ", ".join(f"{name} = {_toml(field)}" for name, field in fields.items()) + " }"
        case Path():
            return json.dumps(str(value), ensure_ascii=False)
        case _:
            return json.dumps(value, ensure_ascii=False)
