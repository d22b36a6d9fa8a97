"""The verdict on an image, what operators see of a job, and the end of its network."""

import asyncio
import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from package_images import mirror

from gipfel_cluster.egress.log import GateLog
from gipfel_cluster.image_verdict import SecurityVerdict, keep_verdict, kept_verdict
from gipfel_cluster.job.record import BackgroundVerdict
from gipfel_cluster.model import GipfelError
from gipfel_cluster.runs import user_cache
from gipfel_cluster.workloads.submission import HostContext
from gipfel_extension.cli.main import gipfel
from gipfel_extension.gate.scan import cache as scan_cache
from gipfel_extension.gate.scan.targets import scan_targets
from gipfel_extension.gate.scan.verdict import (
    image_verdict,
    judge_files,
    judge_start,
)
from gipfel_extension.network import read_gate
from gipfel_extension.server.network_end import end_network
from gipfel_extension.server.security import job_verdict, kept_verdicts, scanned, shared_security
from gipfel_extension.telemetry.events import read_events, report_to_job
from gipfel_spawner.form.options import OptionError
from gipfel_spawner.handlers.security import SharedSecurity
from gipfel_spawner.start import account

_STATUS = "Package: openssl\nStatus: install ok installed\nVersion: 1.0\nArchitecture: amd64\n\n"


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(gipfel, arguments, standalone_mode=False)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    root = tmp_path / "image"
    (root / "var/lib/dpkg").mkdir(parents=True)
    (root / "var/lib/dpkg/status").write_text(_STATUS)
    (root / "etc").mkdir()
    (root / "etc/os-release").write_text("ID=debian\nVERSION_ID=12\n")
    return root


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    record = {
        "id": "CVE-2026-1",
        "modified": "2026-11-23T00:00:00Z",
        "severity": [{"type": "CVSS_V3", "score": "CVSS:3.1/AV:N/AC:L/PR:N/UI:N/S:U/C:H/I:H/A:H"}],
        "affected": [
            {
                "package": {"ecosystem": "Debian:12", "name": "openssl"},
                "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "2.0"}]}],
            }
        ],
    }
    advisories = mirror(tmp_path / "osv", record)
    return {"HOME": str(tmp_path / "home"), "GIPFEL_ADVISORIES": str(advisories)}


def test_a_verdict_has_numbers_age_and_policy(image: Path, environment: dict[str, str]) -> None:
    found = image_verdict(str(image), environment)
    assert (found.critical, found.fixable, found.packages) == (1, 1, 1)
    assert found.worst == ("critical: CVE-2026-1 in openssl 1.0, fixed in 2.0",)
    assert "Known vulnerabilities: 1 critical, 1 of them with a fixed version" in found.line
    assert "Policy of the site: report" in found.line
    levels = [
        image_verdict(str(image), environment | {"GIPFEL_SCAN_POLICY": policy}).level
        for policy in ("report", "warn", "refuse", "nonsense")
    ]
    # A word that is none of them is taken for the strictest.
    assert levels[1:] == ["warn", "fail", "fail"]
    assert levels[0] != "pass"
    assert "must be one of" in image_verdict(str(image), {"GIPFEL_SCAN_POLICY": "refuses"}).not_judged[0]


def test_an_exception_counts_and_is_named(image: Path, environment: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "exceptions.toml"
    file.write_text('[[exception]]\nrule = "CVE-2026-1"\nreason = "no server here"\nuntil = 2999-01-31\n')
    environment |= {"GIPFEL_SCAN_EXCEPTIONS": str(file), "GIPFEL_SCAN_POLICY": "refuse"}
    found = image_verdict(str(image), environment)
    assert found.critical == 0
    assert f"1 excepted by {file.owner()}, the first until 2999-01-31" in found.line
    file.write_text(file.read_text() + 'by = "Ada"\n')
    assert "1 excepted by Ada" in image_verdict(str(image), environment).line
    file.write_text("broken")
    assert image_verdict(str(image), environment).level == "fail"


@pytest.mark.parametrize("name", ["debian:12", "/does/not/exist.sqsh", "/dev/null"])
def test_what_can_not_be_judged_is_never_clean(name: str, environment: dict[str, str]) -> None:
    for policy, level in (("report", "unknown"), ("refuse", "fail")):
        found = image_verdict(name, environment | {"GIPFEL_SCAN_POLICY": policy})
        assert found.level == level
        assert "could not be judged" in found.line.lower()
    assert image_verdict(name, {"HOME": "/nonexistent"}).level == "unknown"


def test_edf_check_here_shows_the_verdict(
    image: Path, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edf = tmp_path / "e.toml"
    edf.write_text(f'image = "{image}"\n')
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    shown = _run("edf", "check", "--here", str(edf))
    assert "critical: CVE-2026-1 in openssl 1.0" in shown.stdout
    monkeypatch.setenv("GIPFEL_SCAN_POLICY", "refuse")
    refused = _run("edf", "check", "--here", "--json", str(edf))
    assert refused.return_value == 1
    assert json.loads(refused.stdout)["security"]["level"] == "fail"
    assert "security" not in json.loads(_run("edf", "check", "--json", str(edf)).stdout)


def test_operators_see_numbers_and_end_the_network(
    image: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    run = tmp_path / "local-1"
    (run / "telemetry").mkdir(parents=True)
    (run / "record.json").write_text(json.dumps({"image": {"path": str(image)}}))
    assert not end_network(run, "operator ada", "crawls")
    log = GateLog(run / "gate", "n1")
    log.open()
    log.note("secret.example", 443, "tcp", allowed=False, reason="not on the allow list")
    report_to_job({"GIPFEL_RUN": str(run)}, "network_rate", "many", "n1")
    found = shared_security(run, environment)
    assert (found["gate"], found["refused"], found["over_limit"], found["critical"]) == ("open", 1, 1, 1)
    assert "secret" not in json.dumps(found)
    assert kept_verdict(run) == job_verdict(run, {})
    assert _run("net", str(run), "--end", "it crawls").return_value == 0
    assert "ended the network of this job: it crawls" in read_gate(run).closed
    assert shared_security(run, environment)["gate"] == "closed"
    other = tmp_path / "local-2"
    (other / "telemetry").mkdir(parents=True)
    (other / "record.json").write_text("{}")
    assert _run("net", str(other), "--end", "x").return_value == 1
    shown = SharedSecurity.model_validate(shared_security(other, environment))
    assert (shown.critical, shown.texts) == (None, ("no container image",))


def test_operators_see_whether_all_some_or_no_packages_were_judged(tmp_path: Path) -> None:
    def texts(**verdict: Any) -> tuple[str, ...]:
        keep_verdict(tmp_path, SecurityVerdict(image="/x", **verdict))
        return SharedSecurity.model_validate(shared_security(tmp_path, {})).texts

    (tmp_path / "telemetry").mkdir()
    assert texts(packages=3, advisories_days=2.0) == ("advisories 2 d old",)
    partly = {"packages": 3, "advisories_days": 2.0, "not_judged": ("There are no advisories for x.",)}
    assert texts(**partly) == ("image judged in part", "advisories 2 d old")
    assert texts(high=2, **partly) == ("2 high", "image judged in part", "advisories 2 d old")
    assert texts(not_judged=("There is no mirror of advisories.",)) == ("image not judged",)
    assert texts(packages=3, not_judged=("There is no mirror of advisories.",)) == ("image not judged",)


def test_the_verdict_of_the_job_is_not_replaced_by_a_server_that_sees_less(
    tmp_path: Path, image: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "record.json").write_text(json.dumps({"image": {"path": str(image)}}))
    hidden = environment | {"GIPFEL_ADVISORIES": str(tmp_path / "not mounted here")}
    found = job_verdict(run, hidden)
    assert found is not None
    assert "not visible in this container" in found.line
    assert kept_verdict(run) is None
    of_job = image_verdict(str(image), environment)

    def slow(image: str, environment: dict[str, str]) -> SecurityVerdict:
        keep_verdict(run, of_job)
        return SecurityVerdict(image=image, not_judged=("x",))

    monkeypatch.setattr("gipfel_extension.server.security.image_verdict", slow)
    assert job_verdict(run, environment) == of_job == kept_verdict(run)


def test_a_damaged_verdict_is_none(tmp_path: Path) -> None:
    assert kept_verdict(tmp_path) is None
    for content in ("", "[]", '{"image": 3}', "{" * 9000):
        (tmp_path / "security.json").write_text(content)
        assert kept_verdict(tmp_path) is None
    keep_verdict(tmp_path, SecurityVerdict(image="/x"))
    assert kept_verdict(tmp_path) == SecurityVerdict(image="/x")


def test_a_malicious_file_is_an_event_and_its_verdict_is_kept(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    (run / "telemetry").mkdir(parents=True)
    good, bad = tmp_path / "good.pkl", tmp_path / "bad.pkl"
    good.write_bytes(pickle.dumps([1]))
    bad.write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(scan_cache, "_SETTLED_S", 0.0)
    cache = scan_cache.ScanCache(user_cache("scans", environment))
    results = {
        path.name: scanned(
            scan_targets((path,), advisories=None, max_age_s=0.0, cache=cache),
            path.name,
            {"GIPFEL_RUN": str(run)},
        )
        for path in (good, bad)
    }
    assert [results[name]["verdict"] for name in ("good.pkl", "bad.pkl")] == ["plain", "malicious"]
    (event,) = read_events(run / "telemetry")
    assert (event.kind, "bad.pkl is malicious" in event.message) == ("malicious_file", True)
    missing = tmp_path / "missing.pkl"
    kept = kept_verdicts({"g": good, "b": bad, "m": missing}, environment)
    assert kept == {"g": "plain", "b": "malicious"}


def _hub(environment: dict[str, str], python: str = sys.executable) -> account.UserCommands:
    """Return commands as a hub runs them, as its own user."""
    home = environment["HOME"]
    Path(home).mkdir(exist_ok=True)
    return account.UserCommands(
        account.Account(home=home), environment={"PATH": os.environ["PATH"], **environment}, python=python
    )


def test_the_hub_has_the_image_judged_as_the_user_and_refuses_it(
    image: Path, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = asyncio.run(_hub(environment).image_verdict(str(image)))
    assert found is not None
    assert (found.critical, found.level) == (1, "warn")
    assert asyncio.run(_hub({"HOME": str(tmp_path)}).image_verdict(str(image))) is None
    strict = environment | {"GIPFEL_SCAN_POLICY": "refuse"}
    with pytest.raises(OptionError, match=r"1 critical.*CVE-2026-1 in openssl") as refused:
        asyncio.run(_hub(strict).check_image(str(image)))
    assert refused.value.field == "edf"
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nsleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(account, "VERDICT_S", 0.5)
    for python, words in (("/bin/false", "failed"), ("/no/python", "can't be run"), (str(slow), "longer")):
        # A scan that fails is never a clean image; the policy is the site's, whatever the process prints.
        with pytest.raises(OptionError, match=f"Could not be judged.*{words}"):
            asyncio.run(_hub(strict, python).check_image(str(image)))
    liar = tmp_path / "liar"
    liar.write_text(
        "#!/bin/sh\necho '" + json.dumps({"image": "/x", "policy": "report", "critical": 3}) + "'\n"
    )
    liar.chmod(0o755)
    with pytest.raises(OptionError, match="3 critical"):
        asyncio.run(_hub(strict, str(liar)).check_image(str(image)))


def test_a_job_keeps_the_verdict_and_its_submission_is_refused(
    image: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    environment |= {"PATH": os.environ["PATH"]}
    run = tmp_path / "run"
    run.mkdir()
    BackgroundVerdict(str(image), run, {"PATH": os.environ["PATH"]}).finish(30)
    assert kept_verdict(run) is None
    BackgroundVerdict(str(image), run, environment).finish(30)
    kept = kept_verdict(run)
    assert kept is not None
    assert kept.critical == 1
    context = HostContext(environment, in_job=False)
    (line,) = judge_start(str(image), (), context, environment)
    assert "1 critical" in line
    strict = environment | {"GIPFEL_SCAN_POLICY": "refuse"}
    with pytest.raises(GipfelError, match="The site refuses the image"):
        judge_start(str(image), (), HostContext(strict, in_job=False), strict)


def test_files_that_a_job_loads_are_judged(tmp_path: Path) -> None:
    good, bad, odd = (tmp_path / name for name in ("good.pkl", "bad.pkl", "odd.pkl"))
    good.write_bytes(pickle.dumps([1]))
    bad.write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    odd.write_bytes(pickle.dumps([1] * 100)[:-30])
    environment = {"HOME": str(tmp_path)}
    strict = environment | {"GIPFEL_SCAN_POLICY": "refuse"}
    assert judge_files([good], environment) is judge_files([good], strict) is None
    for path, words, level in ((bad, "malicious", "warn"), (odd, "ould not be judged", "unknown")):
        found, refused = judge_files([good, path], environment), judge_files([path], strict)
        assert found is not None
        assert refused is not None
        assert (found.level, refused.level) == (level, "fail")
        assert words in found.line
