"""What looks like a URL, an e-mail address or a host, from its first characters on. Pure patterns."""

from __future__ import annotations

import re

from voxagent.marks import TOP_LEVEL_DOMAINS

ADDRESS = re.compile(
    r"\S{0,3}(?:[a-z][a-z0-9+.-]{1,9}://|www\.|\S{1,64}@|[\w-]{1,64}(?:\.[\w-]{1,64}){1,4}/|data:)", re.IGNORECASE
)
"""Matches where one begins."""

ADDRESS_WORD = re.compile(
    rf"(?:[a-z][a-z0-9+.-]{{1,9}}://\S+|www\.\S+|\S{{1,64}}@\S+\.\w{{2,}}|"
    rf"[\w-]{{2,64}}(?:\.[\w-]{{2,64}}){{0,4}}\.(?:{TOP_LEVEL_DOMAINS})(?:/\S*)?)$",
    re.IGNORECASE,
)
"""Matches a word that is one."""

ADDRESS_START = re.compile(
    r"[\"'“„«(]?(?:[a-z][a-z0-9+.-]{1,9}:/|www\.|[\w-]{2,64}(?:\.[\w-]{2,64}){1,4}/)$", re.IGNORECASE
)
"""Matches a word that has just begun to be one."""
