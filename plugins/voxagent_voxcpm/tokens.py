"""Text to token ids, as VoxCPM was trained: no sentence start, and Chinese one character a token."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

_WORD_START = "▁"


class Tokens:
    """A checkpoint's tokenizer.

    Args:
        path: Its `tokenizer.json`.

    Raises:
        ValueError: The file is missing or damaged.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise ValueError(f"{path} does not exist: the checkpoint is not complete")
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare exceptions
            raise ValueError(f"{path} is damaged ({error}): download it again") from error
        # A text that spells a control token is still a text.
        self._tokenizer.encode_special_tokens = True

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; what the tokenizer lacks becomes bytes."""
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        ids: list[int] = []
        for token, number in zip(encoded.tokens, encoded.ids, strict=True):
            chinese = token.replace(_WORD_START, "")
            if len(chinese) < 2 or not all("\u4e00" <= ch <= "\u9fff" for ch in chinese):
                ids.append(number)
                continue
            for ch in chinese:
                single = self._tokenizer.token_to_id(ch)
                ids.extend([single] if single is not None else self._bytes(ch))
        return ids

    def _bytes(self, ch: str) -> list[int]:
        found = (self._tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in ch.encode())
        return [number for number in found if number is not None]
