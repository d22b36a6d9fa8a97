"""Nodes by checks, as the operator's page shows them: the latest verdict, and how often it was bad."""

from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from gipfel_cluster.model import Frozen

from ..vetting.model import Verdict
from .queries import WorstNode, iso, worst_nodes
from .schema import ResultRow

_MOST_NODES = 60
_BAD = {Verdict.FAIL, Verdict.DEGRADED}


class Cell(Frozen):
    """One check on one node: ``bad`` of ``of`` results, the newest verdict and its reason."""

    verdict: Verdict
    reason: str
    bad: int
    of: int
    when: str


class Grid(Frozen):
    """The nodes that were bad, worst first, and the checks that any of them was bad in."""

    nodes: tuple[WorstNode, ...]
    checks: tuple[str, ...]
    cells: dict[str, dict[str, Cell]]


def grid(session: Session, cluster: str, *, since_ns: int) -> Grid:
    """The grid of one cluster since then (UTC, ns)."""
    nodes = worst_nodes(session, cluster, since_ns=since_ns, limit=_MOST_NODES)
    names = [each.node for each in nodes]
    rows = session.execute(
        select(
            ResultRow.node,
            ResultRow.check,
            ResultRow.verdict,
            func.count(),
            func.max(ResultRow.received_ns),
            func.max(ResultRow.id),
        )
        .where(ResultRow.cluster == cluster, ResultRow.node.in_(names), ResultRow.received_ns > since_ns)
        .group_by(ResultRow.node, ResultRow.check, ResultRow.verdict)
    ).all()
    groups: dict[tuple[str, str], list[tuple[Verdict, int, int, int]]] = {}
    for node, check, verdict, count, last, identity in rows:
        groups.setdefault((node, check), []).append((Verdict(verdict), count, last, identity))
    # Of results that came in together, the worst is the one to show.
    newest = {key: max(said, key=lambda each: (each[2], each[0].rank)) for key, said in groups.items()}
    reasons = _reasons(session, [each[3] for each in newest.values()])
    cells: dict[str, dict[str, Cell]] = {}
    for (node, check), said in groups.items():
        verdict, _, last, identity = newest[node, check]
        bad = sum(count for found, count, *_ in said if found in _BAD)
        of = sum(count for _, count, *_ in said)
        cell = Cell(verdict=verdict, reason=reasons[identity], bad=bad, of=of, when=iso(last))
        cells.setdefault(node, {})[check] = cell
    checks = sorted({check for row in cells.values() for check, cell in row.items() if cell.bad})
    return Grid(nodes=nodes, checks=tuple(checks), cells=cells)


def _reasons(session: Session, identities: Sequence[int]) -> dict[int, str]:
    found: dict[int, str] = {}
    for start in range(0, len(identities), 500):
        piece = identities[start : start + 500]
        rows = session.execute(select(ResultRow.id, ResultRow.reason).where(ResultRow.id.in_(piece)))
        found |= {row[0]: row[1] for row in rows}
    return found
