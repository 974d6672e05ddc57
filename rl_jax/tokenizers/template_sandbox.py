"""The sandbox of a chat template: jinja's own, with counters in the program and limits on what it calls."""

import datetime
import json
import types
from collections.abc import Iterable

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox
import jinja2.visitor

from rl_jax.tokenizers import template_limits as limits
from rl_jax.tokenizers import template_methods as methods
from rl_jax.tokenizers.template_limits import MAX_SIZE, ChatTemplateError

_COMPILER_S = ("_loop_vars", "_block_vars")  # arguments that compiled templates add, and jinja's Context takes off


class Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Reads, compiles and runs chat templates within template_limits."""

    intercepted_binops = frozenset(jinja2.sandbox.SandboxedEnvironment.default_binop_table)

    def __init__(self):
        extensions = [_Limits, _Generation, jinja2.ext.loopcontrols]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions, finalize=_written)
        self.filters, self.tests = methods.filters({"tojson": _tojson}), methods.tests()
        kept = {name: self.globals[name] for name in ("range", "joiner", "cycler")}
        self.globals = kept | {
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "dict": _make_dict,
            "namespace": _Namespace,
        }

    def unsafe_undefined(self, obj, attribute):
        raise ChatTemplateError(f"it reads {attribute!r} of a {type(obj).__name__}, which a chat template may not")

    def getitem(self, obj, argument):
        if isinstance(argument, tuple):  # hashed with all that is in it
            limits.meter().spend(limits.meter().weigh(argument))
        return super().getitem(obj, argument)

    def wrap_str_format(self, value):
        if super().wrap_str_format(value) is None:
            return None
        text = value.__self__
        markup, whole = hasattr(text, "__html__"), value.__name__ == "format_map"
        formatter = limits.EscapeFormatter(self, escape=text.escape) if markup else limits.Formatter(self)

        def format(*args, **kwargs):
            limits.meter().touch(text)
            given = ((), args[0]) if whole else (args, kwargs)
            return limits.meter().made(type(text)(formatter.vformat(text, *given)))

        return format

    def call(__self, __context, __obj, *args, **kwargs):
        given = {name: value for name, value in kwargs.items() if name not in _COMPILER_S}
        if isinstance(__obj, types.MethodType) and isinstance(__obj.__self__, jinja2.ext.Extension):
            return __obj(*args, **given)
        args = methods.check_method(__obj, args, given)
        return limits.meter().made(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context, operator, left, right):
        state = limits.meter()
        state.touch(left, right)
        if operator == "%" and isinstance(left, (str, bytes)):
            limits.percent(str(left), right)
        if operator == "*":
            for sequence, number in ((left, right), (right, left)):
                if isinstance(sequence, (str, bytes, list, tuple)) and isinstance(number, int):
                    if max(state.weigh(sequence), 1) * number > MAX_SIZE:
                        raise ChatTemplateError(f"it repeats something to more than {MAX_SIZE} elements")
        if operator == "+" and isinstance(left, (str, list, tuple)) and isinstance(right, (str, list, tuple)):
            state.room(len(left) + len(right))
        if isinstance(left, int) and isinstance(right, int):
            both = left.bit_length() + right.bit_length()
            state.bits(left.bit_length() * right if operator == "**" else both if operator == "*" else both // 2)
        return state.made(super().call_binop(context, operator, left, right))


class _Limits(jinja2.ext.Extension):
    """Counts in a template's program what no filter, call or product is: loops, joins, comparisons, parts, literals."""

    def __init__(self, environment):
        super().__init__(environment)
        environment.extend(with_limits=self.with_limits)

    def with_limits(self, tree: jinja2.nodes.Template) -> jinja2.nodes.Template:
        """The program with its counters. Each iteration weighs as much as there is in the loop's body."""
        repeated = (jinja2.nodes.For, jinja2.nodes.Macro, jinja2.nodes.CallBlock, jinja2.nodes.Block)
        for node in list(tree.find_all(repeated)):
            written = sum(len(data.data) for data in node.find_all(jinja2.nodes.TemplateData))
            weight = jinja2.nodes.Const(limits.NODE * sum(1 for _ in node.find_all(jinja2.nodes.Node)) + written)
            tick = jinja2.nodes.ExprStmt(self.call_method("tick", [weight]))
            node.body.insert(0, tick.set_lineno(node.lineno))
        return _Counters(self).visit(tree)

    def tick(self, weight):
        limits.meter().tick(weight)

    def joined(self, *parts):
        state, texts = limits.meter(), []
        for part in parts:
            state.room(state.weigh(part))
            texts.append(str(part))
        state.room(sum(map(len, texts)))
        return state.made("".join(texts))

    def operand(self, value):
        limits.compared(value)
        return value

    def contains(self, value, values):
        limits.compared(value, values, searched=True)
        return value in values

    def parts(self, value):
        limits.meter().spend(limits.BASE + 8 * len(value) if isinstance(value, limits.PLAIN) else limits.BASE)
        return value

    def literal(self, value):
        return limits.meter().made(value)


class _Counters(jinja2.visitor.NodeTransformer):
    """Wraps nodes in calls of _Limits."""

    def __init__(self, extension):
        self._extension = extension

    def _call(self, name, node, *arguments):
        return self._extension.call_method(name, list(arguments)).set_lineno(node.lineno)

    def visit_Concat(self, node):
        self.generic_visit(node)
        return self._call("joined", node, *node.nodes)

    def visit_Compare(self, node):
        self.generic_visit(node)
        names = [operand.op for operand in node.ops]
        if {"in", "notin"} & set(names):
            if len(names) > 1:
                raise jinja2.TemplateSyntaxError("`in` within a chain of comparisons: write it apart", node.lineno)
            found = self._call("contains", node, node.expr, node.ops[0].expr)
            return found if names == ["in"] else jinja2.nodes.Not(found).set_lineno(node.lineno)
        node.expr = self._operand(node.expr)
        for operand in node.ops:
            operand.expr = self._operand(operand.expr)
        return node

    def _operand(self, node):
        return node if isinstance(node, jinja2.nodes.Const) else self._call("operand", node, node)

    def visit_Getitem(self, node):
        self.generic_visit(node)
        if isinstance(node.arg, jinja2.nodes.Slice):
            node.node = self._call("parts", node, node.node)
        return node

    def _literal(self, node):
        self.generic_visit(node)
        constant = all(isinstance(child, jinja2.nodes.Const) for child in node.iter_child_nodes())
        return node if constant or getattr(node, "ctx", "load") != "load" else self._call("literal", node, node)

    visit_List = visit_Tuple = visit_Dict = _literal


class _Generation(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %}, the assistant's text: written as it is, in a scope of its own."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("note"), [], [], body).set_lineno(line)

    def note(self, caller):
        return caller()


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

    def __repr__(self):
        return "<Namespace>"  # and not all that it holds, which may hold it


def _refuse_underscore(name):
    if str(name).startswith("_"):
        raise ChatTemplateError(f"it sets {name!r} on a namespace, which a chat template may not")


@jinja2.pass_context
def _written(context, value):
    """What is written for a value: jinja's finalize."""
    state = limits.meter()
    state.room(state.weigh(value))
    return state.made(value if isinstance(value, str) else str(value))


def _tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
    state, step = limits.meter(), indent if isinstance(indent, int) else len(indent or "")
    state.width(max([step, *map(len, separators or ())]) * 10)
    state.room(state.weigh(value) * (1 + step))
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message):
    raise ChatTemplateError(f"it refuses these messages: {message}")


def _strftime_now(format):
    limits.meter().width(len(format))
    return (limits.meter().when or datetime.datetime.now()).strftime(format)


def _make_dict(*args: Iterable, **kwargs) -> dict:
    return dict(*args, **kwargs)
