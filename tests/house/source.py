"""Parses a checkout: modules, classes, functions, imports and tests."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PACKAGE = "leaseway"
NOT_PRODUCTION = {"testing", "simulation", "demo", "bench"}
"""Top-level packages that no production process needs."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    path: Path
    name: str
    """Dotted, for example `leaseway.domain.job`."""
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def is_production(self) -> bool:
        parts = self.name.split(".")
        return len(parts) < 2 or parts[1] not in NOT_PRODUCTION

    def top_level_functions(self) -> Iterator[Function]:
        return (node for node in self.tree.body if isinstance(node, Function))

    def functions(self) -> Iterator[Function]:
        return (node for node in ast.walk(self.tree) if isinstance(node, Function))

    def classes(self) -> Iterator[ast.ClassDef]:
        return (node for node in self.tree.body if isinstance(node, ast.ClassDef))

    def imported(self) -> Iterator[str]:
        """Dotted names that may be modules: for `from a import b`, both `a.b` and `a`."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = self._absolute(node)
                yield from (f"{base}.{alias.name}" for alias in node.names)

    def _absolute(self, node: ast.ImportFrom) -> str:
        if node.level == 0:
            return node.module or ""
        parts = self.name.split(".")
        above = node.level - (1 if self.is_package else 0)
        base = parts[: len(parts) - above]
        return ".".join([*base, *([node.module] if node.module else [])])


@dataclass(frozen=True)
class Checkout:
    root: Path

    @cached_property
    def modules(self) -> list[Module]:
        """Every Python file in `src`."""
        return [read_module(path, self.root / "src") for path in sorted((self.root / "src").rglob("*.py"))]

    @cached_property
    def production(self) -> list[Module]:
        return [module for module in self.modules if module.is_production]

    @cached_property
    def test_modules(self) -> list[Module]:
        """The project's tests, and the contract suites that the package contains."""
        paths = [*(self.root / "tests").rglob("*.py"), *(self.root / "src" / PACKAGE / "testing").rglob("*.py")]
        return [read_module(path, self.root) for path in sorted(paths)]

    @cached_property
    def importers(self) -> dict[str, set[str]]:
        """Module name → names of the modules in `src` that import it."""
        known = {module.name for module in self.modules}
        found: dict[str, set[str]] = defaultdict(set)
        for module in self.modules:
            for name in module.imported():
                target = name if name in known else name.rpartition(".")[0]
                if target in known and target != module.name:
                    found[target].add(module.name)
        return found

    def relative(self, path: Path) -> str:
        return str(path.relative_to(self.root))


def read_module(path: Path, root: Path) -> Module:
    parts = path.relative_to(root).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    text = path.read_text("utf-8")
    return Module(path, name, text, ast.parse(text))


def body_lines(function: Function) -> int:
    first = function.body[0].lineno
    return (function.end_lineno or first) - first + 1


def base_names(node: ast.ClassDef) -> list[str]:
    """The last word of each base: `Protocol` for `typing.Protocol[T]`."""
    plain = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
    return [ast.unparse(base).rpartition(".")[2] for base in plain]


def own_methods(node: ast.ClassDef) -> set[str]:
    return {child.name for child in node.body if isinstance(child, Function)}


def tests_in(module: Module) -> Iterator[Function]:
    return (function for function in module.functions() if function.name.startswith("test_"))
