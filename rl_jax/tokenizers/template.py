"""Renders a model folder's chat template, an untrusted jinja program, in a sandbox. No jax.

The conventions are those of `transformers` (utils/chat_template_utils.py): blocks trimmed, tojson without HTML escapes,
raise_exception, strftime_now, break and continue, and {% generation %} around the assistant's text. Stricter than
there: unsafe attributes raise instead of rendering as empty, nothing is imported or included, methods and filters are
those of a list (template_methods), and what a rendering handles is bounded in steps and bytes, not by a clock
(template_limits).
"""

import datetime
from collections.abc import Mapping, Sequence

import jinja2
import jinja2.nodes

from rl_jax.tokenizers import template_limits as limits
from rl_jax.tokenizers.template_limits import MAX_SIZE, ChatTemplateError
from rl_jax.tokenizers.template_sandbox import Environment


class SandboxedTemplate:
    """A chat template, compiled once.

    Attributes:
      path: for error messages.
      when: datetime that strftime_now gives; None: the clock.
    """

    def __init__(self, source: str, *, path: str):
        """Compiles `source`.

        Raises:
          ChatTemplateError: if the syntax is invalid, the template loads files, or it is too large or too nested.
        """
        self.path, self.when = path, None
        if not isinstance(source, str):
            raise ChatTemplateError(
                f"{path}: the chat template is a {type(source).__name__}, not a text: {source!r:.60}"
            )
        if len(source) > limits.MAX_SOURCE:
            raise ChatTemplateError(f"{path}: a chat template of {len(source)} characters, over {limits.MAX_SOURCE}")
        environment = Environment()
        try:
            tree = environment.parse(source)
            loads = (jinja2.nodes.Import, jinja2.nodes.FromImport, jinja2.nodes.Include, jinja2.nodes.Extends)
            for node in tree.find_all(loads):
                raise ChatTemplateError(
                    f"{path}, line {node.lineno}: a chat template may not load other files "
                    f"({type(node).__name__.lower()})"
                )
            self._template = environment.from_string(environment.with_limits(tree))
        except jinja2.TemplateSyntaxError as error:
            raise ChatTemplateError(f"{path}, line {error.lineno}: {error.message}") from error
        except (RecursionError, MemoryError, SyntaxError) as error:  # the last from Python, of the compiled template
            raise ChatTemplateError(f"{path}: nests its blocks or expressions too deep to be compiled") from error

    def render(self, messages: Sequence[Mapping], **variables) -> str:
        """The text.

        Args:
          messages: plain data (None, bool, numbers, str, list, dict).
          **variables: plain data. Methods are what a template could use to leave its sandbox.

        Raises:
          TypeError: if anything is not plain data.
          ChatTemplateError: if the template fails, refuses its input or exceeds a limit.
        """
        # Many templates print "None" for a field that is present and None.
        messages = [{name: value for name, value in message.items() if value is not None} for message in messages]
        try:
            messages, variables, state = _plain(messages), _plain(variables), _Rendering(self.when)
        except RecursionError as error:
            raise ChatTemplateError(f"{self.path}: messages or variables are nested too deep") from error
        token = limits.measure(state)
        try:
            for block in self._template.generate(messages=messages, **variables):
                state.add(block)
        except ChatTemplateError as error:
            raise ChatTemplateError(f"{self.path}: {error}") from error
        except RecursionError as error:
            reason = "its macros call each other without end, or it nests values too deep"
            raise ChatTemplateError(f"{self.path}: {reason}") from error
        except MemoryError as error:
            raise ChatTemplateError(f"{self.path}: it takes more memory than there is") from error
        except (jinja2.TemplateError, *_FAILURES) as error:
            raise ChatTemplateError(f"{self.path}: {type(error).__name__}: {error}") from error
        finally:
            limits.end(token)
        return "".join(state.blocks)


_FAILURES = (TypeError, KeyError, IndexError, AttributeError, ArithmeticError, ValueError, RuntimeError)


class _Rendering(limits.Meter):
    """The state of one rendering: what it has used and written."""

    def __init__(self, when: datetime.datetime | None):
        super().__init__()
        self.when = when
        self.length, self.blocks = 0, []

    def add(self, block: str):
        self.length += len(block)
        if self.length > MAX_SIZE:
            raise ChatTemplateError(f"it writes more than {MAX_SIZE} characters")
        self.blocks.append(block)


def _plain(value):
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Mapping):
        return {_plain(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    raise TypeError(f"a chat template gets plain data, not a {type(value).__name__}: {value!r:.80}")
