"""Normalisation of text before it is tokenised."""

from __future__ import annotations

import re
import unicodedata

_SURROGATE = re.compile("[\ud800-\udfff]")
_CURLY = str.maketrans("‘’‛`´“”„‟", "'''''\"\"\"\"")
_COMMAS = re.compile(r",(?!\d)|(?<!\d),")


def replace_surrogates(text: str) -> str:
    """The text with U+FFFD for every lone surrogate, which cannot be encoded as UTF-8."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def plain(text: str) -> str:
    """A prompt in lower case, without commas, final marks and curly quotes.

    The result is empty only if the text is.

    >>> plain("Hi,  How’s it going?!")
    "hi how's it going"
    >>> plain("?!")
    '?!'
    """
    if text.isascii():  # nothing to normalise, and of the curly quotes only `
        unified = " ".join(text.lower().replace("`", "'").split())
        if "," not in unified:
            return unified.rstrip("?!. ") or unified or text
    else:
        unified = _unified(text)
    without_commas = " ".join(_COMMAS.sub(" ", unified).split())
    return without_commas.rstrip("?!.… ") or unified or text


def _unified(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text.lower()).translate(_CURLY).split())
