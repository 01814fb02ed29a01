"""Finds models by name: ours and third parties' register under the entry point group `voxagent.models`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from voxagent.model import LatentModel, ModelFactory
from voxagent.worker import Load

GROUP = "voxagent.models"


def model_names() -> tuple[str, ...]:
    """Every registered name, sorted."""
    return tuple(sorted(point.name for point in entry_points(group=GROUP)))


def model_load(reference: str, options: Mapping[str, object] | None = None) -> Load:
    """Returns what an engine needs to load a model.

    Args:
        reference: ``name`` or ``name:source``, e.g. ``piper`` or ``piper:voices/en_GB-alba-medium.onnx``.
        options: By name; each model documents its own.

    Raises:
        ValueError: No model of that name is installed.
    """
    name, _, source = reference.partition(":")
    for point in entry_points(group=GROUP):
        if point.name == name:
            return partial(_load, point, source or None, dict(options or {}))
    raise ValueError(f"there is no model {name!r}: installed are {', '.join(model_names()) or 'none'}")


def _load(point: EntryPoint, source: str | None, options: Mapping[str, object]) -> LatentModel[Any]:
    try:
        factory: ModelFactory = point.load()
    except ImportError as error:
        package = error.name or "a package"
        raise ValueError(
            f"the model {point.name!r} needs {package}, which is not installed: "
            "install it, or reinstall pipecat-voxagent with the extra for this model"
        ) from error
    return factory(source, options)
