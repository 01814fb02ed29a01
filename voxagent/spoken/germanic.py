"""What the normaliser recognises in German and Dutch only: dates, clocks, ordinals, Roman numerals.

Pure; the shape of a rule is `rules.Rule`.
"""

from __future__ import annotations

from collections.abc import Mapping

from voxagent.spoken.rules import Rule

GERMANIC: Mapping[str, tuple[Rule, ...]] = {
    "de": (),
    "nl": (),
}
"""By primary tag; before the amounts and numbers of every language."""
