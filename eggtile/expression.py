"""Code from the command line: its statements run, and its last expression becomes a module of the tensors it names."""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import re
import symtable
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from itertools import count
from types import BuiltinFunctionType, ModuleType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakIdKeyDictionary

from eggtile.capture.location import innermost, marked
from eggtile.capture.types import first_sentence
from eggtile.echo import cut
from eggtile.leaves import flat_tensors, holds_tensors

CODE = "<program>"
RANDOM = frozenset((torch.randn, torch.rand, torch.randint, torch.randperm, torch.normal))
CONVERSIONS = frozenset(
    ("half", "float", "double", "bfloat16", "to", "cuda", "cpu", "eval", "train", "requires_grad_", "type")
)
"""Methods that, written directly on a random tensor or a module, belong to making it."""
_NUMBERS = count()
_POSITIONAL = inspect.Parameter.POSITIONAL_ONLY
_SCOPES = ast.Call | ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp | ast.NamedExpr


class SourceError(Exception):
    """A program that cannot be loaded: one sentence, with the place in the user's text where there is one."""


class Placed(TorchFunctionMode):
    """Where no GPU is present, `cuda` is a place that the CPU stands for."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.cuda.is_available():
            return func(*args, **kwargs)
        if func is torch.Tensor.cuda:
            return args[0]
        return func(*map(_on_cpu, args), **{k: _on_cpu(v) for k, v in kwargs.items()})


def _on_cpu(value: Any) -> Any:
    is_place = isinstance(value, str | torch.device) and str(value).partition(":")[0] == "cuda"
    return torch.device("cpu") if is_place else value


class Steps(Placed):
    """Statements as they run: which of their tensors are made of other ones, not only filled, moved or converted."""

    def __init__(self) -> None:
        super().__init__()
        self.made: MutableMapping[torch.Tensor, bool] = WeakIdKeyDictionary()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = super().__torch_function__(func, types, args, kwargs)
        given, given_back = flat_tensors((args, kwargs)), flat_tensors(out)
        read = [t for t in given if all(t is not o for o in given_back)]
        moved = getattr(func, "__name__", "") in CONVERSIONS
        if read and (not moved or any(t in self.made for t in read)):
            self.made.update(dict.fromkeys(given_back, True))
        return out

    def note(self, held: Mapping[str, Any]) -> tuple[str, ...]:
        """Which inputs of the last expression are values that the statements before it compute."""
        names = [n for n, value in held.items() if any(t in self.made for t in pytree.tree_leaves(value))]
        if not names:
            return ()
        which = f"{names[0]} is an input" if len(names) == 1 else f"{', '.join(names)} are inputs"
        return (f"the last expression alone is the program: {which}, computed once by the statements before it",)


class Expression(torch.nn.Module):
    """The last expression of a program as a function of its tensors; the modules in it are submodules."""

    def __init__(self, function: Callable[..., Any], held: dict[str, Any]) -> None:
        super().__init__()
        leaves, self._tree = pytree.tree_flatten(held)
        self._function = function
        self.tensors: list[torch.Tensor] = leaves
        paths = [pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(held)[0]]
        names = [re.sub(r"\W+", "_", path).strip("_") for path in paths]
        self.__signature__ = inspect.Signature([inspect.Parameter(n, _POSITIONAL) for n in names])

    def forward(self, *tensors: torch.Tensor) -> Any:
        held = pytree.tree_unflatten(list(tensors), self._tree)
        if torch.cuda.is_available():
            return self._function(**held)
        with Placed():
            return self._function(**held)


def from_code(code: str) -> tuple[Expression, list[torch.Tensor], tuple[str, ...]]:
    """Runs all statements but the last; gives the last expression, the values of its tensors, its inputs, and notes."""
    lines = [line + "\n" for line in code.splitlines()]
    linecache.cache[CODE] = (len(code), None, lines, CODE)
    try:
        tree = ast.parse(code, CODE)
    except SyntaxError as error:
        raise SourceError(syntax(error)) from error
    if not tree.body:
        raise SourceError("the program is empty")
    last = tree.body.pop()
    if not isinstance(last, ast.Expr | ast.Assign | ast.AnnAssign) or last.value is None:
        raise SourceError(f"line {last.lineno}: the last statement is no expression{_at(last, lines)}")
    scope = _module().__dict__
    hoister, steps = _Hoister(scope), Steps()
    try:
        with steps:
            exec(compile(tree, CODE, "exec"), scope)
        with Placed():
            _check_names(last.value, scope, lines)
            body = hoister.visit(last.value)
    except SourceError:
        raise
    except (Exception, SystemExit) as error:  # whatever the user's own statements raise
        raise SourceError(raised(error)) from error
    used = list(dict.fromkeys(n.id for n in _names(body) if n.id in scope))
    held = {n: scope[n] for n in used if holds_tensors(scope[n])}
    expression = Expression(_function_of(body, list(held), scope), held)
    for n in used:
        if isinstance(scope[n], torch.nn.Module):
            expression.add_module(hoister.modules.get(n, n), scope[n])
    return expression, expression.tensors, steps.note(held)


def _module() -> ModuleType:
    """A module for one program; it is importable, since tracers look the names of a function up there."""
    module = ModuleType(f"__program{next(_NUMBERS)}__")
    module.__dict__.update(torch=torch, nn=torch.nn, F=torch.nn.functional)
    sys.modules[module.__name__] = module
    return module


def _function_of(body: ast.expr, names: list[str], scope: dict[str, Any]) -> Callable[..., Any]:
    """The expression as a function of some of its names; the others are its globals."""
    arguments = ast.arguments([], [ast.arg(n) for n in names], None, [], [], None, [])
    tree = ast.fix_missing_locations(ast.Expression(ast.copy_location(ast.Lambda(arguments, body), body)))
    function: Callable[..., Any] = eval(compile(tree, CODE, "eval"), scope)
    return function


class _Hoister(ast.NodeTransformer):
    """Makes the modules and random tensors of an expression, and names them in its scope."""

    def __init__(self, scope: dict[str, Any]) -> None:
        self.scope = scope
        self.made: set[str] = set()
        self.modules: dict[str, str] = {}

    def visit_Lambda(self, node: ast.expr) -> ast.expr:
        return node

    visit_SetComp = visit_DictComp = visit_Lambda

    def visit_ListComp(self, node: ast.ListComp | ast.GeneratorExp) -> ast.expr:
        """A list that only makes random tensors is made; any other is traced as it stands."""
        bound = {n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
        free = [n for n in _names(node) if n.id not in bound]
        if any(not self._is_static(n) for n in free) or not all(map(self._makes, ast.walk(node))):
            return node
        return self._named(node, list(self._value(node)), "x")

    visit_GeneratorExp = visit_ListComp

    def _makes(self, node: ast.AST) -> bool:
        """Whether a node of such a list is no call, or one that makes or converts a random tensor."""
        match node:
            case ast.Call(func=ast.Attribute(attr=attr)) if attr in CONVERSIONS:
                return True
            case ast.Call(func=function):
                return self._is_static(function) and self._value(function) in (*RANDOM, range)
        return not isinstance(node, ast.Lambda)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if not all(map(self._is_static, (*node.args, *(k.value for k in node.keywords)))):
            return node
        match node.func:
            case ast.Attribute(value=ast.Name(id=name), attr=attr) if name in self.made and attr in CONVERSIONS:
                self.scope[name] = self._value(node)
                return ast.copy_location(ast.Name(name, ast.Load()), node)
        return self._made(node) if self._is_static(node.func) else node

    def _made(self, node: ast.Call) -> ast.expr:
        function = self._value(node.func)
        if inspect.isclass(function) and issubclass(function, torch.nn.Module):
            return self._named(node, self._value(node).eval(), f"_{function.__name__}")
        if isinstance(function, BuiltinFunctionType) and function in RANDOM:
            return self._named(node, self._value(node), "x")
        if getattr(function, "__module__", None) in ("builtins", "math"):
            return self._named(node, self._value(node), "_value")
        return node

    def _named(self, node: ast.expr, value: Any, stem: str) -> ast.expr:
        name = next(n for n in (f"{stem}{k}" for k in range(len(self.scope) + 1)) if n not in self.scope)
        self.scope[name] = value
        self.made.add(name)
        if isinstance(value, torch.nn.Module):
            kind = type(value).__name__
            same = sum(n.partition("_")[0] == kind for n in self.modules.values())
            self.modules[name] = f"{kind}_{same}" if same else kind
        return ast.copy_location(ast.Name(name, ast.Load()), node)

    def _is_static(self, node: ast.expr) -> bool:
        """Whether the value is known without tracing: no calls, and no names of tensors."""
        for n in ast.walk(node):
            if isinstance(n, _SCOPES):
                return False
            if isinstance(n, ast.Name):
                value = self.scope.get(n.id, getattr(builtins, n.id, self))
                if value is self or holds_tensors(value):
                    return False
        return True

    def _value(self, node: ast.expr) -> Any:
        tree = ast.fix_missing_locations(ast.Expression(node))
        return eval(compile(tree, CODE, "eval"), self.scope)


# ---- names and messages


def _names(tree: ast.AST) -> list[ast.Name]:
    names = [n for n in ast.walk(tree) if isinstance(n, ast.Name)]
    return sorted(names, key=lambda n: (n.lineno, n.col_offset))


def _check_names(node: ast.expr, scope: dict[str, Any], lines: list[str]) -> None:
    free = set(_free_names(symtable.symtable(ast.unparse(node), CODE, "eval")))
    for name in _names(node):
        if name.id in free and name.id not in scope and not hasattr(builtins, name.id):
            raise SourceError(f"line {name.lineno}: {cut(name.id)} is not defined{_at(name, lines)}")


def _free_names(table: symtable.SymbolTable) -> Iterator[str]:
    top = table.get_type() == "module"
    yield from (s.get_name() for s in table.get_symbols() if s.is_referenced() and (top or s.is_global()))
    for child in table.get_children():
        yield from _free_names(child)


def _at(node: ast.expr | ast.stmt, lines: list[str]) -> str:
    return marked(lines[node.lineno - 1], node.col_offset)


def syntax(error: SyntaxError) -> str:
    """A syntax error as a sentence with its place."""
    return f"line {error.lineno}: {error.msg}{marked(error.text or '', max((error.offset or 1) - 1, 0))}"


def raised(error: BaseException) -> str:
    """An error of the user's statements as a sentence with its place."""
    return f"{type(error).__name__}: {first_sentence(str(error))}{innermost(error)}"
