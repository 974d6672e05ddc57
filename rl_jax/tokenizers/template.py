"""Renders a model folder's chat template, an untrusted jinja program, in a sandbox. No jax.

The conventions are those of `transformers` (utils/chat_template_utils.py): blocks trimmed, tojson without HTML escapes,
raise_exception, strftime_now, break and continue, and {% generation %} around the assistant's text. Stricter than
there: unsafe attributes raise instead of rendering as empty, nothing is imported or included, and loops, ranges,
products and the output are bounded. The memory of a single formatting expression is not bounded.
"""

import contextvars
import datetime
import json
import re
from collections.abc import Iterable, Mapping, Sequence

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

MAX_STEPS = 200_000  # loop iterations and macro calls of one rendering
MAX_SIZE = 10_000_000  # characters of a rendering; elements of a product
MAX_BITS = 4096  # of an integer product or power

_rendering: contextvars.ContextVar = contextvars.ContextVar("rendering")


class ChatTemplateError(ValueError):
    """A chat template cannot be used, or refused its input; the message names the file and the reason."""


class SandboxedTemplate:
    """A chat template, compiled once.

    Attributes:
      path: for error messages.
      marks_assistant: whether it has {% generation %} blocks.
    """

    def __init__(self, source: str, *, path: str):
        """Compiles `source`.

        Raises:
          ChatTemplateError: if the syntax is invalid or the template loads files.
        """
        self.path = path
        self.marks_assistant = re.search(r"\{%[-+]?\s*generation\b", source) is not None
        environment = _Environment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Limits, _Generation, jinja2.ext.loopcontrols]
        )
        try:
            tree = environment.parse(source)
            loads = (jinja2.nodes.Import, jinja2.nodes.FromImport, jinja2.nodes.Include, jinja2.nodes.Extends)
            for node in tree.find_all(loads):
                raise ChatTemplateError(
                    f"{path}, line {node.lineno}: a chat template may not load other files "
                    f"({type(node).__name__.lower()})"
                )
            environment.insert_ticks(tree)
            self._template = environment.from_string(tree)
        except jinja2.TemplateSyntaxError as error:
            raise ChatTemplateError(f"{path}, line {error.lineno}: {error.message}") from error

    def render(self, messages: Sequence[Mapping], **variables) -> tuple[str, list[tuple[int, int]]]:
        """The text, and the character spans (begin, end) of its {% generation %} blocks.

        Args:
          messages: plain data (None, bool, numbers, str, list, dict).
          **variables: plain data. Methods are what a template could use to leave its sandbox.

        Raises:
          TypeError: if anything is not plain data.
          ChatTemplateError: if the template fails, refuses its input or exceeds a limit.
        """
        # Many templates print "None" for a field that is present and None.
        messages = [{name: value for name, value in message.items() if value is not None} for message in messages]
        messages, variables, state = _plain(messages), _plain(variables), _Rendering()
        token = _rendering.set(state)
        try:
            for block in self._template.generate(messages=messages, **variables):
                state.add(block)
        except ChatTemplateError as error:
            raise ChatTemplateError(f"{self.path}: {error}") from error
        except RecursionError as error:
            raise ChatTemplateError(f"{self.path}: its macros call each other without end") from error
        except (
            jinja2.TemplateError,
            TypeError,
            KeyError,
            IndexError,
            AttributeError,
            ArithmeticError,
            ValueError,
        ) as error:
            raise ChatTemplateError(f"{self.path}: {type(error).__name__}: {error}") from error
        finally:
            _rendering.reset(token)
        return "".join(state.blocks), state.spans


class _Rendering:
    """The state of one rendering: steps used and text written."""

    def __init__(self):
        self.steps, self.length, self.blocks, self.spans = 0, 0, [], []

    def add(self, block: str):
        self.length += len(block)
        if self.length > MAX_SIZE:
            raise ChatTemplateError(f"it writes more than {MAX_SIZE} characters")
        self.blocks.append(block)


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(["*", "**"])

    def __init__(self, **options):
        super().__init__(**options)
        self.filters["tojson"] = _tojson
        kept = {name: self.globals[name] for name in ("range", "joiner", "cycler")}
        self.globals = kept | {
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "dict": _make_dict,
            "namespace": _Namespace,
        }

    def unsafe_undefined(self, obj, attribute):
        raise ChatTemplateError(f"it reads {attribute!r} of a {type(obj).__name__}, which a chat template may not")

    def call_binop(self, context, operator, left, right):
        if operator == "*":
            for sequence, number in ((left, right), (right, left)):
                if isinstance(sequence, (str, list, tuple)) and isinstance(number, int):
                    if len(sequence) * number > MAX_SIZE:
                        raise ChatTemplateError(f"it repeats something to more than {MAX_SIZE} elements")
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            if bits > MAX_BITS:
                raise ChatTemplateError(f"it computes an integer of more than {MAX_BITS} bits")
        return super().call_binop(context, operator, left, right)


class _Limits(jinja2.ext.Extension):
    """Counts loop iterations and macro calls: jinja bounds ranges, but not nested ones."""

    def __init__(self, environment):
        super().__init__(environment)
        environment.extend(insert_ticks=self.insert_ticks)

    def insert_ticks(self, tree: jinja2.nodes.Template):
        for node in list(tree.find_all((jinja2.nodes.For, jinja2.nodes.Macro))):
            tick = jinja2.nodes.ExprStmt(self.call_method("tick"))
            node.body.insert(0, tick.set_lineno(node.lineno))

    def tick(self):
        state = _rendering.get()
        state.steps += 1
        if state.steps > MAX_STEPS:
            raise ChatTemplateError(f"its loops take more than {MAX_STEPS} iterations")


class _Generation(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %}, the assistant's text. Not allowed inside macros and captures."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("note"), [], [], body).set_lineno(line)

    def note(self, caller):
        text, state = caller(), _rendering.get()
        state.spans.append((state.length, state.length + len(text)))
        return text


class _Namespace(jinja2.utils.Namespace):
    """jinja's namespace without underscored names, which would shadow Python's own."""

    def __init__(*args, **kwargs):
        self, args = args[0], args[1:]
        attributes = dict(*args, **kwargs)
        for name in attributes:
            _refuse_underscore(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name, value):
        _refuse_underscore(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)


def _refuse_underscore(name):
    if str(name).startswith("_"):
        raise ChatTemplateError(f"it sets {name!r} on a namespace, which a chat template may not")


def _tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message):
    raise ChatTemplateError(f"it refuses these messages: {message}")


def _strftime_now(format):
    return datetime.datetime.now().strftime(format)


def _make_dict(*args: Iterable, **kwargs) -> dict:
    return dict(*args, **kwargs)


def _plain(value):
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Mapping):
        return {_plain(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    raise TypeError(f"a chat template gets plain data, not a {type(value).__name__}: {value!r:.80}")
