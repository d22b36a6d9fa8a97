"""What happens to bad nodes: nothing, the end, a new job without them, or a smaller run."""

import shlex
from enum import StrEnum

from gipfel_cluster.model import Frozen
from gipfel_cluster.scheduler.hostlist import fold_hostlist

from ..report import VettingReport


class Action(StrEnum):
    """What to do with nodes that are not vetted."""

    REPORT = "report"
    ABORT = "abort"
    EXCLUDE = "exclude"
    SHRINK = "shrink"


class Decision(Frozen):
    """How a run ends.

    Parameters
    ----------
    status
        0 where every node that remains is vetted, and enough remain; else 1.
    outcome
        One sentence.
    resubmit
        Whether the job is to be submitted again without its bad nodes.
    """

    status: int
    outcome: str
    resubmit: bool = False


def decide(report: VettingReport, action: Action, min_nodes: int | None) -> Decision:
    """What an action makes of a report; `min_nodes` is how many vetted nodes must remain, None for all."""
    good, total = len(report.good_nodes), len(report.nodes)
    least = total if min_nodes is None else min_nodes
    if not report.complete:
        return Decision(status=1, outcome="The run was not completed: no node counts as vetted by it.")
    if report.vetted and good >= least:
        return Decision(
            status=0, outcome=f"All {total} nodes are vetted." if total > 1 else "The node is vetted."
        )
    if action in {Action.REPORT, Action.ABORT}:
        what = " The run is given up." if action is Action.ABORT else ""
        return Decision(status=1, outcome=f"{good} of {total} nodes are vetted, {least} must be.{what}")
    enough = good >= max(1, least)
    if enough:
        options = shlex.join((f"--nodes={good}", f"--nodelist={fold_hostlist(report.good_nodes)}"))
        return Decision(
            status=0,
            outcome=f"{good} of {total} nodes remain; start the next step with: srun {options}",
        )
    few = f"{good} of {total} nodes are vetted, {least} are needed."
    if action is Action.SHRINK:
        hint = "" if min_nodes is not None else " --min-nodes says how many are enough."
        return Decision(status=1, outcome=f"{few}{hint}")
    why = "" if report.exclude else " No fault is a node's own: another job would end like this."
    return Decision(status=1, outcome=f"{few}{why}", resubmit=bool(report.exclude))
