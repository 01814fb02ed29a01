"""What the normaliser recognises in Japanese and Chinese only: addresses by numbers, codes that are read by digits.

Pure; the shape of a rule is `rules.Rule`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from voxagent.spoken.numbers import Wording, cardinal, digits
from voxagent.spoken.rules import Rule


def _say_block(m: re.Match[str], w: Wording) -> str | None:
    """1-2-3 in an address: the numbers with の between them."""
    return "の".join(cardinal(int(number), "ja") for number in m.group().split("-"))


def _say_code(m: re.Match[str], w: Wording) -> str | None:
    return digits(m.group(), "zh")


ASIAN: Mapping[str, tuple[Rule, ...]] = {
    "ja": (Rule("block", "d", r"(?<![\d-])[1-9]\d{0,2}-\d{1,3}-\d{1,3}(?![\d-])", _say_block),),
    "zh": (
        Rule(
            "code",
            "d",
            r"(?:(?<=密码)|(?<=验证码)|(?<=房间号)|(?<=房号)|(?<=单号)|(?<=尾号)|(?<=编号)|(?<=卡号)|(?<=[码号][是为：:]))\d{3,}(?![\d.,])|(?<!\d)\d{3,4}(?=[室房])",
            _say_code,
        ),
    ),
}
"""By primary tag; before the amounts and numbers of every language."""
