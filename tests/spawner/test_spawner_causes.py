"""The catalogue of causes on captured logs."""

import string
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gipfel_spawner.failure import CATALOGUE, Failure, explain
from gipfel_spawner.failure.cause import Evidence

LOGS = Path(__file__).parent / "data/logs"

EXPECTED = {
    "account-refused.sbatch": ("account-refused", ""),
    "disk-full": ("disk-full", ""),
    "enroot-cache-path.pyxis": ("runtime-folder", "/run/enroot"),
    "fuse-denied.apptainer": ("fuse-denied", ""),
    "fuse-denied.squashfuse": ("fuse-denied", ""),
    "glibc-too-old": ("glibc-too-old", "GLIBC_2.38"),
    "glibcxx-too-old": ("glibc-too-old", "GLIBCXX_3.4.30"),
    "gpu-driver-old.enroot": ("gpu-driver", ""),
    "gpu-exclusive": ("gpu-exclusive", ""),
    "gpu-lost": ("gpu-lost", ""),
    "hook-failed.pyxis": ("entrypoint-hook", "98-nvidia.sh"),
    "hub-name-unknown": ("hub-unreachable", "Name or service not known"),
    "hub-refused": ("hub-unreachable", "10.1.2.3:8081"),
    "image-cut-off": ("image-no-squashfs", "/scratch/ada/cut.sqsh"),
    "image-no-squashfs": ("image-no-squashfs", "/scratch/ada/plain.sqsh"),
    "image-no-squashfs.enroot": ("image-no-squashfs", "/scratch/ada/ngc.sqsh"),
    "image-not-found": ("image-not-found", "/scratch/ada/ngc.sqsh"),
    "image-not-found.pyxis": ("image-not-found", "/scratch/ada/ngc.sqsh"),
    "libcudart-missing": ("library-missing", "libcudart.so.12"),
    "limit-reached.sbatch": ("limit-reached", ""),
    "mount-denied-root-squash.pyxis": ("mount-denied", "/home/ada/data"),
    "mount-file-over-folder.pyxis": ("mount-target", "/opt/slurm"),
    "mount-source-missing": ("mount-source-missing", "/capstor/scratch/ada"),
    "mount-source-missing.bwrap": ("mount-source-missing", "/capstor/scratch/ada"),
    "mount-source-missing.podman": ("mount-source-missing", "/capstor/scratch/ada"),
    "mount-source-missing.pyxis": ("mount-source-missing", "/capstor/store/old"),
    "no-shell-in-image.pyxis": ("shell-missing", "/bin/bash"),
    "node-failure": ("node-failure", ""),
    "noexec-data-path.pyxis": ("noexec", ""),
    "nothing-else-said.pyxis": ("container-start", ""),
    "nothing-known": ("", ""),
    "oom-kill.slurm-cgroup": ("out-of-memory", ""),
    "oom-kill.slurm-older": ("out-of-memory", ""),
    "over-quota": ("over-quota", ""),
    "over-quota.sqlite": ("disk-full", ""),
    "partition-down.sbatch": ("partition-down", ""),
    "port-taken": ("port-taken", ""),
    "preempted": ("preempted", ""),
    "qos-refused.sbatch": ("qos-refused", ""),
    "read-only-home": ("read-only-home", "/users/ada/.local/share/jupyter"),
    "registry-denied.podman": ("registry-denied", ""),
    "registry-denied.pyxis": ("registry-denied", "registry-1.docker.io"),
    "registry-limit.pyxis": ("registry-limit", ""),
    "registry-missing.pyxis": ("registry-missing", "nvidia/pytorch"),
    "registry-syntax.pyxis": ("registry-missing", "master:5000"),
    "reservation-refused.sbatch": ("reservation-refused", ""),
    "setup-step": ("setup-step", "/users/ada/.edf/dies.setup"),
    "setup-step.line": ("setup-step", "/users/ada/.edf/broken.setup, line 3"),
    "time-limit": ("time-limit", ""),
    "token-refused": ("token-refused", ""),
    "unknown-user-on-node": ("unknown-user", ""),
    "user-namespaces-refused": ("user-namespaces-refused", ""),
    "user-namespaces-refused.apptainer": ("user-namespaces-refused", ""),
    "user-namespaces-refused.bwrap": ("user-namespaces-refused", ""),
    "user-namespaces-refused.pyxis": ("user-namespaces-refused", ""),
    "vetting-failed": ("vetting-failed", "node01: ECC"),
    "vetting-image": ("vetting-image", "node01: memory bandwidth"),
    "vetting-not-run": ("vetting-not-run", "There is no protocol 'strct'"),
    "wrong-architecture": ("image-architecture", ""),
}


def test_every_captured_log_is_looked_at() -> None:
    assert {path.stem for path in LOGS.glob("*.log")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_captured_log_has_its_cause(name: str) -> None:
    cause, said = EXPECTED[name]
    found = explain(Evidence(state="FAILED", log=(LOGS / f"{name}.log").read_text()))
    if not cause:
        assert found is None
        return
    assert found is not None
    assert found.cause == cause
    assert said in found.reason
    assert found.fix.endswith(".")
    assert "{" not in found.reason + found.fix


@pytest.mark.parametrize(
    ("evidence", "cause"),
    [
        (Evidence(state="OUT_OF_MEMORY"), "out-of-memory"),
        (Evidence(state="TIMEOUT", reason="it reached its time limit"), "time-limit"),
        (Evidence(state="NODE_FAIL", reason="a node that it needs is down"), "node-failure"),
        (Evidence(state="BOOT_FAIL"), "node-failure"),
        (Evidence(state="PREEMPTED"), "preempted"),
        (Evidence(state="DEADLINE"), "time-limit"),
        (Evidence(state="FAILED", reason="it could not be launched"), "log-unwritable"),
        (Evidence(state="FAILED", reason="no node meets its constraints"), "no-such-node"),
        (Evidence(state="BLOCKED"), "port-blocked"),
        (Evidence(state="SILENT", reason="http://10.1.2.3:8081/hub/api"), "server-silent"),
    ],
)
def test_what_the_scheduler_says_is_a_cause_too(evidence: Evidence, cause: str) -> None:
    found = explain(evidence)
    assert found is not None
    assert found.cause == cause


def test_the_last_line_that_fits_is_the_cause() -> None:
    log = "the image /a.sqsh does not exist\nretry\nthe image /b.sqsh does not exist\n"
    found = explain(Evidence(log=log))
    assert found is not None
    assert "/b.sqsh" in found.reason


def test_reasons_and_fixes_are_single_sentences_for_people() -> None:
    for cause in CATALOGUE:
        assert cause.reason[0].isupper()
        assert cause.patterns or cause.states, cause.name
        for word in string.Formatter().parse(cause.reason + cause.fix):
            assert word[1] in {None, "path", "url", "what", "detail"}, cause.name


def test_a_vetting_that_only_said_how_far_it_is_is_no_cause() -> None:
    log = "gipfel: vetting: 2 verdicts, 1 of 1 nodes are busy\nslurmstepd: error: Detected 1 oom_kill event"
    found = explain(Evidence(state="FAILED", log=log))
    assert found is not None
    assert found.cause == "out-of-memory"


@given(st.text(max_size=2000))
def test_any_log_is_read_and_shown_escaped(log: str) -> None:
    failure = Failure.from_evidence("Job 1 ended.", Evidence(state="FAILED", log=log), default_cause=log[:50])
    page = failure.page()
    assert "<script" not in page.lower()
    assert "\n" not in str(failure.error)


def test_a_hostile_log_stays_text() -> None:
    log = "the image /<script>alert(1)</script>{0.__class__}{detail} does not exist"
    failure = Failure.from_evidence("Job 1 ended.", Evidence(state="FAILED", log=log))
    assert "<script>" not in failure.page()
    assert "{0.__class__}" in failure.page()


def test_a_long_line_is_quick_to_search() -> None:
    began = time.process_time()
    assert explain(Evidence(log="a" * 200_000 + "\n" + "(" * 100_000)) is None
    # A pattern that goes over the line from each of its characters takes hours.
    assert time.process_time() - began < 10
