"""Which nodes have failed, whatever others did."""

from ..model import Severity
from .board import Board


def failed_alone(board: Board) -> frozenset[str]:
    """The nodes with a verdict of their own that does not vet them."""
    entries = {entry.name: entry for entry in board.protocol.checks}
    return frozenset(
        each.node
        for each in board.results
        if each.node
        and each.applies
        and each.severity is Severity.ERROR
        and not (each.check in entries and entries[each.check].vets(each.verdict))
    )
