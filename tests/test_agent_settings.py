"""The agent's settings: where they come from, in which order, and what is said of bad ones."""

from __future__ import annotations

import os
import tomllib

import pytest
from pipecat.services.openai.llm import OpenAILLMService

from voxagent_agent.llm import language_model
from voxagent_agent.offline import OfflineLLM
from voxagent_agent.settings import AgentSettings, load_settings


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch, tmp_path):
    """No variable and no file of the machine's reaches a test."""
    for name in list(os.environ):
        if name.startswith("VOXAGENT_") or name == "OPENAI_API_KEY":
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def toml(tmp_path):
    def write(text, name="agent.toml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_flags_win_over_the_environment_over_the_file_over_defaults(monkeypatch, toml):
    path = toml('port = 1\ncalls = 2\nname = "file"\n')
    monkeypatch.setenv("VOXAGENT_PORT", "11")
    monkeypatch.setenv("VOXAGENT_CALLS", "12")
    settings = load_settings(path, port=21, calls=None, name=None)
    assert (settings.port, settings.calls, settings.name, settings.host) == (21, 12, "file", "127.0.0.1")


def test_the_file_in_the_working_directory_is_found(toml):
    assert load_settings().name == "voxagent"
    toml('name = "here"', "voxagent.toml")
    assert load_settings().name == "here"
    assert load_settings(toml('name = "named"')).name == "named"


def test_a_file_does_not_reach_the_next_settings(toml):
    load_settings(toml('name = "file"'))
    assert load_settings().name == "voxagent"
    assert AgentSettings().name == "voxagent"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("port = 70000", r"port = 70000 \(.*agent.toml\): .*less than or equal to 65535"),
        ('preset = "carphone"', r"preset = 'carphone' \(.*\): .*'headset', 'speakerphone' or 'phone'"),
        ("prot = 80", r"no setting 'prot' \(.*agent.toml\): 'port' is meant"),
        ("zzz = 80", r"no setting 'zzz' .*--print-config"),
        ("port = ", r"agent.toml is no TOML: "),
        ('llm_key = "secret"', r"in the environment, as VOXAGENT_LLM_KEY"),
        ('OPENAI_API_KEY = "secret"', r"in the environment, as VOXAGENT_LLM_KEY"),
        ("duck_ms = 900", r"thresholds must climb.*'duck_ms': 900.*preset 'headset'"),
        ('llm_url = "localhost:1"', r"llm_url \(.*\): 'localhost:1' is no endpoint: .* http://127.0.0.1:11434/v1"),
        ('llm_url = "http://me:secret@host/v1"', r"llm_url \(.*\): .* put the key into VOXAGENT_LLM_KEY"),
        ('llm_url = "http://h/v1/chat/completions"', r"leave off /chat/completions"),
        ('ice_servers = [{urls = "http://x"}]', r"'http://x' is no ICE server: .* turn:"),
        ('ice_servers = [{urls = "turn:x", user = "me"}]', r"no setting 'ice_servers.0.user'"),
        ('ice_servers = [{urls = "turn:x", credential = "**********"}]', r"credential \(.*masked"),
        ('allow_origins = ["shop.example/"]', r"'shop.example/' is no origin: .* https://shop.example"),
    ],
)
def test_a_bad_file_is_told_in_one_line_with_key_source_and_cure(toml, text, error):
    with pytest.raises(ValueError, match=error) as caught:
        load_settings(toml(text))
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(ValueError, match=r"cannot read .*none.toml: No such file"):
        load_settings(tmp_path / "none.toml")


def test_the_source_of_a_bad_value_is_named(monkeypatch, toml):
    path = toml("port = 5")
    with pytest.raises(ValueError, match=r"port = -1 \(--port\)"):
        load_settings(path, port=-1)
    monkeypatch.setenv("VOXAGENT_PORT", "many")
    with pytest.raises(ValueError, match=r"port = 'many' \(VOXAGENT_PORT in the environment\): .*integer"):
        load_settings(path)


def test_a_misspelt_variable_is_told_and_those_of_others_are_left_alone(monkeypatch):
    monkeypatch.setenv("VOXAGENT_CACHE", "x")
    monkeypatch.setenv("VOXAGENT_PIPER_VOICE", "x")
    load_settings()
    monkeypatch.setenv("VOXAGENT_LLM_MODLE", "x")
    with pytest.raises(ValueError, match=r"VOXAGENT_LLM_MODLE .* VOXAGENT_LLM_MODEL is meant"):
        load_settings()


def test_lists_in_the_environment_are_json(monkeypatch):
    monkeypatch.setenv("VOXAGENT_ICE_SERVERS", '[{"urls": "stun:127.0.0.1:3478"}]')
    assert load_settings().ice_servers[0].urls == "stun:127.0.0.1:3478"
    monkeypatch.setenv("VOXAGENT_ICE_SERVERS", "stun:127.0.0.1:3478")
    with pytest.raises(ValueError, match=r"ice_servers.*JSON"):
        load_settings()


def test_what_is_printed_is_a_file_that_means_the_same(toml, tmp_path):
    settings = load_settings(
        toml('ice_servers = [{urls = ["turn:a", "turns:b"], username = "me"}, {urls = "stun:c"}]'),
        name='A "quoted" näme \\ with a tab\t',
        record_dir=tmp_path,
        allow_origins=["https://shop.example"],
        duck_ms=90,
    )
    again = load_settings(toml(settings.as_toml()))
    assert again == settings
    values = tomllib.loads(settings.as_toml())
    unset = {name for name in AgentSettings.model_fields if getattr(settings, name) is None}
    assert set(values) == set(AgentSettings.model_fields) - unset


def test_every_setting_is_documented():
    assert all(field.description for field in AgentSettings.model_fields.values())


def test_secrets_are_never_shown(monkeypatch, toml):
    monkeypatch.setenv("VOXAGENT_LLM_KEY", "sesame")
    settings = load_settings(toml('ice_servers = [{urls = "turn:a", username = "me", credential = "sesame"}]'))
    assert settings.llm_key is not None
    assert settings.ice_servers[0].credential is not None
    assert "sesame" not in settings.as_toml() + repr(settings) + str(settings)


def test_the_key_comes_from_the_environment_ours_first(monkeypatch):
    monkeypatch.setenv("LLM_KEY", "somebody's")
    assert load_settings().llm_key is None
    monkeypatch.setenv("OPENAI_API_KEY", "theirs")
    assert load_settings().llm_key.get_secret_value() == "theirs"
    monkeypatch.setenv("VOXAGENT_LLM_KEY", "ours")
    assert load_settings().llm_key.get_secret_value() == "ours"


def test_a_preset_can_be_overridden_in_part():
    policy = load_settings(preset="phone", cancel_ms=700, language="de").policy()
    limits = policy.thresholds
    assert (limits.duck_ms, limits.pause_ms, limits.cancel_ms) == (100, 220, 700)
    assert (policy.language, policy.quiet_dbfs) == ("de", -45.0)


async def test_the_language_model_is_the_one_that_was_chosen():
    assert isinstance(language_model(load_settings()), OfflineLLM)
    local = language_model(load_settings(llm_url="http://127.0.0.1:1/v1", llm_model="tiny"))
    assert isinstance(local, OpenAILLMService)
    assert not local.supports_developer_role
    remote = language_model(load_settings(llm_url="https://api.openai.com/v1"))
    assert isinstance(remote, OpenAILLMService)
    assert remote.supports_developer_role
