"""History of vetting runs: one per cluster, robust to invalid files; it can fail nodes, never pass them."""

import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from vetting_records import HOUR, NOW, entries, record, result

from gipfel_cluster.model import GipfelError
from gipfel_extension.vetting.history.queries import (
    Exclusion,
    Exclusions,
    compute_baselines,
    decide_borderline,
    recently_vetted,
)
from gipfel_extension.vetting.history.store import History, HistoryContent, VettingRecord, history_root
from gipfel_extension.vetting.model import CheckResult, Owner, Verdict
from gipfel_extension.vetting.report import VettingReport
from gipfel_extension.vetting.run.actions import store_report


class TestStore:
    def test_a_run_comes_back_for_its_own_cluster_only(self, tmp_path: Path) -> None:
        history = History(tmp_path, "alps")
        kept = record(
            result(measurement=812.5, unit="TFLOP/s", evidence={"model": "GH200", "xids": [79, 48]})
        )
        history.store(kept)
        assert history.read() == HistoryContent((kept,))
        assert (kept.entries[0].gpu_model, kept.entries[0].codes) == ("GH200", (48, 79))
        assert History(tmp_path, "bristen").read() == HistoryContent()
        # A file that was copied over is not believed either.
        (name,) = (tmp_path / "alps/runs").glob("*.json")
        (tmp_path / "bristen/runs").mkdir(parents=True)
        (tmp_path / "bristen/runs/x.json").write_bytes(name.read_bytes())
        assert History(tmp_path, "bristen").read().records == ()

    def test_others_can_neither_enter_nor_read(self, tmp_path: Path) -> None:
        root = tmp_path / "deep" / "history"
        History(root, "alps").store(record(result()))
        assert stat.S_IMODE((root / "alps" / "runs").stat().st_mode) == 0o700
        files = [path for path in root.rglob("*") if path.is_file()]
        assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}

    def test_what_is_too_old_or_of_the_future_does_not_count_and_is_forgotten(self, tmp_path: Path) -> None:
        history = History(tmp_path, "alps", time_to_live_s=24 * 3600)
        for ago in (23, 25, -48):
            history.store(record(result(), ago=ago), now_ns=NOW - 30 * HOUR)
        assert [each.ended_ns for each in history.read(now_ns=NOW).records] == [NOW - 23 * HOUR]
        history.store(record(result(), ago=1), now_ns=NOW)
        assert len(list((tmp_path / "alps/runs").glob("*.json"))) == 3

    def test_a_file_that_is_torn_foreign_or_huge_is_named_and_set_aside(self, tmp_path: Path) -> None:
        history = History(tmp_path, "alps")
        history.store(record(result()))
        runs = tmp_path / "alps/runs"
        whole = next(runs.glob("*.json")).read_bytes()
        for name, content in (
            ("1-torn", whole[: len(whole) // 2]),
            ("2-empty", b""),
            ("3-zeros", b"\x00" * 100),
            ("4-list", b"[1, 2]"),
            ("5-newer", whole.replace(b'"version":1', b'"version":2')),
            ("6-deep", b"[" * 100_000),
        ):
            (runs / f"{name}.json").write_bytes(content)
        with (runs / "7-huge.json").open("wb") as huge:
            huge.truncate(65 << 20)
        content = history.read()
        assert len(content.records) == 1
        assert len(content.problems) == 7
        assert all("renamed to" in words and "\n" not in words for words in content.problems)
        assert len(list(runs.glob("*.corrupt"))) == 7
        assert history.read().problems == ()

    def test_writers_side_by_side_lose_nothing(self, tmp_path: Path) -> None:
        program = (
            "import sys, time; from pathlib import Path\n"
            "from gipfel_extension.vetting.history.queries import Exclusion, Exclusions\n"
            "from gipfel_extension.vetting.history.store import History, VettingRecord\n"
            "h = History(Path(sys.argv[1]), 'alps')\n"
            "e = Exclusions(h.folder)\n"
            "for i in range(10):\n"
            "    n = time.time_ns()\n"
            "    r = VettingRecord(cluster='alps', protocol='p', job=sys.argv[2], started_ns=n, ended_ns=n)\n"
            "    h.store(r)\n"
            "    name = f'n{sys.argv[2]}-{i}'\n"
            "    e.update([Exclusion(node=name, reason='r', since_ns=n, until_ns=n + 10**13)])\n"
        )
        writers = [
            subprocess.Popen([sys.executable, "-c", program, str(tmp_path), str(job)]) for job in range(3)
        ]
        assert [each.wait(120) for each in writers] == [0, 0, 0]
        content = History(tmp_path, "alps").read()
        assert (len(content.records), content.problems) == (30, ())
        assert len(Exclusions(tmp_path / "alps").read()[0]) == 30

    @pytest.mark.parametrize("name", ["", "..", "a/b", "a\nb", ".hidden"])
    def test_a_cluster_cannot_lead_elsewhere(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(GipfelError, match="can't name a cluster"):
            History(tmp_path, name)

    def test_a_folder_that_cannot_be_written_is_said_in_one_line(self, tmp_path: Path) -> None:
        (tmp_path / "alps").write_text("a file")
        with pytest.raises(GipfelError, match="GIPFEL_VETTING_HISTORY"):
            History(tmp_path, "alps").store(record(result()))

    def test_the_place_follows_the_environment(self) -> None:
        assert history_root({"HOME": "/home/ada"}) == Path("/home/ada/.gipfel/vetting")
        assert history_root({"HOME": "/home/ada", "GIPFEL_VETTING_HISTORY": "/x"}) == Path("/x")


class TestBorderline:
    def test_history_accuses_and_never_acquits(self) -> None:
        bad, good = Verdict.FAIL, Verdict.PASS
        for now in (Verdict.DEGRADED, Verdict.INCONCLUSIVE):
            settled = decide_borderline(result(verdict=now), entries(good, bad, Verdict.DEGRADED))
            assert settled.verdict is Verdict.FAIL
            assert "bad in 2 of its last 3 runs" in settled.reason
            assert decide_borderline(result(verdict=now), entries(good, good, bad)).verdict is now
            assert decide_borderline(result(verdict=now), ()).verdict is now
        for sure in (Verdict.PASS, Verdict.FAIL, Verdict.NOT_RUN):
            same = result(verdict=sure)
            assert decide_borderline(same, entries(bad, bad, bad)) is same

    def test_a_verdict_of_history_is_no_evidence_for_the_next_one(self) -> None:
        bad = entries(Verdict.FAIL, Verdict.FAIL)
        settled = decide_borderline(result(verdict=Verdict.INCONCLUSIVE), bad)
        assert settled.verdict is Verdict.FAIL
        assert record(settled).entries[0].verdict is Verdict.INCONCLUSIVE

    def test_only_the_last_five_count_and_silence_is_no_verdict(self) -> None:
        bad, good, silent = Verdict.FAIL, Verdict.PASS, Verdict.NOT_RUN
        now = result(verdict=Verdict.DEGRADED)
        assert decide_borderline(now, entries(bad, bad, good, good, silent, good, good, bad)) is now
        settled = decide_borderline(now, entries(bad, good, good, silent, good, bad))
        assert "bad in 2 of its last 5 runs" in settled.reason


class TestBaselines:
    def test_each_node_counts_once_and_only_what_passed(self) -> None:
        gh200 = {"model": "GH200"}
        often = [result("n1", measurement=500.0, evidence=gh200)] * 9
        rest = [result(f"n{i}", measurement=rate, evidence=gh200) for i, rate in ((2, 800.0), (3, 820.0))]
        out = [
            result("n4", Verdict.FAIL, measurement=1.0),
            result("n5", measurement=None),
            result("n6", measurement=float("nan")),
        ]
        kept = record(*often, *rest, *out)
        (baseline,) = compute_baselines(kept.entries)
        assert (baseline.gpu_model, baseline.median, baseline.nodes, baseline.samples) == (
            "GH200",
            800.0,
            3,
            11,
        )
        assert baseline.spread == 20.0
        assert compute_baselines(kept.entries, min_nodes=4) == ()


class TestSkipping:
    def skipped(self, *records: VettingRecord, **more: Any) -> set[str]:
        given = {"protocol": "quick", "within_s": 3600.0, "now_ns": NOW} | more
        return set(recently_vetted(HistoryContent(records), ["n1", "n2"], **given))

    def test_a_fresh_pass_of_the_same_protocol_is_enough(self) -> None:
        assert self.skipped(record(result("n1"), result("n2"), ago=0.5)) == {"n1", "n2"}
        assert self.skipped(record(result("n1"), ago=1.5)) == set()
        assert self.skipped(record(result("n1"), ago=0.5), protocol="standard") == set()

    def test_a_run_that_was_cut_short_or_a_later_bad_word_takes_it_back(self) -> None:
        good = record(result("n1"), ago=0.5)
        assert self.skipped(record(result("n1"), ago=0.5, complete=False)) == set()
        assert (
            self.skipped(good, record(result("n1", Verdict.INCONCLUSIVE), ago=0.4, protocol="other")) == set()
        )
        assert self.skipped(good, record(result("n1", Verdict.FAIL), ago=0.6)) == {"n1"}

    def test_a_protocol_of_the_same_name_that_demanded_less_is_another_one(self) -> None:
        good = record(result("n1"), ago=0.5, digest="one")
        assert self.skipped(good, digest="one") == {"n1"}
        assert self.skipped(good, digest="other") == set()
        assert self.skipped(record(result("n1"), ago=0.5), digest="one") == set()

    def test_a_pass_of_the_future_is_none(self) -> None:
        assert self.skipped(record(result("n1"), ago=-0.5)) == set()

    def test_an_excluded_node_is_never_skipped(self) -> None:
        barred = Exclusion(node="n1", reason="slow", since_ns=0, until_ns=NOW + HOUR)
        assert self.skipped(record(result("n1"), ago=0.5), excluded=[barred]) == set()


class TestExclusions:
    def test_they_are_scoped_have_a_reason_and_expire(self, tmp_path: Path) -> None:
        exclusions = Exclusions(tmp_path / "alps")
        one = Exclusion(node="n1", check="nccl", reason="slow link", since_ns=NOW, until_ns=NOW + HOUR)
        every = Exclusion(node="n1", reason="XID 79", since_ns=NOW, until_ns=NOW + 2 * HOUR)
        assert exclusions.update([one, every], now_ns=NOW) == (every, one)
        assert exclusions.read(now_ns=NOW + HOUR)[0] == (every,)
        assert exclusions.update((), removed={("n1", "nccl")}, now_ns=NOW) == (every,)

    def test_a_torn_list_is_set_aside_and_excludes_nothing(self, tmp_path: Path) -> None:
        exclusions = Exclusions(tmp_path)
        exclusions.path.write_text('{"version": 1, "exclusions": [{"no')
        kept, problem = exclusions.read()
        assert kept == ()
        assert "renamed to exclusions.corrupt" in problem
        assert exclusions.read() == ((), "")


def test_a_report_is_remembered_and_what_failed_is_excluded_until_it_passes(tmp_path: Path) -> None:
    environment = {"GIPFEL_VETTING_HISTORY": str(tmp_path)}

    def finish(*results: CheckResult, exclude: str) -> tuple[str, ...]:
        now = time.time_ns()
        report = VettingReport(
            protocol="quick", cluster="alps", job="7", started_ns=now, ended_ns=now, complete=True,
            results=results, good_nodes=("n2",), exclude=exclude,
        )  # fmt: skip
        return store_report(report, environment)

    slow = result("n1", Verdict.FAIL, reason="Slow.", started_ns=1, owner=Owner.NODE)
    of_image = result("n1", Verdict.FAIL, check="environment", owner=Owner.IMAGE)
    assert finish(slow, of_image, result("n2"), result("n3", Verdict.FAIL), exclude="n[1]") == ()
    exclusions = Exclusions(tmp_path / "alps")
    ((kept,), _) = exclusions.read()
    assert (kept.node, kept.check, kept.reason) == ("n1", "matmul", "Slow.")
    assert 23 * HOUR < kept.until_ns - time.time_ns() <= 24 * HOUR
    assert set(
        recently_vetted(History(tmp_path, "alps").read(), ["n1", "n2"], protocol="quick", within_s=60)
    ) == {"n2"}
    finish(result("n1"), exclude="")
    assert exclusions.read() == ((), "")
    # A folder that can't be written is a note, and sharing continues.
    (tmp_path / "file").write_text("")
    environment["GIPFEL_VETTING_HISTORY"] = str(tmp_path / "file")
    environment["GIPFEL_SHARE_VETTING"] = "yes"
    notes = finish(slow, exclude="n1")
    assert len(notes) == 2
    assert "can't be written" in notes[0]
    assert "no registry" in notes[1]


def test_what_another_user_wrote_does_not_count(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("Only root can give a file away.")
    history = History(tmp_path, "alps")
    history.store(record(result("n1")))
    (path,) = (tmp_path / "alps" / "runs").glob("*.json")
    os.chown(path, 12345, -1)
    content = history.read()
    assert content.records == ()
    assert "another user" in content.problems[0]
