"""What earlier runs of this user say, as far as a run asks: baselines, and how fit a node was of late."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence

from gipfel_cluster.model import GipfelError

from ..history.baselines import Baseline, baselines_of
from ..history.borderline import settle_borderline
from ..history.entry import HistoryEntry
from ..history.exclusions import Exclusion, Exclusions
from ..history.site_baselines import site_baselines
from ..history.skip import recently_vetted
from ..history.store import History, HistoryContent, history_root
from ..model import CheckResult, Owner, Severity, Verdict
from ..one_check import is_group
from ..owner import with_owners
from ..protocol import ProtocolCheck, VettingProtocol

_LAST = 5


class Past:
    """The history of a cluster; an empty one where there is none or it can't be read."""

    def __init__(
        self,
        content: HistoryContent | None = None,
        excluded: Sequence[Exclusion] = (),
        ask: Callable[[Collection[str]], Sequence[Baseline]] = lambda _: (),
    ) -> None:
        self._ask, self._asked = ask, set[str]()
        self._site: list[Baseline] = []
        self._content = content or HistoryContent()
        self._excluded = excluded
        self.problems = self._content.problems
        entries = [each for record in self._content.records for each in record.entries]
        self._of: dict[tuple[str, str], list[HistoryEntry]] = defaultdict(list)
        self._baselines = baselines_of(entries)
        for entry in entries:
            self._of[entry.node, entry.check].append(entry)

    @classmethod
    def of(cls, cluster: str, environment: Mapping[str, str]) -> "Past":
        """What is remembered of a cluster."""
        try:
            history = History(history_root(environment), cluster)
            content, (excluded, wrong) = history.read(), Exclusions(history.folder).read()
        except (GipfelError, OSError) as error:
            problem = f"The history of earlier runs can't be read: {error}"
            return cls(HistoryContent(problems=(problem,)))
        problems = (*content.problems, *filter(None, [wrong]))

        def ask(models: Collection[str]) -> Sequence[Baseline]:
            return site_baselines(cluster, models, environment=environment)

        return cls(HistoryContent(content.records, problems), excluded, ask)

    def vetted(self, protocol: VettingProtocol, nodes: Sequence[str], within_s: float) -> dict[str, int]:
        """The nodes that were vetted by this protocol so lately, with when (UTC, ns).

        A protocol of the same name that demanded something else does not count.
        """
        found = recently_vetted(
            self._content,
            nodes,
            protocol=protocol.name,
            digest=protocol.digest,
            within_s=within_s,
            excluded=self._excluded,
        )
        deciding = [
            each for each in protocol.runnable if each.severity is Severity.ERROR and not is_group(each)
        ]
        return {
            node: when
            for node, when in found.items()
            if all(self.fit(node, each.name)[-1:] == (True,) for each in deciding)
        }

    def baselines(self, models: Collection[str] = (), *, check: str) -> dict[tuple[str, str], float]:
        """Check type and GPU model to the usual figure of a check.

        The user's own of the same name, as checks of one type may measure different things; else the site's
        for these models.
        """
        # Whoever does not answer is not asked again.
        if new := set(models) - self._asked:
            self._asked |= new
            self._site += self._ask(new)
        found = (each for each in (*self._site, *self._baselines) if each.check == check)
        return {(each.type, each.gpu_model): each.median for each in found}

    def usual(self, entry: ProtocolCheck) -> float | None:
        """What a check usually measures, on what was measured on most nodes; None where it never was."""
        found = [each for each in self._baselines if (each.check, each.type) == (entry.name, entry.type)]
        return max(found, key=lambda each: each.nodes).median if found else None

    def fit(self, node: str, check: str) -> tuple[bool, ...]:
        """Whether a node was fit by a check in its last runs, newest last."""
        telling = [
            each
            for each in self._of.get((node, check), ())
            if each.verdict not in {Verdict.NOT_RUN, Verdict.INCONCLUSIVE}
        ]
        return tuple(each.verdict is Verdict.PASS for each in telling[-_LAST:])

    def settle(self, results: Sequence[CheckResult]) -> list[CheckResult]:
        """Borderline verdicts, decided by how often the node was bad of late."""
        settled = []
        for each, owned in zip(results, with_owners(results), strict=True):
            # What is wrong with all nodes, or with the image, does not become a node's own by repetition.
            own = owned.owner in {Owner.NODE, Owner.LINK}
            earlier = self._of.get((each.node, each.check), ()) if own else ()
            settled.append(settle_borderline(each, earlier))
        return settled
