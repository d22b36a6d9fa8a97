"""What is remembered of vetting runs: by cluster, readable whatever lies there, and only ever accusing."""

import json
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gipfel_cluster.model import GipfelError
from gipfel_extension.vetting.history import (
    Exclusion,
    Exclusions,
    History,
    HistoryContent,
    HistoryEntry,
    VettingRecord,
    baselines_of,
    consents,
    history_root,
    keep_report,
    recent_bad,
    recently_vetted,
    record_of,
    set_consent,
    settle_borderline,
    share_record,
)
from gipfel_extension.vetting.history.site_baselines import site_baselines
from gipfel_extension.vetting.model import CheckResult, Scope, Verdict
from gipfel_extension.vetting.report import VettingReport

NOW = time.time_ns()
HOUR = 3600 * 10**9


def result(node: str = "n1", verdict: Verdict = Verdict.PASS, **more: Any) -> CheckResult:
    given = {
        "check": "matmul",
        "type": "matmul",
        "scope": Scope.GPU,
        "subject": "GPU-1",
        "reason": "It is so.",
    }
    return CheckResult.model_validate(given | {"node": node, "verdict": verdict} | more)


def record(*results: CheckResult, ago: float = 1.0, **more: Any) -> VettingRecord:
    """A run that ended `ago` hours before now."""
    ended = NOW - int(ago * HOUR)
    given = {
        "cluster": "alps", "job": "7", "protocol": "quick", "started_ns": ended - 1000, "ended_ns": ended,
        "complete": True, "vetted": [each.node for each in results if each.verdict is Verdict.PASS],
    }  # fmt: skip
    return record_of(results, **(given | more))


def entries(*verdicts: Verdict) -> tuple[HistoryEntry, ...]:
    return record(*(result(verdict=each) for each in verdicts)).entries


class TestStore:
    def test_a_run_comes_back_for_its_own_cluster_only(self, tmp_path: Path) -> None:
        history = History(tmp_path, "alps")
        kept = record(result(figure=812.5, unit="TFLOP/s", evidence={"model": "GH200", "xids": [79, 48]}))
        history.remember(kept)
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
        History(root, "alps").remember(record(result()))
        assert stat.S_IMODE((root / "alps" / "runs").stat().st_mode) == 0o700
        files = [path for path in root.rglob("*") if path.is_file()]
        assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}

    def test_what_is_too_old_or_of_the_future_does_not_count_and_is_forgotten(self, tmp_path: Path) -> None:
        history = History(tmp_path, "alps", time_to_live_s=24 * 3600)
        for ago in (23, 25, -48):
            history.remember(record(result(), ago=ago), now_ns=NOW - 30 * HOUR)
        assert [each.ended_ns for each in history.read(now_ns=NOW).records] == [NOW - 23 * HOUR]
        history.remember(record(result(), ago=1), now_ns=NOW)
        assert len(list((tmp_path / "alps/runs").glob("*.json"))) == 3

    def test_a_file_that_is_torn_foreign_or_huge_is_named_and_set_aside(self, tmp_path: Path) -> None:
        history = History(tmp_path, "alps")
        history.remember(record(result()))
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
        assert all("set aside" in words and "\n" not in words for words in content.problems)
        assert len(list(runs.glob("*.corrupt"))) == 7
        assert history.read().problems == ()

    def test_writers_side_by_side_lose_nothing(self, tmp_path: Path) -> None:
        program = (
            "import sys, time; from pathlib import Path\n"
            "from gipfel_extension.vetting.history import *\n"
            "h = History(Path(sys.argv[1]), 'alps')\n"
            "e = Exclusions(h.folder)\n"
            "for i in range(10):\n"
            "    n = time.time_ns()\n"
            "    r = VettingRecord(cluster='alps', protocol='p', job=sys.argv[2], started_ns=n, ended_ns=n)\n"
            "    h.remember(r)\n"
            "    name = f'n{sys.argv[2]}-{i}'\n"
            "    e.add([Exclusion(node=name, reason='r', since_ns=n, until_ns=n + 10**13)])\n"
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
            History(tmp_path, "alps").remember(record(result()))

    def test_the_place_follows_the_environment(self) -> None:
        assert history_root({"HOME": "/home/ada"}) == Path("/home/ada/.gipfel/vetting")
        assert history_root({"HOME": "/home/ada", "GIPFEL_VETTING_HISTORY": "/x"}) == Path("/x")


class TestBorderline:
    def test_history_accuses_and_never_acquits(self) -> None:
        bad, good = Verdict.FAIL, Verdict.PASS
        for now in (Verdict.DEGRADED, Verdict.INCONCLUSIVE):
            settled = settle_borderline(result(verdict=now), entries(good, bad, Verdict.DEGRADED), k=2, n=5)
            assert settled.verdict is Verdict.FAIL
            assert "bad in 2 of its last 3 runs" in settled.reason
            assert settle_borderline(result(verdict=now), entries(good, good, bad), k=2, n=5).verdict is now
            assert settle_borderline(result(verdict=now), (), k=2).verdict is now
        for sure in (Verdict.PASS, Verdict.FAIL, Verdict.NOT_RUN):
            same = result(verdict=sure)
            assert settle_borderline(same, entries(bad, bad, bad)) is same

    def test_a_verdict_of_history_is_no_evidence_for_the_next_one(self) -> None:
        bad = entries(Verdict.FAIL, Verdict.FAIL)
        settled = settle_borderline(result(verdict=Verdict.INCONCLUSIVE), bad)
        assert settled.verdict is Verdict.FAIL
        assert record(settled).entries[0].verdict is Verdict.INCONCLUSIVE

    def test_only_the_last_n_count_and_silence_is_no_verdict(self) -> None:
        bad, good, silent = Verdict.FAIL, Verdict.PASS, Verdict.NOT_RUN
        assert recent_bad(entries(bad, bad, good, silent, good, bad), n=3) == (1, 3)
        assert recent_bad((), n=5) == (0, 0)


class TestBaselines:
    def test_each_node_counts_once_and_only_what_passed(self) -> None:
        often = [result("n1", figure=500.0)] * 9
        rest = [result("n2", figure=800.0), result("n3", figure=820.0)]
        out = [
            result("n4", Verdict.FAIL, figure=1.0),
            result("n5", figure=None),
            result("n6", figure=float("nan")),
        ]
        kept = record(*often, *rest, *out, models={f"n{i}": "GH200" for i in range(1, 7)})
        (baseline,) = baselines_of(kept.entries)
        assert (baseline.gpu_model, baseline.median, baseline.nodes, baseline.samples) == (
            "GH200",
            800.0,
            3,
            11,
        )
        assert baseline.spread == 20.0
        assert baselines_of(kept.entries, least_nodes=4) == ()


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
        assert exclusions.add([one, every], now_ns=NOW) == (every, one)
        assert exclusions.read(now_ns=NOW + HOUR)[0] == (every,)
        assert exclusions.lift("n1", "nccl", now_ns=NOW) == (every,)
        assert exclusions.lift("n1", now_ns=NOW) == ()

    def test_a_torn_list_is_set_aside_and_excludes_nothing(self, tmp_path: Path) -> None:
        exclusions = Exclusions(tmp_path)
        exclusions.path.write_text('{"version": 1, "exclusions": [{"no')
        kept, problem = exclusions.read()
        assert kept == ()
        assert "set aside as exclusions.corrupt" in problem
        assert exclusions.read() == ((), "")


def test_a_report_is_remembered_and_what_failed_is_excluded_until_it_passes(tmp_path: Path) -> None:
    environment = {"GIPFEL_VETTING_HISTORY": str(tmp_path)}

    def finish(*results: CheckResult, exclude: str) -> tuple[str, ...]:
        now = time.time_ns()
        report = VettingReport(
            protocol="quick", cluster="alps", job="7", started_ns=now, ended_ns=now, complete=True,
            results=results, good_nodes=("n2",), exclude=exclude,
        )  # fmt: skip
        return keep_report(report, environment)

    slow = result("n1", Verdict.FAIL, reason="Slow.", started_ns=1)
    assert finish(slow, result("n2"), result("n3", Verdict.FAIL), exclude="n[1]") == ()
    exclusions = Exclusions(tmp_path / "alps")
    ((kept,), _) = exclusions.read()
    assert (kept.node, kept.check, kept.reason) == ("n1", "matmul", "Slow.")
    assert 23 * HOUR < kept.until_ns - time.time_ns() <= 24 * HOUR
    assert set(
        recently_vetted(History(tmp_path, "alps").read(), ["n1", "n2"], protocol="quick", within_s=60)
    ) == {"n2"}
    finish(result("n1"), exclude="")
    assert exclusions.read() == ((), "")
    # A folder that can't be written is a note, and sharing goes on.
    (tmp_path / "file").write_text("")
    environment["GIPFEL_VETTING_HISTORY"] = str(tmp_path / "file")
    environment["GIPFEL_SHARE_VETTING"] = "yes"
    notes = finish(slow, exclude="n1")
    assert len(notes) == 2
    assert "can't be written" in notes[0]
    assert "no registry" in notes[1]


class Receiver:
    """A registry that answers what it is told to, and keeps what it got."""

    def __init__(self, status: int, answer: bytes, headers: dict[str, str]) -> None:
        self.got: list[tuple[str, str, bytes]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                receiver.got.append((self.path, self.headers["Authorization"], body))
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_POST  # noqa: N815

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def registry() -> Iterator[Callable[[int, bytes], Receiver]]:
    """Registries that give one answer."""
    made: list[Receiver] = []

    def make(status: int, answer: bytes) -> Receiver:
        made.append(Receiver(status, answer, {}))
        return made[-1]

    yield make
    for each in made:
        each.close()


class TestSharing:
    def environment(self, url: str, tmp_path: Path, **more: str) -> dict[str, str]:
        return {
            "GIPFEL_REGISTRY_URL": url, "JUPYTERHUB_API_TOKEN": "secret", "HOME": str(tmp_path),
            "http_proxy": "http://127.0.0.1:9", **more,
        }  # fmt: skip

    def test_nothing_leaves_without_consent(self, tmp_path: Path) -> None:
        receiver = Receiver(201, b"{}", {})
        environment = self.environment(receiver.url, tmp_path)
        assert not consents(environment)
        assert share_record(record(result()), environment=environment).sent is False
        set_consent(share=True, root=history_root(environment))
        assert share_record(record(result()), environment=environment).sent is True
        assert (
            share_record(record(result()), environment=environment | {"GIPFEL_SHARE_VETTING": "no"}).sent
            is False
        )
        set_consent(share=False, root=history_root(environment))
        assert share_record(record(result()), environment=environment).sent is False
        receiver.close()
        ((path, token, body),) = receiver.got
        assert (path, token) == ("/api/reports", "token secret")
        assert json.loads(body)["record"]["entries"][0]["node"] == "n1"
        assert str(tmp_path).encode() not in body

    def test_of_a_report_that_is_too_large_the_bad_news_are_sent(self, tmp_path: Path) -> None:
        receiver = Receiver(201, b"{}", {})
        environment = self.environment(receiver.url, tmp_path, GIPFEL_SHARE_VETTING="yes")
        (good,), (bad,) = entries(Verdict.PASS), entries(Verdict.FAIL)
        large = record().model_copy(update={"entries": (good,) * 50_001 + (bad,)})
        assert share_record(large, environment=environment).sent
        receiver.close()
        sent = json.loads(receiver.got[0][2])["record"]["entries"]
        assert (len(sent), sent[0]["verdict"]) == (50_000, "fail")

    @pytest.mark.parametrize(
        ("status", "answer", "headers", "words"),
        [
            (403, b'{"message": "Job 7 is not yours."}', {}, "Job 7 is not yours."),
            (500, b"<html>", {}, "500"),
            (302, b"", {"Location": "http://127.0.0.1:1/"}, "302"),
            (429, b'{"message": ["a", "\\u0000"]}', {}, "refused"),
        ],
    )
    def test_a_refusal_is_one_sentence(
        self, tmp_path: Path, status: int, answer: bytes, headers: dict[str, str], words: str
    ) -> None:
        receiver = Receiver(status, answer, headers)
        environment = self.environment(receiver.url, tmp_path, GIPFEL_SHARE_VETTING="yes")
        shared = share_record(record(result()), environment=environment)
        receiver.close()
        assert not shared.sent
        assert words in shared.words
        assert len(receiver.got) == 1

    @pytest.mark.parametrize(
        ("url", "token", "words"),
        [
            ("http://127.0.0.1:1", "secret", "did not answer"),
            ("file:///etc/passwd", "secret", "no web address"),
            ("", "secret", "no registry"),
            ("http://127.0.0.1:1", "", "no token"),
            ("http://127.0.0.1:1", "a\r\nX: y", "no token"),
            ("http://[", "secret", "did not answer"),
        ],
    )
    def test_whatever_is_wrong_the_vetting_goes_on(
        self, tmp_path: Path, url: str, token: str, words: str
    ) -> None:
        environment = self.environment(url, tmp_path, JUPYTERHUB_API_TOKEN=token, GIPFEL_SHARE_VETTING="yes")
        shared = share_record(record(result()), environment=environment)
        assert not shared.sent
        assert words in shared.words

    def test_a_registry_that_hangs_is_left_after_the_limit(self, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            environment = self.environment(
                f"http://127.0.0.1:{silent.getsockname()[1]}", tmp_path, GIPFEL_SHARE_VETTING="yes"
            )
            shared = share_record(record(result()), environment=environment, limit_s=0.3)
        assert "did not answer" in shared.words
        assert os.environ.get("GIPFEL_REGISTRY_URL") is None


def test_what_another_user_wrote_does_not_count(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("Only root can give a file away.")
    history = History(tmp_path, "alps")
    history.remember(record(result("n1")))
    (path,) = (tmp_path / "alps" / "runs").glob("*.json")
    os.chown(path, 12345, -1)
    content = history.read()
    assert content.records == ()
    assert "another user" in content.problems[0]


def test_what_is_the_users_own_is_not_shared(registry: Any, tmp_path: Path) -> None:
    receiver = registry(201, b"{}")
    environment = {
        "GIPFEL_REGISTRY_URL": receiver.url,
        "GIPFEL_REGISTRY_TOKEN": "t",
        "GIPFEL_SHARE_VETTING": "yes",
    }
    secret = "MY_TOKEN is 'hunter2', and /users/ada/secret is not there."
    kept = record(
        result("n1", Verdict.FAIL, check="env", type="environment", subject="/users/ada", reason=secret),
        result("n1", Verdict.NOT_RUN, reason=secret),
        result("n1", Verdict.FAIL, type="another package's", reason=secret),
        result("n1", Verdict.FAIL, check="bandwidth", type="memory_bandwidth", reason="30 % below."),
    )
    assert share_record(kept, environment=environment, root=tmp_path).sent
    ((_, _, body),) = receiver.got
    assert b"hunter2" not in body
    assert b"/users/ada" not in body
    entries = json.loads(body)["record"]["entries"]
    assert [each["reason"] for each in entries] == ["", "", "", "30 % below."]
    assert entries[3]["subject"] == "GPU-1"


def test_usual_figures_of_the_site_are_asked_for_by_who_shares(registry: Any, tmp_path: Path) -> None:
    known = {
        "type": "matmul", "check": "matmul", "gpu_model": "NVIDIA GH200 120GB", "unit": "FLOP/s",
        "median": 7e14, "spread": 1e12, "nodes": 9, "samples": 30,
    }  # fmt: skip
    receiver = registry(200, json.dumps({"baselines": [known, known | {"gpu_model": "other"}]}).encode())
    environment = {"GIPFEL_REGISTRY_URL": receiver.url, "GIPFEL_REGISTRY_TOKEN": "t"}
    models = {"NVIDIA GH200 120GB", ""}
    assert site_baselines("alps", models, environment=environment, root=tmp_path) == ()
    environment["GIPFEL_SHARE_VETTING"] = "yes"
    (found,) = site_baselines("alps", models, environment=environment, root=tmp_path)
    assert found.median == 7e14
    assert [path for path, *_ in receiver.got] == ["/api/baselines/alps?model=NVIDIA+GH200+120GB&days=30"]
    for status, answer in (
        (403, b"{}"),
        (200, b"[" * 100_000),
        (200, b"\xff"),
        (200, b'{"baselines": [{}]}'),
    ):
        environment["GIPFEL_REGISTRY_URL"] = registry(status, answer).url
        assert site_baselines("alps", models, environment=environment, root=tmp_path) == ()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        environment["GIPFEL_REGISTRY_URL"] = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert site_baselines("alps", models, environment=environment, root=tmp_path, limit_s=0.2) == ()
