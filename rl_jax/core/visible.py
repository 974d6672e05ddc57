"""Text from outside (models, runs, servers, files) on a terminal or a page: what is not seen there is written out."""

import re

# C0 but tab and line feed, DEL, C1; the soft hyphen; joiners, zero-width characters and direction marks of all scripts;
# fillers; line and paragraph separators; invisible operators; surrogates; variation selectors but U+FE0F, which emoji
# need; annotation marks; tags.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0e\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff]"
)


def visible(text: str) -> str:
    """Text with each character that is not seen, or that moves or hides others, written as an escape (\\x1b, \\u202e).

    Line feeds and tabs stay.

    Args:
      text: any.
    """
    return _HIDDEN.sub(_escape, text)


def one_line(text: str) -> str:
    """`visible`, with line feeds and tabs as escapes as well: for a cell, a name, one line of a terminal."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def _escape(match: re.Match) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
