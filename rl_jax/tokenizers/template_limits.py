"""What a rendering of a chat template, an untrusted program, may use: steps, bytes, sizes, depths.

Nothing here looks at a clock: a rendering has a number of steps and of bytes to handle, and each operation says what it
takes before it is done. A template that is refused here is refused on every machine.
"""

import contextvars
import itertools
import re
import sys
from typing import Any

import jinja2.sandbox

MAX_SOURCE = 1_000_000  # characters of a template
MAX_STEPS = 200_000  # loop iterations and macro calls of one rendering
MAX_WORK = 200_000_000  # bytes made or read by one rendering, with BASE for each operation
MAX_SIZE = 10_000_000  # characters of a rendering and of any text or nested value in it; elements of a product
MAX_BITS = 4096  # of an integer
MAX_DEPTH = 100  # of lists in lists
MAX_WIDTH = 1000  # of a field that is filled with blanks; characters to strip
MAX_PATTERN = 4096  # characters of a %-format
BASE = 400  # of each operation
VALUE = 100  # of each value in a list that is new
NODE = 20  # of each node of a loop's body

_VIEWS = (type({}.items()), type({}.keys()), type({}.values()))
PLAIN = (str, bytes, int, float, complex, list, tuple, dict, range, set, frozenset, *_VIEWS)
_PERCENT = re.compile(r"%(?:\([^)]*\))?[-#0 +]*(\*|\d+)?(?:\.(\*|\d+))?")


class ChatTemplateError(ValueError):
    """A chat template cannot be used, or refused its input; the message names the file and the reason."""


class Meter:
    """What one rendering has used.

    Attributes:
      when: datetime. What strftime_now gives; None: the clock.
    """

    when = None

    def __init__(self):
        self.steps, self.work = 0, 0
        self._known: dict[int, tuple[Any, int, int]] = {}  # keeps the values, so that their ids stay theirs

    def tick(self, weight: int) -> None:
        """One iteration of a loop, or one call of a macro, of a body that weighs so much."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise ChatTemplateError(f"its loops take more than {MAX_STEPS} iterations")
        self.spend(weight)

    def spend(self, amount: int) -> None:
        """Counts some work."""
        self.work += amount
        if self.work > MAX_WORK:
            raise ChatTemplateError(f"it handles more than {MAX_WORK} bytes")

    def room(self, size: int) -> None:
        """Refuses what would have more than MAX_SIZE characters or elements."""
        if size > MAX_SIZE:
            raise ChatTemplateError(f"it makes something of more than {MAX_SIZE} characters")
        self.spend(max(size, 0))

    def width(self, width: Any) -> None:
        """Refuses to fill a field that is wider than MAX_WIDTH."""
        if isinstance(width, int) and width > MAX_WIDTH:
            raise ChatTemplateError(f"it fills something up to {width} characters, more than {MAX_WIDTH}")

    def touch(self, *values: Any) -> None:
        """Counts an operation that reads values without what is nested in them."""
        self.spend(BASE + sum(sys.getsizeof(value) // 8 for value in values if isinstance(value, PLAIN)))

    def weigh(self, value: Any) -> int:
        """Characters that a value would have if it were written, each nested value as often as it is there."""
        return self._measure(value)[0]

    def made(self, value: Any) -> Any:
        """Counts a new value and returns it, if it is not too large, too long or too deep."""
        if isinstance(value, (list, tuple, dict, set)):
            self.weigh(value)
            self.spend(BASE + 16 * len(value))
        elif isinstance(value, int):
            self.bits(value.bit_length())
        elif isinstance(value, (str, bytes)):
            self.room(len(value))
            self.spend(sys.getsizeof(value))
        return value

    def bits(self, count: int) -> None:
        """Refuses an integer of too many bits."""
        if count > MAX_BITS:
            raise ChatTemplateError(f"it computes an integer of more than {MAX_BITS} bits")

    def listed(self, value: Any) -> Any:
        """The value, as a list if it is a generator: what it yields can then be weighed."""
        if isinstance(value, str):
            self.spend(16 * len(value))
        if isinstance(value, PLAIN):
            return value
        items = list(itertools.islice(iter(value), MAX_STEPS + 1))
        if len(items) > MAX_STEPS:
            raise ChatTemplateError(f"it lists more than {MAX_STEPS} values")
        return items

    def search(self, text: Any, part: Any, *, backwards: bool = False) -> None:
        """Counts a search: looking for a long part from the end, Python may compare all of it at every place."""
        if isinstance(text, str) and isinstance(part, str):
            self.spend(BASE + len(text) * (len(part) if backwards else min(len(part), 100)) // 10)

    def _measure(self, value: Any) -> tuple[int, int]:
        if isinstance(value, (str, bytes)):
            return len(value), 0
        if isinstance(value, int):
            return value.bit_length() // 3 + 1, 0
        if not isinstance(value, (list, tuple, dict, set)):
            return 8, 0
        known = self._known.get(id(value))
        if known is not None:
            return known[1:]
        self.spend(VALUE * len(value))
        total, depth = 2, 1
        for part in itertools.chain(value, value.values()) if isinstance(value, dict) else value:
            size, below = self._measure(part)
            total, depth = total + size + 2, max(depth, below + 1)
            if depth > MAX_DEPTH:
                raise ChatTemplateError(f"it nests lists over {MAX_DEPTH} deep")
            if total > MAX_SIZE:
                raise ChatTemplateError(f"it makes a list of more than {MAX_SIZE} characters")
        self._known[id(value)] = value, total, depth
        return total, depth


_METER: contextvars.ContextVar = contextvars.ContextVar("meter")


def meter() -> Meter:
    """That of the rendering; one of its own while a template is compiled."""
    return _METER.get(None) or Meter()


def measure(state: Meter):
    """Begins a rendering. Returns what `end` takes."""
    return _METER.set(state)


def end(token) -> None:
    """Ends a rendering."""
    _METER.reset(token)


def percent(pattern: str, values: Any) -> None:
    """Checks pattern % values before it is made."""
    state = meter()
    if len(pattern) > MAX_PATTERN:
        raise ChatTemplateError(f"it formats with a pattern of more than {MAX_PATTERN} characters")
    widths = [width for match in _PERCENT.findall(pattern) for width in match if width]
    if "*" in widths:
        raise ChatTemplateError("it formats with a width from its values (%*d)")
    for width in widths:
        state.width(int(width[:9]))
    state.room(len(pattern) + MAX_WIDTH * len(widths) + pattern.count("%") * state.weigh(values))


class _Bounded:
    """A formatter for str.format whose fields have bounded widths and values."""

    def format_field(self, value, format_spec):
        """The text of a value."""
        state = meter()
        for width in re.findall(r"\d+", format_spec[:MAX_PATTERN]):
            state.width(int(width[:9]))
        if len(format_spec) > MAX_PATTERN:
            raise ChatTemplateError(f"it formats with a pattern of more than {MAX_PATTERN} characters")
        state.room(state.weigh(value))
        return state.made(super().format_field(value, format_spec))

    def convert_field(self, value, conversion):
        """The value as repr or str."""
        if conversion is not None:
            meter().room(meter().weigh(value))
        return super().convert_field(value, conversion)


class Formatter(_Bounded, jinja2.sandbox.SandboxedFormatter):
    """For str."""


class EscapeFormatter(_Bounded, jinja2.sandbox.SandboxedEscapeFormatter):
    """For Markup."""


def compared(*values: Any, searched: bool = False) -> None:
    """Counts a comparison, or a search for the first value in the last one."""
    state = meter()
    state.touch(*values)
    for value in values:
        if isinstance(value, (list, tuple, dict)):
            state.spend(state.weigh(value) // 16)
    if searched:
        state.search(values[-1], values[0])
