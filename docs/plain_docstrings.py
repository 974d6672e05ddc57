"""A griffe extension: docstrings are shown as they are written, line by line, and are not read as Markdown.

They hold equations, shapes and indices ([B, T], a * b, x_i), which Markdown would take for links and emphasis.
"""

import html
import re

import griffe

WRAPPED = 95  # characters of a line that goes on in the next one, because the source is 120 wide


def unwrapped(text: str) -> str:
    """Text with the sentences joined again that the width of the source has broken; indented lines stay."""
    whole, before = "", ""
    for line in text.splitlines():
        goes_on = len(before) >= WRAPPED and line and not before.startswith(" ") and not line.startswith(" ")
        whole += (" " if goes_on else "\n") + line
        before = line
    return whole.removeprefix("\n")


class PlainDocstrings(griffe.Extension):
    """Wraps each docstring in a block whose lines and blanks are kept; `code` stays code."""

    def on_object(self, *, obj, **_) -> None:
        """Called for everything that was read."""
        if obj.docstring is not None and not obj.docstring.value.startswith("<div"):
            text = re.sub(r"`([^`\n]+)`", r"<code>\1</code>", html.escape(unwrapped(obj.docstring.value), quote=False))
            obj.docstring.value = f'<div class="doc-plain">{text}</div>'
