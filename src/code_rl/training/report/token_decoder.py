"""Token ids to the text of each token, with the tokenizer that the run saved in its directory."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from code_rl.util.errors import DataError
from code_rl.util.files import write_atomically

TOKENIZER = "tokenizer.json"


class TokenDecoder:
    """Splits a completion's text at its tokens. A character that several tokens share belongs to
    the last of them."""

    def __init__(self, tokenizer: Any) -> None:
        """Take a tokenizer of the library `tokenizers`, by which ids are looked up once."""
        self._tokenizer = tokenizer
        self._known: dict[int, bytes] = {}

    def split(self, tokens: Sequence[int]) -> list[str]:
        """Return one string per token, which may be empty: a character that several tokens share
        belongs to the last. Joined, they are the text that the model wrote, special tokens
        included."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        last = len(tokens) - 1
        return [
            decoder.decode(self._bytes(token), final=index == last)
            for index, token in enumerate(tokens)
        ]

    def join(self, tokens: Sequence[int]) -> str:
        """Return the text of all tokens, special tokens included; invalid UTF-8 is replaced by
        U+FFFD."""
        return b"".join(map(self._bytes, tokens)).decode("utf-8", "replace")

    def _bytes(self, token: int) -> bytes:
        """Return the bytes of a token, looked up once; `<id>` for one that the vocabulary does not
        have."""
        if token not in self._known:
            name = self._tokenizer.id_to_token(token) if 0 <= token < 2**32 else None
            self._known[token] = f"<{token}>".encode() if name is None else _token_bytes(name)
        return self._known[token]


def keep_tokenizer(log_path: Path, tokenizer: Any) -> None:
    """Write the run's tokenizer as `tokenizer.json` into its directory, so that a report can show
    tokens without the model. Slow (pure Python) tokenizers are not written. Raises OSError."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        write_atomically(log_path / TOKENIZER, backend.to_str())


def load_pieces(log_path: Path) -> TokenDecoder | None:
    """Return the run's copy of its tokenizer, or None if it has none. Raises DataError if it is
    damaged."""
    from tokenizers import Tokenizer

    path = log_path / TOKENIZER
    if not path.is_file():
        return None
    try:
        return TokenDecoder(Tokenizer.from_file(str(path)))
    except Exception as error:  # the library has no error class of its own
        raise DataError(f"{path} is damaged ({error}); restore it, or delete it") from error


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's printable characters for the 256 bytes, used in byte-level BPE vocabularies,
    as character to byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in printable]
    return alphabet | {chr(256 + place): byte for place, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()


def _token_bytes(name: str) -> bytes:
    """Return the bytes of a vocabulary entry: `<0xNN>`, byte-level BPE, or SentencePiece."""
    if name.startswith("<0x") and name.endswith(">") and len(name) == 6:
        return bytes([int(name[3:5], 16)])
    if all(char in _ALPHABET for char in name):
        return bytes(_ALPHABET[char] for char in name)
    return name.replace("▁", " ").encode("utf-8", "replace")
