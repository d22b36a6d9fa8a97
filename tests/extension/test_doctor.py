"""``gipfel doctor``: probes on machines that a test makes up, on one that hangs, and on this one."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from made_machine import NO_CONFIGURATION, Made

from gipfel_cluster.engines.bubblewrap import namespace_problem
from gipfel_extension.doctor import cluster, containers, gpus, hub_operation, probes
from gipfel_extension.doctor.examine import (
    Answer,
    Examination,
    Finding,
    Probe,
    examine,
    format_lines,
    ok,
    run_locally,
    summary,
)


@pytest.fixture
def made(tmp_path):
    (tmp_path / "home/ada").mkdir(parents=True)
    (tmp_path / "tmp").mkdir()
    return Made(tmp_path)


def test_slurm_without_a_configuration_is_no_cluster(made):
    assert cluster.slurm(made.machine()).status == "not applicable"
    made.presence = NO_CONFIGURATION
    found = cluster.slurm(made.machine())
    assert (found.status, "SLURM_CONF" in found.fix) == ("not applicable", True)
    # Whoever asks for Slurm by name needs it.
    assert cluster.slurm(made.machine(GIPFEL_SCHEDULER="slurm")).status == "missing"
    assert cluster.account(made.machine()).status == "not applicable"


@pytest.mark.parametrize(
    ("answer", "fix"),
    [
        (Answer(problem="sinfo did not answer within 10 s"), "scontrol ping"),
        (Answer(code=1, errors="slurm_load_partitions: Unable to contact slurm controller"), "slurmctld"),
        (Answer(code=1, errors="error: Munge encode failed: Failed to access socket"), "start munge"),
    ],
)
def test_a_configured_slurm_that_does_not_answer_is_missing(made, answer, fix):
    made.slurm()
    made.answers["sinfo --noheader"] = answer
    found = cluster.slurm(made.machine())
    assert found.status == "missing"
    assert answer.error in found.message
    assert fix in found.fix


def test_a_cluster_is_counted_and_its_accounts_named(made):
    made.slurm()
    found = cluster.slurm(made.machine())
    assert (found.status, "gpu, debug: 5 nodes and 16 GPUs" in found.message) == ("ok", True)
    made.answers["sacctmgr"] = Answer(output="a100|a100||normal|normal|\n")
    assert "Accounts: a100; default: a100" in cluster.account(made.machine()).message
    made.answers["sacctmgr"] = Answer(output="")
    found = cluster.account(made.machine())
    assert (found.status, "sacctmgr add user ada" in found.fix) == ("warning", True)


def test_in_a_container_the_broker_is_what_counts(made):
    inside = {"GIPFEL_RUN": "/r", "GIPFEL_ENGINE": "bubblewrap", "GIPFEL_SOCKETS": str(made.root)}
    asked = probes(made.machine(**inside), operator=False)
    assert not [each for each in asked if each.group == "Containers"]
    cluster = [each for each in asked if each.group == "Cluster"]
    found = {each.name: each.check(made.machine(**inside)) for each in cluster}
    assert found.pop("jobs from here").status == "missing"
    assert {each.status for each in found.values()} <= {"not applicable"}


def test_in_a_jobs_container_it_says_which_and_judges_what_is_there(made):
    inside = {
        "GIPFEL_RUN": "/home/ada/.gipfel/runs/alps-7", "GIPFEL_ENGINE": "bubblewrap", "GIPFEL_JOB_ID": "7",
        "SLURM_JOB_ID": "7", "GIPFEL_NODE": "n1",
    }  # fmt: skip
    record = {"edf": {"name": "torch"}, "nodes": ["n1", "n2"], "options": {"gpus": 2}}
    made.file("/home/ada/.gipfel/runs/alps-7/record.json", json.dumps(record))
    made.file(
        "/proc/self/mountinfo",
        "1 0 0:1 / / rw - overlay overlay rw\n2 1 0:2 / /home/ada/.gipfel/runs/alps-7 rw - nfs4 nas:/r rw\n",
    )
    machine = made.machine(**inside)
    asked = {each.name: each for each in probes(machine, operator=False)}
    assert not {each.name for each in asked.values() if each.group == "Containers"}
    found = asked["this job"].check(machine)
    assert found.message == "7 on n1, 2 nodes, in the container of torch, started by bubblewrap."
    # Two GPUs were requested and none is here.
    found = gpus.nvml(machine)
    assert (found.status, found.message) == (
        "missing", "This job requested 2 GPUs, but no GPU is visible.",
    )  # fmt: skip
    assert found.fix.startswith("Start it again on a node with GPUs")
    found = hub_operation.home(machine)
    assert (found.status, "deleted when the job ends" in found.message, "mounts = [" in found.fix) == (
        "warning", True, True,
    )  # fmt: skip
    found = hub_operation.runs(machine)
    assert (found.status, "alps-7: writable" in found.message, "shared (nfs4)" in found.message) == (
        "ok",
        True,
        True,
    )
    # The same job without a container, and no job at all.
    plain = made.machine(**{**inside, "GIPFEL_ENGINE": "host"})
    assert asked["this job"].check(plain).message == "7 on n1, 2 nodes, without a container."
    assert hub_operation.home(plain).status == "ok"
    assert asked["this job"].check(made.machine()).status == "not applicable"
    foreign = made.machine(SLURM_JOB_ID="9", SLURMD_NODENAME="n3")
    assert asked["this job"].check(foreign).message == "9 on n3, not started by Gipfel."


def test_only_the_engine_that_was_chosen_is_needed(made):
    engines = {"bubblewrap": lambda: "bwrap is not here.", "podman": lambda: "podman is not here."}
    machine = made.machine(engines=engines)
    assert [containers.engine(name, machine).status for name in engines] == ["warning", "not applicable"]
    assert "apt install bubblewrap" in containers.engine("bubblewrap", machine).fix
    machine = made.machine(engines=engines, GIPFEL_ENGINE="podman")
    assert [containers.engine(name, machine).status for name in engines] == ["not applicable", "missing"]
    machine = made.machine(engines={**engines, "podman": lambda: None}, GIPFEL_ENGINE="podman")
    assert containers.engine("podman", machine).status == "ok"


def test_an_engine_without_namespaces_refers_to_their_probe(made, monkeypatch):
    made.file("bin/unshare", "#!/bin/sh\necho no >&2\nexit 1\n")
    refuses = made.root / "bin" / "unshare"
    refuses.chmod(0o755)
    monkeypatch.setenv("PATH", f"{refuses.parent}:{os.environ['PATH']}")
    machine = made.machine(engines={"bubblewrap": lambda: namespace_problem("bubblewrap")})
    assert containers.engine("bubblewrap", machine).fix == "See user namespaces below."


@pytest.mark.parametrize(
    ("switch", "value", "line"),
    [
        ("/proc/sys/user/max_user_namespaces", "0\n", "user.max_user_namespaces=65536"),
        ("/proc/sys/kernel/unprivileged_userns_clone", "0\n", "kernel.unprivileged_userns_clone=1"),
        (
            "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            "1\n",
            "kernel.apparmor_restrict_unprivileged_userns=0",
        ),
    ],
)
def test_refused_namespaces_come_with_the_line_that_allows_them(made, switch, value, line):
    made.file(switch, value)
    made.answers["unshare"] = Answer(code=1, errors="unshare: unshare failed: Operation not permitted")
    found = containers.namespaces(made.machine())
    assert (found.status, f"sysctl -w {line}" in found.fix) == ("warning", True)
    made.answers["unshare"] = Answer()
    assert containers.namespaces(made.machine()).status == "ok"


def test_all_settings_that_disable_namespaces_are_kept_after_a_reboot(made):
    made.file("/proc/sys/user/max_user_namespaces", "0\n")
    made.file("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1\n")
    made.answers["unshare"] = Answer(code=1, errors="unshare: unshare failed: Operation not permitted")
    fix = containers.namespaces(made.machine()).fix
    command = fix.partition("(permanently: ")[2].partition(" | sudo tee")[0]
    written = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True, timeout=60)
    assert written.stdout.splitlines() == [
        "user.max_user_namespaces=65536",
        "kernel.apparmor_restrict_unprivileged_userns=0",
    ]


def test_fuse_and_subordinate_ids(made):
    assert "modprobe fuse" in containers.fuse(made.machine()).fix
    made.file("/dev/fuse")
    assert "apt install squashfuse" in containers.fuse(made.machine()).fix
    made.programs |= {"squashfuse", "podman"}
    assert containers.fuse(made.machine()).status == "ok"
    made.file("/etc/subuid", "ada:100000:65536\n")
    found = containers.subordinate(made.machine())
    assert (found.status, "/etc/subgid" in found.message, "usermod" in found.fix) == ("warning", True, True)
    made.file("/etc/subgid", "1000:100000:65536\n")
    assert "apt install uidmap" in containers.subordinate(made.machine()).fix
    made.programs.add("newuidmap")
    assert containers.subordinate(made.machine()).status == "ok"
    assert containers.subordinate(made.machine(uid=0)).status == "not applicable"


def test_a_runtime_that_was_named_must_be_one(made, tmp_path):
    found = containers.runtime(made.machine(GIPFEL_RUNTIME=str(tmp_path / "none")))
    assert (found.status, f"gipfel runtime build {tmp_path}/none" in found.fix) == ("missing", True)


def test_gpus_are_opened_in_a_process_of_their_own(made):
    assert {look(made.machine()).status for look in (gpus.nvml, gpus.profiling, gpus.amd)} == {
        "not applicable"
    }
    made.file("/dev/nvidia0")
    source = "python3 -m gipfel_extension.doctor.gpus"
    made.answers[f"{source} nvml"] = Answer(output='{"name": "nvml+gpm", "gpus": ["GH200", "GH200"]}\n')
    assert gpus.nvml(made.machine()).message == "2 x GH200."
    assert gpus.profiling(made.machine()).status == "ok"
    assert gpus.nvml(made.machine(CUDA_VISIBLE_DEVICES="")).status == "not applicable"
    made.answers[f"{source} nvml"] = Answer(output='{"name": "nvml", "gpus": ["A100"]}\n')
    found = gpus.profiling(made.machine())
    assert (found.status, "nvidia-dcgm" in found.fix) == ("warning", True)
    made.answers[f"{source} nvml"] = Answer(code=-11)
    assert gpus.nvml(made.machine()).status == "missing"
    made.answers[f"{source} nvml"] = Answer(output="not JSON")
    assert gpus.nvml(made.machine()).status == "missing"


def test_the_process_that_opens_a_source_says_why_it_can_t(tmp_path):
    answer = run_locally(
        (sys.executable, "-m", "gipfel_extension.doctor.gpus", "nvml"),
        {**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        limit=60,
    )
    assert json.loads(answer.output).keys() == {"problem", "fix"}, answer


def test_directories_are_tried_and_their_file_systems_told_apart(made):
    made.file(
        "/proc/self/mountinfo",
        "1 0 8:0 / / rw - ext4 /dev/sda rw\n2 1 0:2 / /home rw - nfs4 nas:/h rw\n"
        "3 2 0:3 / /home/ada/\\040x rw - xfs local rw\n",
    )
    found = hub_operation.home(made.machine())
    assert (found.status, "shared (nfs4)" in found.message) == ("ok", True)
    assert hub_operation.file_system(made.machine(), Path("/home/ada/ x/y")) == "xfs"
    # What is made only when it is needed is judged by where it will be.
    found = hub_operation.runs(made.machine())
    assert (found.status, "/home/ada/.gipfel/runs: writable" in found.message) == ("ok", True)
    assert list((made.root / "home/ada").iterdir()) == []
    assert hub_operation.scratch(made.machine()).status == "not applicable"
    made.file("/file")
    found = hub_operation.runs(made.machine(GIPFEL_RUNS="/file"))
    assert (found.status, "GIPFEL_RUNS" in found.fix) == ("missing", True)
    assert hub_operation.scratch(made.machine(SCRATCH="/file")).status == "warning"
    assert "local (ext4)" in hub_operation.local(made.machine()).message


def test_ports(made, free_listener):
    assert cluster.server_port(made.machine()).status == "ok"
    port = free_listener.getsockname()[1]
    found = cluster.server_port(made.machine(GIPFEL_SERVER_PORTS=str(port)))
    assert (found.status, "in use" in found.message) == ("missing", True)
    found = cluster.hub(made.machine(JUPYTERHUB_API_URL="http://127.0.0.1:1/hub/api"))
    assert (found.status, "does not answer" in found.message) == ("missing", True)
    assert cluster.hub_port(made.machine(GIPFEL_PORT="x")).status == "missing"


@pytest.fixture
def free_listener():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def test_an_old_kernel_and_packages(made):
    made.file("/proc/sys/kernel/osrelease", "4.18.0-553.el8\n")
    assert containers.system(made.machine()).status == "warning"
    made.file("/proc/sys/kernel/osrelease", "6.8.0-generic\n")
    made.file("/etc/os-release", 'PRETTY_NAME="Made 1"\n')
    found = containers.system(made.machine())
    assert (found.status, found.message.startswith("Made 1, kernel 6.8.0-generic")) == ("ok", True)
    assert containers.packages(made.machine()).status == "ok"
    made.programs.add("podman")
    made.answers["/usr/bin/podman"] = Answer(output="podman version 4.3.1\n")
    assert containers.programs(made.machine()).message == "podman 4.3.1."


def test_what_a_hub_needs(made):
    assert hub_operation.node(made.machine()).status == "missing"
    made.programs.add("node")
    for version, status in (("v18.19.0\n", "missing"), ("v22.1.0\n", "ok")):
        made.answers["/usr/bin/node"] = Answer(output=version)
        assert hub_operation.node(made.machine()).status == status
    # On one machine a hub needs neither sudo nor an address.
    assert (
        hub_operation.acting(made.machine()).status
        == hub_operation.address(made.machine()).status
        == "not applicable"
    )
    made.slurm()
    found = hub_operation.acting(made.machine())
    assert (found.status, "/etc/sudoers.d/gipfel" in found.fix) == ("missing", True)
    made.file("/proc/self/status", "CapEff:\t00000000000000c0\n")
    assert hub_operation.acting(made.machine()).status == "ok"
    made.answers["hostname"] = Answer(output="10.0.0.5 \n")
    found = hub_operation.address(made.machine())
    assert (found.status, "GIPFEL_HUB_IP=10.0.0.5" in found.fix) == ("missing", True)
    assert hub_operation.address(made.machine(GIPFEL_HUB_IP="10.0.0.5")).status == "ok"
    assert hub_operation.extending(made.machine()).status == "not applicable"
    assert hub_operation.extending(made.machine(GIPFEL_EXTEND_BY="1:00:00")).status == "missing"
    made.answers["sacctmgr"] = Answer(output="Operator\n")
    assert hub_operation.extending(made.machine(GIPFEL_EXTEND_BY="1:00:00")).status == "ok"


def test_a_hubs_state_is_for_its_user_alone(made):
    made.file("/srv/hub/jupyterhub.sqlite")
    (made.root / "srv/hub").chmod(0o755)
    found = hub_operation.state(made.machine(GIPFEL_STATE="/srv/hub"))
    assert (found.status, found.fix) == ("missing", "chmod 700 /srv/hub")
    (made.root / "srv/hub").chmod(0o700)
    assert hub_operation.state(made.machine(GIPFEL_STATE="/srv/hub")).status == "ok"


def test_a_probe_that_hangs_or_raises_is_a_finding_and_the_others_answer(made):
    released = threading.Event()

    def hangs(_machine):
        released.wait(60)
        return ok("")

    def raises(_machine):
        raise RuntimeError("odd")

    looks = {"hangs": hangs, "raises": raises, "answers": lambda _machine: ok("here")}
    began = time.monotonic()
    found = examine(
        made.machine(), [Probe(name, "Any", look) for name, look in looks.items()], seconds=0.2
    ).findings
    released.set()
    assert time.monotonic() - began < 30
    assert [each.status for each in found] == ["missing", "warning", "ok"]
    assert "No result within" in found[0].message
    assert "RuntimeError: odd" in found[1].message


def test_a_command_that_hangs_is_ended(tmp_path):
    program = tmp_path / "sinfo"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    answer = run_locally((str(program),), os.environ, limit=0.3)
    assert (answer.ok, "did not answer within" in answer.error) == (False, True)
    assert "can't be run" in run_locally((str(tmp_path / "none"),), os.environ).error


def test_lines_keep_to_80_columns_and_to_ascii_where_asked():
    def finding(status):
        return Finding(name="a name", group="Group", status=status, message="words " * 40, fix="sudo " * 40)

    examination = Examination(findings=tuple(map(finding, ("ok", "missing", "warning", "not applicable"))))
    lines = [line for line, _ in format_lines(examination, plain=True)]
    assert max(map(len, lines)) <= 80
    assert "\n".join(lines).isascii()
    assert sum("missing: words" in line for line in lines) == 1
    assert summary(examination) == "Missing: a name. Warnings: 1."
    assert summary(Examination(findings=())) == "Nothing required is missing."


def test_this_machine_and_then_with_a_slurm_that_is_broken(tmp_path):
    """The command itself: text and JSON, and exit status 1 with the line that helps."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sbatch", "sinfo", "sacctmgr", "scontrol"):
        (programs / name).write_text(
            '#!/bin/sh\n[ "$1" = --version ] && { echo slurm 24.11.1; exit; }\n'
            "echo 'slurm_load_partitions: Unable to contact slurm controller' >&2; exit 1\n"
        )
        (programs / name).chmod(0o755)
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GIPFEL_", "SLURM_", "JUPYTER"))
    }
    environment = {**kept, "HOME": str(tmp_path), "COLUMNS": "80"}

    def doctor(*words, **more):
        return subprocess.run(
            [sys.executable, "-m", "gipfel_extension.cli", "doctor", *words],
            capture_output=True, text=True, timeout=120, check=False, env={**environment, **more},
        )  # fmt: skip

    done = doctor("--operator", "--json")
    assert done.stderr == ""
    document = json.loads(done.stdout)
    missing = [each["name"] for each in document["findings"] if each["status"] == "missing"]
    assert (done.returncode, document["ok"], missing) == (0, True, [])
    assert {each["group"] for each in document["findings"]} == {
        *("Cluster", "Containers", "GPUs", "Directories", "Network", "Versions", "Hub")
    }
    done = doctor(PATH=f"{programs}:{os.environ['PATH']}", LC_ALL="C.UTF-8")
    assert done.returncode == 1
    assert "✗ Slurm" in done.stdout
    assert "scontrol ping" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("Missing: Slurm.")
    # A path that is longer than a line is not broken.
    lines = done.stdout.replace(str(tmp_path), "/home").splitlines()
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in done.stdout
