"""The rules of the house: imports go one way, names stay at their level, and the text is clean."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("ir", "egraph", "extract", "codegen", "eggtile", "bench")
ONLY_IN = {"torch": {"eggtile", "bench"}, "egglog": {"egraph"}, "cupy": {"codegen"}, "cuda": {"codegen"}}
OPERATOR = re.compile(
    r"soft_?max|attention|sdpa|(rms|layer|group|batch)_?norm|gelu|silu|swiglu|mixture|(^|_)moe(_|$)"
    r"|flash_?att|log_?sum_?exp|cross_?entropy|rotary|log_?softmax",
    re.IGNORECASE,
)
MACHINE_PATH = re.compile(r"(^|[^A-Za-z0-9_.])/(work|root|farm|home|tmp/[a-z]+)/", re.MULTILINE)
UNFINISHED = re.compile(
    "|".join(rf"\b{a}{b}\b" for a, b in (("TO", "DO"), ("FIX", "ME"), ("HA", "CK"), ("XX", "X")))
)
LONGEST_FILE = 450


@cache
def files(*suffixes: str) -> tuple[Path, ...]:
    """The project's own text files, caches and environments left out."""

    def walk(folder: Path) -> Iterator[Path]:
        for p in sorted(folder.iterdir()):
            hidden = p.name.startswith(".") and p.name not in (".ci", ".gitignore")
            if hidden or p.name in ("__pycache__", "build", "dist") or p.suffix == ".egg-info":
                continue
            if p.is_dir():
                yield from walk(p)
            elif not suffixes or p.suffix in suffixes:
                yield p

    return tuple(walk(ROOT))


def place(path: Path) -> str:
    """The path as the reader knows it."""
    return path.relative_to(ROOT).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    """The parsed file."""
    return ast.parse(path.read_text(), place(path))


def sources() -> list[Path]:
    """Python files of the packages."""
    return [p for p in files(".py") if p.relative_to(ROOT).parts[0] in FOLDERS]


def imported(path: Path) -> Iterator[str]:
    """Every module that the file imports, a name from a package as the package's submodule where it is one."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, f"{place(path)}:{node.lineno} imports relatively"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if (ROOT / f"{inner.replace('.', '/')}.py").exists() else node.module


def allowed() -> dict[str, set[str]]:
    """What each folder may import, from the table of ARCHITECTURE.md: what it names, and what those may."""
    rows = re.findall(r"^\| `(\w+)/` \| ([^|]+) \|", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE)
    may: dict[str, set[str]] = {}
    for folder, names in rows:
        named = {n for n in re.split(r",\s*", names.strip()) if n != "all above"}
        named |= set(may) if "all above" in names else set()
        may[folder] = {folder, *named}.union(*(may.get(n, set()) for n in named))
    return may


def test_folders_import_only_what_the_architecture_allows():
    may = allowed()
    assert tuple(may) == FOLDERS
    wrong = []
    for path in sources():
        folder = path.relative_to(ROOT).parts[0]
        for module in imported(path):
            top = module.split(".")[0]
            known = top in sys.stdlib_module_names or top in may[folder]
            if not known or folder not in ONLY_IN.get(top, {folder}):
                wrong.append(f"{place(path)} imports {module}")
    assert not wrong


def test_no_two_modules_import_each_other():
    modules = {place(p)[:-3].replace("/", ".").removesuffix(".__init__"): p for p in sources()}
    graph = {name: {m for m in imported(path) if m in modules and m != name} for name, path in modules.items()}
    TopologicalSorter(graph).prepare()


def test_imports_stand_at_the_top():
    inside = [
        f"{place(path)}:{node.lineno}"
        for path in files(".py")
        for function in ast.walk(tree(path))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert not inside


def names_and_strings(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Identifiers and string literals with their lines; docstrings may cite."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(n.body[0].value)
        for n in ast.walk(module)
        if isinstance(n, documented) and n.body and isinstance(n.body[0], ast.Expr)
    }
    for node in ast.walk(module):
        for attribute in ("id", "attr", "name", "arg"):
            if isinstance(name := getattr(node, attribute, None), str):
                yield getattr(node, "lineno", 0), name
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


def test_no_operator_is_named_below_the_tensor_level():
    found = []
    for path in files(".py", ".h", ".egg"):
        folder = path.relative_to(ROOT).parts[0]
        if folder not in ("ir", "egraph", "extract", "codegen") or (
            folder == "ir" and path.name.startswith("tensor")
        ):
            continue
        if path.suffix == ".py":
            words = names_and_strings(tree(path))
        else:
            words = enumerate(path.read_text().splitlines(), 1)
        found += [f"{place(path)}:{line} {word[:60]}" for line, word in words if OPERATOR.search(word)]
    assert not found


def test_the_operator_pattern_finds_names_and_spares_others():
    assert all(map(OPERATOR.search, ("online_softmax", "RMSNorm", "moe_gather", "LogSumExp", "fused_attention")))
    assert not any(map(OPERATOR.search, ("property", "remoed", "normal", "maximum", "streamed_fold")))


@pytest.mark.parametrize("pattern", [MACHINE_PATH, UNFINISHED], ids=["machine path", "unfinished"])
def test_text_holds_nothing_of_one_machine_and_nothing_unfinished(pattern: re.Pattern[str]):
    wrong = []
    for path in files():
        if path.name != "LICENSE":
            text = path.read_text()
            wrong += [f"{place(path)}:{text.count(chr(10), 0, m.end()) + 1}" for m in pattern.finditer(text)]
    assert not wrong


def test_no_file_is_long():
    long = {place(p): n for p in files(".py") if (n := len(p.read_text().splitlines())) > LONGEST_FILE}
    assert not long


def test_every_module_says_its_idea():
    assert not [place(p) for p in files(".py") if p.stat().st_size and not ast.get_docstring(tree(p))]


@pytest.mark.parametrize("arguments", ["ruff check .", "ruff format --check .", "mypy"])
def test_the_code_is_clean(arguments: str):
    command = [sys.executable, "-m", *arguments.split()]
    if subprocess.run([*command[:3], "--version"], capture_output=True).returncode:
        pytest.skip(f"{arguments.split()[0]} is not installed: pip install -e '.[dev]'")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def project() -> dict[str, object]:
    """The [project] table."""
    table: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return table


def commands(path: str) -> set[str]:
    """The subcommands of a typer program: what `@app.command` names, or else its function."""
    return {
        ast.literal_eval(call.args[0]) if call.args else function.name
        for function in tree(ROOT / path).body
        if isinstance(function, ast.FunctionDef)
        for call in function.decorator_list
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "command"
    }


def test_the_readme_names_commands_that_exist():
    text = (ROOT / "README.md").read_text()
    assert project()["scripts"] == {"eggtile": "eggtile.cli:main"}
    named = set(re.findall(r"^(?:\S*/)?eggtile (\w+)|`eggtile (\w+)`", text, re.MULTILINE))
    assert named
    known = set[str]().union(*(commands(place(p)) for p in (ROOT / "eggtile").glob("cli*.py")))
    known |= set(re.findall(r"app\.command\(\)\((\w+)\)", (ROOT / "eggtile" / "cli.py").read_text()))
    assert {a or b for a, b in named} - known == set()
    assert set(re.findall(r"-m bench (\w+)", text)) - commands("bench/__main__.py") == set()
    links = re.findall(r"\]\(([\w./]+)\)", text)
    assert links
    assert not [link for link in links if not (ROOT / link).exists()]


def test_every_dependency_is_pinned():
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines())
    extras = project()["optional-dependencies"]
    assert isinstance(extras, dict)
    wanted = [*project()["dependencies"], *extras["dev"], *extras["plots"]]  # type: ignore[misc]
    assert not [w for w in wanted if re.split(r"[<>=]", w)[0] not in pins]
