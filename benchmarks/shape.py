"""The shape of the package: its size, import cycles, long and tangled functions, class names with two owners.

``python benchmarks/shape.py`` compares with shape.toml and fails where a number there is exceeded; ``--list`` names
every place. Lazy and type-checking imports count as imports; generated modules (``_pb2``) count for nothing.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = "espalier"

_BRANCHES = (
    ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.comprehension, ast.Assert,
)  # fmt: skip
_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

Graph = Mapping[str, set[str]]


def sources() -> dict[str, Path]:
    """Return every module's file, by dotted name."""
    found = {}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        if "_pb2" not in path.name:
            found[".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")] = path
    return found


def code_lines(text: str, tree: ast.Module) -> int:
    """Count the lines that have more on them than blanks, comments and docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            lines.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def complexity(function: ast.AST) -> int:
    """Return McCabe's number: one, and one more for every branch."""
    found = 1
    for node in ast.walk(function):
        if isinstance(node, _BRANCHES):
            found += 1
        elif isinstance(node, ast.BoolOp):
            found += len(node.values) - 1
        elif isinstance(node, ast.Match):
            found += len(node.cases)
    return found


def imports(tree: ast.Module, known: Mapping[str, Path]) -> Iterator[str]:
    """Yield the modules of ours that a module imports, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else str(node.module)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)


def cycles(graph: Graph) -> list[list[str]]:
    """Return the groups of nodes that reach each other."""
    reached = {node: _reached(graph, node) for node in graph}
    groups = {tuple(sorted(m for m in reached[n] if n in reached.get(m, ()))) for n in graph if n in reached[n]}
    return [list(group) for group in sorted(groups) if len(group) > 1]


def _reached(graph: Graph, start: str) -> set[str]:
    found: set[str] = set()
    todo = list(graph[start])
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += graph.get(node, ())
    return found


def packages(graph: Graph) -> Graph:
    """Return who imports whom among packages; the root, which offers everybody's names, is none."""
    found: dict[str, set[str]] = defaultdict(set)
    for module, others in graph.items():
        own = ".".join(module.split(".")[:2])
        for other in {".".join(m.split(".")[:2]) for m in others} - {own, PACKAGE}:
            if own != PACKAGE:
                found[own].add(other)
    return found


def measure(function_lines: int, most_complex: int) -> tuple[int, dict[str, list[str]]]:
    """Return the lines of code, and the places of everything else."""
    known, graph, owners = sources(), defaultdict[str, set[str]](set), defaultdict[str, list[str]](list)
    code, long, tangled = 0, [], []
    for module, path in known.items():
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        code += code_lines(text, tree)
        graph[module] = set(imports(tree, known))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                where = f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
                length, branches = (node.end_lineno or 0) - node.lineno + 1, complexity(node)
                long += [f"{where} ({length} lines)"] * (length > function_lines)
                tangled += [f"{where} ({branches})"] * (branches > most_complex)
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                owners[node.name].append(module)
    return code, {
        "files": list(known),
        "package_cycles": [", ".join(c) for c in cycles(packages(graph))],
        "module_cycles": [", ".join(c) for c in cycles(graph)],
        "long_functions": long,
        "complex_functions": tangled,
        "double_names": [f"{name}: {', '.join(found)}" for name, found in sorted(owners.items()) if len(found) > 1],
    }


def main(arguments: list[str]) -> int:
    """Print the shape; return 1 if a number is exceeded."""
    allowed = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    limits = allowed.pop("limits")
    code, places = measure(limits["function_lines"], limits["complexity"])
    found = {"code": code, **{name: len(of) for name, of in places.items()}}
    print("  ".join(f"{name} {number}/{allowed[name]}" for name, number in found.items()))
    worse = [name for name, number in found.items() if number > allowed[name]]
    for name in places if "--list" in arguments else worse:
        if name != "files":
            print(f"\n{name}:", *places.get(name, []), sep="\n  ")
    if worse:
        print(f"\nMore than benchmarks/shape.toml allows: {', '.join(worse)}.", file=sys.stderr)
    return bool(worse)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
