"""A griffe extension: prose in docstrings is plain text, not Markdown, apart from `code` and indented blocks.

Docstrings hold shapes, products and tokens ([i][j], a*b, <pad>) that Markdown would take for links, emphasis and tags.
"""

import re

import griffe

SECTION = re.compile(r"(Args|Attributes|Returns|Yields|Raises|Note|Notes):$")


def plain(line: str) -> str:
    """A line of prose in which only `code` is markup. Stars at its beginning stay: they name *args or **keywords."""
    parts = re.split(r"(`[^`]*`)", line)
    for i in range(0, len(parts), 2):
        stars, rest = re.match(r"(\s*\**)(.*)", parts[i], flags=re.S).groups() if i == 0 else ("", parts[i])
        rest = rest.replace("<", "&lt;").replace("*", r"\*").replace("__", r"\_\_")
        parts[i] = stars + re.sub(r"\](?=[\[(])", r"]\\", rest)
    return "".join(parts)


def escaped(text: str) -> str:
    """A docstring with its prose escaped; blocks indented by four spaces outside a section are code, and stay."""
    lines, in_section = [], False
    for line in text.splitlines():
        if line and not line.startswith(" "):
            in_section = bool(SECTION.match(line))
        code = line.startswith("    ") and not in_section
        lines.append(line if code else plain(line))
    return "\n".join(lines)


class PlainText(griffe.Extension):
    """Escapes each docstring as it is read."""

    def on_object(self, *, obj, **_) -> None:
        """Called for everything that was read."""
        if obj.docstring is not None:
            obj.docstring.value = escaped(obj.docstring.value)
