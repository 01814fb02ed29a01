"""What the normaliser recognises in Arabic, Hindi, Turkish only: dates, clocks, ordinals, Roman numerals.

Pure; the shape of a rule is `rules.Rule`.
"""

from __future__ import annotations

from collections.abc import Mapping

from voxagent.spoken.rules import Rule

OTHERS: Mapping[str, tuple[Rule, ...]] = {
    "ar": (),
    "hi": (),
    "tr": (),
}
"""By primary tag; before the amounts and numbers of every language."""
