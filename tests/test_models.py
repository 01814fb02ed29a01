"""Models are found by entry point, and a missing one says what to do."""

from importlib.metadata import EntryPoint

import pytest

import voxagent.models
from voxagent.fake import FakeModel
from voxagent.models import model_load, model_names


def test_ours_are_registered_by_the_same_door_as_third_parties():
    assert {"fake", "piper"} <= set(model_names())


def test_options_reach_the_factory():
    model = model_load("fake", {"step_ms": "3"})()
    assert isinstance(model, FakeModel)
    assert model.script.step_s == pytest.approx(0.003)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"installed are .*fake.*piper"):
        model_load("nobody")


def test_a_plugin_whose_package_is_missing_names_the_package(monkeypatch):
    point = EntryPoint("broken", "no_such_package_here:create", "voxagent.models")
    monkeypatch.setattr(voxagent.models, "entry_points", lambda group: [point])
    with pytest.raises(ValueError, match="no_such_package_here, which is not installed"):
        model_load("broken")()
