"""Check that no two directories of a package import each other."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "gipfel_cluster": ROOT / "spawner",
    "gipfel_spawner": ROOT / "spawner",
    "gipfel_extension": ROOT / "extension",
    "gipfel_widgets": ROOT / "widgets",
}
#: Stands for the modules of a directory itself, beside its subdirectories. Its ``__init__`` is its façade
#: and belongs to no side.
OWN = "."

Graph = dict[str, set[str]]


def modules(package: str, base: Path) -> dict[str, Path]:
    """Return the file of each module of a package by its dotted name."""
    found = {}
    for path in sorted((base / package).rglob("*.py")):
        parts = path.relative_to(base).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _nodes(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield what a module imports when it runs; annotations' imports are not among it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        yield from _nodes(node)


def _imported(name: str, path: Path, known: dict[str, Path]) -> Iterator[str]:
    directory = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in _nodes(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
            continue
        base = node.module or ""
        if node.level:
            above = directory.split(".")[: len(directory.split(".")) - node.level + 1]
            base = ".".join([*above, *([node.module] if node.module else [])])
        for alias in node.names:
            whole = f"{base}.{alias.name}"
            yield from (each for each in (whole if whole in known else base,) if each in known)


def levels(known: dict[str, Path]) -> dict[str, Graph]:
    """Return, for each directory, which of its children imports which."""
    graphs: dict[str, Graph] = defaultdict(lambda: defaultdict(set))
    for name, path in known.items():
        for other in _imported(name, path, known):
            mine, theirs = name.split("."), other.split(".")
            shared = 0
            while shared < min(len(mine), len(theirs)) and mine[shared] == theirs[shared]:
                shared += 1
            children = [_child(parts, shared, known) for parts in (mine, theirs)]
            if "" not in children and children[0] != children[1]:
                graphs[".".join(mine[:shared])][children[0]].add(children[1])
    return graphs


def _child(parts: list[str], depth: int, known: dict[str, Path]) -> str:
    if len(parts) == depth:
        return ""
    package = known.get(".".join(parts[: depth + 1]))
    return parts[depth] if package is not None and package.name == "__init__.py" else OWN


def circle(graph: Graph) -> list[str]:
    """Return the children that reach themselves again; empty where there is an order."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        left = [start]
        while left:
            new = graph.get(left.pop(), set()) - seen
            seen |= new
            left += new
        return seen

    return sorted(child for child in graph if child in reached(child))


@pytest.mark.parametrize("package", PACKAGES)
def test_directories_have_an_order(package: str) -> None:
    graphs = levels(modules(package, PACKAGES[package]))
    assert {directory: found for directory, graph in graphs.items() if (found := circle(graph))} == {}


def test_a_circle_is_found(tmp_path: Path) -> None:
    for path, text in {
        "house/__init__.py": "",
        "house/shared.py": "from .upper.roof import TILES",
        "house/lower/__init__.py": "",
        "house/lower/floor.py": "def late():\n    from ..upper import roof\n",
        "house/upper/__init__.py": "",
        "house/upper/roof.py": "from ..lower.floor import late\nTILES = 3\n",
        "house/upper/annotated.py": "if TYPE_CHECKING:\n    from ..shared import x\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    graphs = levels(modules("house", tmp_path))
    assert circle(graphs["house"]) == ["lower", "upper"]
    assert graphs["house"][OWN] == {"upper"}
