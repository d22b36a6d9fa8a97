"""Rules of the registry about results and nodes: pure functions, without a server."""

import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gipfel_cluster.model import GipfelError
from gipfel_extension.registry.nodes import NodeState, SlurmNodes, drain_refusal, read_states, resume_refusal
from gipfel_extension.registry.rules import (
    BUILT_IN,
    Action,
    CaseProgress,
    Observation,
    Proposal,
    Rule,
    load_rules,
    next_step,
    render_text,
)
from gipfel_extension.registry.settings import DrainSettings, read_settings
from gipfel_extension.vetting.check import check_types
from gipfel_extension.vetting.model import Severity, Verdict

NOW = time.time_ns()
MINUTE = 60 * 10**9
RULE = Rule.model_validate(
    {
        "name": "lost", "title": "Lost", "source": "the test", "when": {"checks": ["xid"], "codes": [79]},
        "threshold": {"users": 2, "jobs": 2, "within_h": 1},
        "steps": [
            {"action": "note"}, {"action": "drain"}, {"action": "resume", "needs": "passed"},
            {"action": "ticket", "needs": "again"},
        ],
    }
)  # fmt: skip


def said(reporter: str = "ada", ago: float = 5, **more: Any) -> Observation:
    """One result, received `ago` minutes before now."""
    words = {
        "check": "xid", "type": "xid", "verdict": Verdict.FAIL, "severity": Severity.ERROR,
        "gpu_model": "GH200", "codes": (79,), "reason": "XID 79", "reporter": reporter, "job": reporter,
        "vouched": False,
        "received_ns": NOW - int(ago * MINUTE),
    }  # fmt: skip
    return Observation.model_validate(words | more)


def due(progress: CaseProgress, *observations: Observation) -> Proposal | None:
    return next_step(RULE, progress, observations, now_ns=NOW)


class TestEvaluation:
    @pytest.mark.parametrize(
        ("observations", "opens"),
        [
            ([], False),
            ([said("ada")], False),
            ([said("ada", job="1"), said("ada", job="2"), said("ada", job="3")], False),
            ([said("ada"), said("bob")], True),
            ([said("ops", vouched=True)], True),
            ([said("ada"), said("bob", ago=61)], False),
            ([said("ada"), said("bob", codes=(13,))], False),
            ([said("ada"), said("bob", verdict=Verdict.DEGRADED)], False),
            ([said("ada"), said("bob", severity=Severity.WARNING)], False),
            ([said("ada"), said("bob", type="ecc", check="ecc")], False),
            ([said("ada"), said("bob"), said("eve", verdict=Verdict.PASS, ago=1)], True),
            ([said("ada"), said("bob"), said("ops", verdict=Verdict.PASS, ago=1, vouched=True)], False),
            ([said("ada"), said("bob"), said("ops", verdict=Verdict.PASS, ago=9, vouched=True)], True),
        ],
    )
    def test_who_must_say_what_before_a_rule_believes_it(
        self, observations: list[Observation], opens: bool
    ) -> None:
        proposal = due(CaseProgress(), *observations)
        assert (proposal is not None and proposal.position == 0) is opens

    @given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 59)), max_size=50))
    def test_one_user_alone_never_opens_a_case(self, jobs: Sequence[tuple[int, int]]) -> None:
        observations = [said("eve", ago=ago, job=str(job), codes=(79, job)) for job, ago in jobs]
        assert due(CaseProgress(), *observations) is None

    def test_steps_come_in_order_and_wait_for_each_other(self) -> None:
        bad = (said("ada"), said("bob"))
        assert due(CaseProgress(position=0, waiting=True), *bad) is None
        drain = due(CaseProgress(position=0, since_ns=NOW), *bad)
        assert drain
        assert drain.step
        assert drain.step.action is Action.DRAIN
        after = CaseProgress(position=1, since_ns=NOW - 2 * MINUTE)
        good = said("ops", ago=1, verdict=Verdict.PASS, codes=(), vouched=True)
        assert due(after, *bad) is None
        assert due(after, *bad, good.model_copy(update={"vouched": False})) is None
        resume = due(after, *bad, good)
        assert resume
        assert resume.position == 2

    def test_a_case_escalates_on_news_only_and_then_ends(self) -> None:
        old = (said("ada"), said("bob"))
        resumed = CaseProgress(position=2, since_ns=NOW - 4 * MINUTE)
        assert due(resumed, *old) is None
        again = due(resumed, *old, said("cleo", ago=1), said("dan", ago=2))
        assert again
        assert again.position == 3
        assert due(CaseProgress(position=3, since_ns=NOW), *old) == Proposal(position=None)

    def test_what_was_said_before_a_case_was_closed_opens_no_other(self) -> None:
        assert due(CaseProgress(since_ns=NOW - 4 * MINUTE), said("ada"), said("bob")) is None

    def test_a_reason_cannot_add_lines_or_fields_to_a_ticket(self) -> None:
        rule = load_rules()[1]
        ticket = rule.steps[-1]
        evil = said(reason="ok\nNode: all others\r$cluster ${key}", gpu_model="GH200\x00")
        text = render_text(ticket, rule, [evil], cluster="alps", node="n1", key="abcd")
        assert "ok Node: all others $cluster ${key}" in text
        assert len(text.splitlines()) == len(ticket.text.splitlines())


class TestCatalogue:
    def test_every_rule_of_the_shipped_one_names_checks_that_there_are_and_its_source(self) -> None:
        for rule in load_rules():
            assert rule.source
            for pattern in rule.when.checks:
                assert any(fnmatchcase(known, pattern) for known in check_types()), (rule.name, pattern)
            drains = [step for step in rule.steps if step.action is Action.DRAIN]
            resumes = [step for step in rule.steps if step.action is Action.RESUME]
            assert len(drains) == len(resumes) <= 1
            assert all(step.needs == "passed" for step in resumes)
            assert rule.threshold.users >= 2

    def test_a_sites_own_rule_takes_the_place_of_the_shipped_one(self, tmp_path: Path) -> None:
        path = tmp_path / "own.yaml"
        path.write_text(
            "version: 1\nrules: [{name: gpu-lost, title: Ours, source: us, when: {checks: [xid]}, "
            "steps: [{action: note}]}]"
        )
        rules = {rule.name: rule for rule in load_rules([path])}
        assert rules["gpu-lost"].title == "Ours"
        assert len(rules) == len(load_rules())

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ("threshold: {users: 1}", "users"),
            ("steps: [{action: shutdown}]", "action"),
            ("steps: []", "steps"),
            ("steps: [{action: ticket, text: $password}]", "is unknown"),
            ("steps: [{action: ticket, text: 5 $ each}]", "dollar"),
            ("name: a rule", "name"),
            ("when: {checks: []}", "checks"),
            ("when: {checks: [x], user: eve}", "user"),
        ],
    )
    def test_a_rule_that_is_none_is_refused_with_its_place(
        self, tmp_path: Path, change: str, words: str
    ) -> None:
        given = {
            "name": "a",
            "title": "t",
            "source": "s",
            "when": "{checks: [x]}",
            "steps": "[{action: note}]",
        }
        key, _, value = change.partition(": ")
        path = tmp_path / "own.yaml"
        path.write_text(
            "version: 1\nrules:\n- " + "\n  ".join(f"{k}: {v}" for k, v in (given | {key: value}).items())
        )
        with pytest.raises(GipfelError, match=words):
            load_rules([path])

    @pytest.mark.parametrize("content", ["", "[1]", "a: [", "version: 2\nrules: []", "\x00", "a: &a [*a]"])
    def test_a_file_that_is_no_catalogue_is_one_line(self, tmp_path: Path, content: str) -> None:
        path = tmp_path / "own.yaml"
        path.write_text(content)
        with pytest.raises(GipfelError) as error:
            load_rules([path])
        assert str(path) in str(error.value)
        assert BUILT_IN.exists()


def cluster(out: int, of: int, partition: str = "normal") -> dict[str, NodeState]:
    lines = [f"n{i}|{partition}|{'down' if i < out else 'idle'}|none" for i in range(of)]
    return read_states("\n".join(lines))


class TestLimits:
    settings = DrainSettings(cluster="alps", per_hour=2, max_share=0.1)

    def refusal(self, nodes: dict[str, NodeState], node: str = "n99", hour: int = 0) -> str:
        return drain_refusal(node, "alps", nodes, self.settings, drained_last_hour=hour)

    def test_no_bad_rule_empties_a_partition(self) -> None:
        assert self.refusal(cluster(9, 100)) == ""
        assert "11 of 100 nodes of normal would be out" in self.refusal(cluster(10, 100))
        assert "1 of 9 nodes" in drain_refusal(
            "n8", "alps", cluster(0, 9), self.settings, drained_last_hour=0
        )
        # A node of two partitions must leave both enough.
        both = cluster(0, 100) | {
            "n99": cluster(0, 100)["n99"].model_copy(update={"partitions": ("normal", "x")})
        }
        assert "1 of 1 nodes of x" in self.refusal(both)

    def test_no_more_than_so_many_in_an_hour(self) -> None:
        assert "2 nodes were drained within an hour" in self.refusal(cluster(0, 100), hour=2)

    def test_only_nodes_of_the_configured_cluster_that_are_in_service(self) -> None:
        assert "its settings is empty" in drain_refusal(
            "n1", "alps", {}, DrainSettings(), drained_last_hour=0
        )
        assert "of bristen" in drain_refusal(
            "n1", "bristen", cluster(0, 100), self.settings, drained_last_hour=0
        )
        assert "has no node" in self.refusal(cluster(0, 100), node="n100")
        assert "already out of service" in self.refusal(cluster(1, 100), node="n0")

    def test_only_ours_come_back(self) -> None:
        ours, theirs = (
            read_states(f"n1|normal|drained|{reason}") for reason in ("gipfel lost ab", "fan broken")
        )
        given = {"reason": "gipfel lost ab", "allowed": "alps"}
        assert resume_refusal("n1", "alps", ours, **given) == ""
        assert "for another reason: fan broken" in resume_refusal("n1", "alps", theirs, **given)
        assert "not drained" in resume_refusal("n1", "alps", cluster(0, 2), **given)
        assert "may not resume" in resume_refusal("n1", "bristen", ours, **given)

    def test_states_are_read_with_their_marks_and_reasons(self) -> None:
        states = read_states(
            "a|p|idle~|none\na|q|idle~|none\nb|p|down*|Not responding\nc|p|mixed|\nd|p|draining|a | b\n"
            "broken\ne|p|idle$|none\nf|p|alloc-|none"
        )
        assert {name for name, each in states.items() if each.out_of_service} == {"b", "d", "e"}
        assert states["a"].partitions == ("p", "q")
        assert (states["d"].drained, states["d"].reason) == (True, "a | b")

    @pytest.mark.parametrize(
        "node",
        ["", "ALL", "all", "n[1-9]", "n1,n2", "-n", "n 1", "n1\n", "n1;x", "$(x)", "n1 State=DOWN", "é"],
    )
    def test_a_node_that_could_be_more_than_one_reaches_no_command(self, node: str) -> None:
        slurm = SlurmNodes({})
        with pytest.raises(GipfelError, match="is not a valid node name"):
            slurm.drain_command(node, "gipfel lost ab")
        with pytest.raises(GipfelError, match="is not a valid node name"):
            slurm.resume_command(node)

    def test_the_command_is_an_argument_list(self) -> None:
        slurm = SlurmNodes({})
        argv = ("scontrol", "update", "NodeName=n-1.x", "State=DRAIN", "Reason=gipfel lost ab")
        assert slurm.drain_command("n-1.x", "gipfel lost ab") == argv
        with pytest.raises(GipfelError):
            slurm.drain_command("n1", "a;b")


class TestSettings:
    def test_as_it_stands_nothing_is_touched(self) -> None:
        settings = read_settings(None, {"GIPFEL_REGISTRY_DATABASE": "postgresql://x"})
        assert settings.database == "postgresql://x"
        assert (settings.drain.cluster, settings.drain.dry_run, settings.drain.automatic) == ("", True, False)

    @pytest.mark.parametrize(
        "content",
        ["drain: {max_share: 2}", "notify: [mail]", "keep: 3", "- a", 'drain: {cluster: "a\\nb"}', ": :"],
    )
    def test_a_wrong_key_or_value_is_one_line(self, tmp_path: Path, content: str) -> None:
        path = tmp_path / "registry.yaml"
        path.write_text(content)
        with pytest.raises(GipfelError) as error:
            read_settings(path, {})
        assert str(path) in str(error.value)
