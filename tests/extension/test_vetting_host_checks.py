"""Checks of a node outside its GPUs, on this machine: real files, sockets and probes."""

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from vetting_readings import FakeHost, FakeProbes, Readings, context, gpus

from gipfel_cluster.process.tree import Process
from gipfel_extension.telemetry.ranks import cpu_list
from gipfel_extension.vetting.check import ProgramResult
from gipfel_extension.vetting.checks.storage import BLOCK_BYTES, RandomContent, file_system, temporary_file
from gipfel_extension.vetting.children import LocalProbes
from gipfel_extension.vetting.model import Verdict
from gipfel_extension.vetting.one_check import group_probe, run_check
from gipfel_extension.vetting.probing import ProbeAnswer, ProbeSpec, read_answer
from gipfel_extension.vetting.protocol import parse_entry

PASS, FAIL, NOT_RUN = Verdict.PASS, Verdict.FAIL, Verdict.NOT_RUN


def look(type_, parameters=None, *, threshold=None, time_limit=None, **given):
    document = {"name": type_, "type": type_, "parameters": parameters, "threshold": threshold}
    entry = parse_entry({**document, "time_limit": time_limit})
    assert not entry.problem, entry.problem
    (result,) = run_check(entry, context(**{"expected_gpus": 0, **given}))
    return result


def test_environment_is_exact(tmp_path):
    expected = {"expected": {"NCCL_NET": "AWS Libfabric", "RANK": None}}
    right = {"NCCL_NET": "AWS Libfabric"}
    assert look("environment", expected, environment=right).verdict is PASS
    for wrong in ({}, {"NCCL_NET": "aws libfabric"}, {**right, "RANK": "a secret"}):
        result = look("environment", expected, environment=wrong)
        assert result.verdict is FAIL
        assert "a secret" not in result.reason
    stacks = {"version_from": "GIPFEL_STACK", "expected": {
        "26.05*": {"NCCL_CROSS_NIC": "1"}, "26.0?*": {"NCCL_CROSS_NIC": "0"},
    }}  # fmt: skip
    for version, value, verdict in (
        ("26.05.1", "1", PASS), ("26.07.1", "0", PASS), ("26.07.1", "1", FAIL),
        ("25.1", "0", Verdict.INCONCLUSIVE), ("", "0", NOT_RUN),
    ):  # fmt: skip
        environment = {"GIPFEL_STACK": version, "NCCL_CROSS_NIC": value}
        assert look("network_stack", stacks, environment=environment).verdict is verdict
    (tmp_path / "version").write_text("26.05.1\n")
    stacks["version_from"] = str(tmp_path / "version")
    assert look("network_stack", stacks, environment={"NCCL_CROSS_NIC": "1"}).verdict is PASS


def test_memory_and_space_are_really_there(tmp_path):
    full = FakeHost(texts={"/proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 100 kB\n"})
    assert look("host_memory", host=full).verdict is FAIL
    assert look("host_memory", {"min_available": 0.0, "most_swapped": "1 TB"}).verdict is PASS
    assert look("host_memory", host=FakeHost(texts={"/proc/meminfo": ""})).verdict is NOT_RUN
    small = {"folder": str(tmp_path), "min_free": 0, "write": "64 KiB"}
    assert look("shared_memory", small).verdict is PASS
    assert "free" in look("shared_memory", {**small, "min_free": "1 PB"}).reason
    assert look("shared_memory", {**small, "folder": str(tmp_path / "none")}).verdict is NOT_RUN
    assert not list(tmp_path.iterdir()), "nothing is left behind"


@pytest.mark.parametrize("type_", ["shared_memory", "storage_write", "storage_read"])
def test_a_file_system_that_only_promises_space_fails(tmp_path, type_):
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs -o size=1m tmpfs "{tmp_path}" && exec "$0" "$@"',
         sys.executable, "-c", _WRITES, str(Path(__file__).parent), str(tmp_path), type_],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    if "unshare" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.stdout.split()[0] == "fail", done.stderr
    assert "No space left" in done.stdout


_WRITES = """
import sys
sys.path.insert(0, sys.argv[1])
from test_vetting_host_checks import look
size = {"min_free": 0, "write": "8 MiB"} if sys.argv[3] == "shared_memory" else {"bytes": "8 MiB"}
result = look(sys.argv[3], {"folder": sys.argv[2], **size})
print(result.verdict.value, result.reason)
"""


def test_a_file_is_read_back_whole_and_has_no_equal_sectors(tmp_path):
    size = 2 * BLOCK_BYTES + 5000
    short_writes = []

    def write(descriptor, data):
        # One byte, a sector, or an odd number of bytes, as on storage that is almost full or interrupted.
        short_writes.append(os.write(descriptor, data[: (1, 512, 1_000_003)[len(short_writes) % 3]]))
        return short_writes[-1]

    for content in (RandomContent(size), RandomContent(size, write)):
        with temporary_file(tmp_path) as (descriptor, path):
            assert content.write(descriptor, time.monotonic() + 60)[0] == size
            written = path.read_bytes()
            sectors = [written[start : start + 512] for start in range(0, size - 511, 512)]
            assert len(set(sectors)) == len(sectors)
            assert content.read(descriptor)[1]
            for position in (0, 77, BLOCK_BYTES - 1, BLOCK_BYTES + 12_345, size - 1):
                os.pwrite(descriptor, bytes([written[position] ^ 1]), position)
                assert not content.read(descriptor)[1], position
                os.pwrite(descriptor, written[position : position + 1], position)
            assert content.read(descriptor)[1]
            os.truncate(descriptor, size - 1)
            assert not content.read(descriptor)[1]
    assert sum(short_writes) == size


def test_mounts_quota_and_storage(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "file").write_text("x")
    environment = {"DATA": str(tmp_path)}
    paths = {"$DATA/data": "write", "${DATA}/file": "read", str(tmp_path): "read"}
    assert look("mounts", {"paths": paths}, environment=environment).verdict is PASS
    assert look("mounts", {"paths": {"$NONE/data": "read"}}).verdict is NOT_RUN
    assert look("mounts", {"paths": {str(tmp_path / "none"): "read"}}).verdict is FAIL
    assert look("mounts", {"paths": {"/proc/sys": "write"}}).verdict is FAIL
    kinds = {"paths": {"/proc": "read"}, "kinds": {"/proc": "proc"}}
    assert look("mounts", kinds).verdict is PASS
    away = look("mounts", {**kinds, "kinds": {"/proc": "lustre"}})
    assert (away.verdict, "is on proc, not on lustre" in away.reason) == (FAIL, True)
    info = "1 1 0:1 / / rw - ext4 /dev/a rw\n"
    info += "2 1 0:2 / /a\\040b rw - nfs4 s:/ rw\n3 1 0:3 / /a\\040b rw - tmpfs t rw\n"
    assert file_system(Path("/a b/c"), info) == "tmpfs"
    assert file_system(Path("/ab"), info) == "ext4"
    info += "4 1 0:4 / /odd\\012\\134040 rw - lustre l rw\n"
    assert file_system(Path("/odd\n\\040/x"), info) == "lustre"
    small = {"folder": str(tmp_path), "min_free": 0, "min_inodes": 0}
    assert look("quota", small).verdict is PASS
    assert look("quota", {**small, "min_free": "1 EB".replace("E", "P")}).verdict is FAIL
    for type_ in ("storage_write", "storage_read"):
        result = look(type_, {"folder": "$DATA", "bytes": 300_000}, environment=environment)
        assert result.verdict is PASS
        assert len(result.samples) == 5
        assert result.measurement > 0
        assert look(type_, {"folder": "relative"}).verdict is NOT_RUN
    assert sorted(each.name for each in tmp_path.iterdir()) == ["data", "file"]


def test_names_clocks_and_the_internet():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert look("internet", {"host": "127.0.0.1", "port": port}).verdict is PASS
    with socket.socket() as silent:
        # Bound, so that no other process answers there, but not listening.
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        refused = look("internet", {"host": "127.0.0.1", "port": port, "seconds": 1})
    assert refused.verdict is FAIL
    assert str(port) in refused.reason
    assert look("dns", {"names": ["localhost"], "at_most": 20}).verdict is PASS
    assert look("dns", {"names": ["no such host"]}).verdict is FAIL
    assert look("dns", {"names": ["x" * 300 + ".example"]}).verdict is FAIL
    chrony = "A,ntp,2,1763755000.1,{offset},0.0001,0.0002,1.0,0.0,0.01,0.001,0.002,64.0,Normal\n"
    for offset, verdict in (("-0.000123", PASS), ("4.2", FAIL)):
        host = FakeHost(programs={"chronyc": ProgramResult(0, chrony.format(offset=offset))})
        assert look("clock_offset", host=host).verdict is verdict
    for said, verdict in (("yes\n", PASS), ("no\n", FAIL)):
        host = FakeHost(
            programs={"chronyc": ProgramResult(1, "506 Cannot talk"), "timedatectl": ProgramResult(0, said)}
        )
        assert look("clock_offset", host=host).verdict is verdict
    assert look("clock_offset", host=FakeHost(programs={})).verdict is NOT_RUN


def test_an_ntp_server_is_asked():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))

        def answer() -> None:
            _, caller = server.recvfrom(512)
            # The first of January 2000: this node's clock is far ahead of it.
            server.sendto(bytes(40) + (2_208_988_800 + 946_684_800).to_bytes(4, "big") + bytes(4), caller)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        name = f"127.0.0.1:{server.getsockname()[1]}"
        result = look("clock_offset", {"server": name})
        thread.join(20)
    assert result.verdict is FAIL
    assert result.measurement > 1e8


def test_affinity_is_near_the_gpus():
    assert cpu_list("0-2,8\n") == {0, 1, 2, 8}
    own = min(os.sched_getaffinity(0))
    path = "/sys/bus/pci/devices/0009:01:00.0/local_cpulist"
    for cpus, verdict in ((f"{own}\n", PASS), ("4000-4100\n", Verdict.DEGRADED)):
        given = {"gpus": Readings(*gpus(1)), "expected_gpus": 1, "host": FakeHost(texts={path: cpus})}
        assert look("affinity", **given).verdict is verdict
    assert look("affinity", {"cpus_per_gpu": 100_000}).verdict is FAIL
    # Where there is no GPU, nothing is said of any.
    assert "GPU" not in look("affinity", expected_gpus=0).reason


def test_the_container_is_asked_by_its_own_python():
    result = look("container", time_limit=300)
    assert result.verdict is PASS, result.reason
    assert result.evidence["gpus"] == 0
    said = ProbeAnswer(evidence=result.evidence)
    assert look("container", {"glibc": "99.9"}, probes=FakeProbes(said)).verdict is FAIL
    few = look("container", probes=FakeProbes(said), expected_gpus=4)
    assert (few.verdict, few.reason) == (FAIL, "torch sees 0 of 4 GPUs.")
    crashed = ProbeAnswer(error="torch can't use the GPUs: RuntimeError: CUDA error")
    assert look("container", probes=FakeProbes(crashed)).verdict is FAIL
    assert look("container", probes=LocalProbes("", {})).verdict is NOT_RUN
    nobody = FakeProbes(ProbeAnswer(evidence={"uid": 1234, "user": None}))
    assert "User 1234 has no name" in look("container", probes=nobody).reason


def test_figures_of_the_cpu_and_their_values():
    few = {"device": "cpu", "samples": 5, "seconds": 0.001}
    least = {"threshold": {"at_least": "1 FLOP/s"}, "time_limit": 300}
    matmul = look("matmul", {**few, "size": 128}, **least)
    assert (matmul.verdict, matmul.unit, len(matmul.samples)) == (PASS, "FLOP/s", 5)
    nothing = look("matmul", {"device": "auto"}, expected_gpus=1, time_limit=300)
    assert (nothing.verdict, nothing.reason) == (FAIL, "RuntimeError: torch sees no GPU")
    memory = look("memory_bandwidth", {**few, "bytes": "1 MiB"}, **least)
    assert (memory.verdict, memory.unit) == (PASS, "B/s")


def test_an_image_without_torch(tmp_path):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')")
    probes = LocalProbes(sys.executable, {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path)})
    few = {"device": "cpu", "samples": 5, "seconds": 0.001}
    most = {"threshold": {"at_least": "1 PB/s"}, "probes": probes}
    memory = look("memory_bandwidth", {**few, "bytes": "1 MiB"}, **most)
    assert (memory.verdict, "less than 1 PB/s" in memory.reason) == (FAIL, True)
    matmul = look("matmul", {**few, "size": 128}, probes=probes)
    assert (matmul.verdict, len(matmul.samples)) == (PASS, 5), "numpy does it"
    for type_ in ("matmul", "host_copy", "memory_bandwidth"):
        lacking = look(type_, probes=probes, expected_gpus=1)
        assert (lacking.verdict, "Install torch in the image" in lacking.fix) == (NOT_RUN, True)
    container = look("container", probes=probes)
    assert (container.verdict, "torch can't be imported" in container.reason) == (FAIL, True)


def test_libraries_of_a_folder(tmp_path):
    libraries = look("libraries", {"folder": str(tmp_path)})
    assert libraries.verdict is FAIL
    (tmp_path / "libbroken.so").write_text("no library")
    assert "libbroken.so" in look("libraries", {"folder": str(tmp_path)}).reason


def collective(world: int, method: str, port: int) -> list[ProbeAnswer]:
    entry = parse_entry({"type": "collective", "scope": "all", "parameters": {
        "method": method, "device": "cpu", "payload": 65_536, "warmup_payload": 1024, "samples": 5,
    }, "time_limit": 120})  # fmt: skip
    spec = group_probe(entry)
    answers: list[ProbeAnswer] = [ProbeAnswer(error="did not run")] * world

    def rank(number: int) -> None:
        place = {"RANK": str(number), "WORLD_SIZE": str(world), "LOCAL_RANK": str(number)}
        master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PATH": "/usr/bin:/bin"}
        answers[number] = LocalProbes(sys.executable, {**place, **master}).run(spec)

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


@pytest.mark.parametrize("method", ["allreduce", "send"])
def test_a_collective_over_two_ranks(method):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for answer in collective(2, method, port):
        assert answer.error == ""
        assert answer.wrong == 0
        assert len(answer.samples) == 5
        assert answer.evidence["backend"] == "gloo"


def test_a_probe_that_hangs_floods_or_breaks_is_an_answer(tmp_path):
    probes = LocalProbes(sys.executable, {"PATH": "/usr/bin:/bin"})

    def said(code: str, limit: float = 60.0) -> ProbeAnswer:
        file = tmp_path / "probe.py"
        file.write_text(code)
        return probes.run(ProbeSpec(argv=(str(file),), time_limit_s=limit))

    marker = tmp_path / "child"
    hanging = "import subprocess, time; p = subprocess.Popen(['sleep', '1000']);"
    hanging += f"open({str(marker)!r}, 'w').write(str(p.pid)); time.sleep(1000)"
    assert "time limit" in said(hanging, 3.0).error
    # SIGKILL has been sent, and a busy machine may take a moment to end the child.
    deadline = time.monotonic() + 10
    while (child := Process.of(int(marker.read_text()))) is not None:
        assert time.monotonic() < deadline, child
        time.sleep(0.05)
    assert "NameError" in said("nonsense").error
    assert "signal 11" in said("import os; os.kill(os.getpid(), 11)").error
    assert "without an answer" in said("print('{\"gipfel_probe\": 2}')").error
    assert "without an answer" in said("print('{' * 100000)").error
    noisy = "print('NCCL WARN something'); print('{\"gipfel_probe\": 1, \"samples\": [1.0]}'); print('bye')"
    assert said(noisy).samples == (1.0,)
    assert said("import sys\nfor _ in range(100000): print('x' * 100)").error
    assert read_answer(b'{"gipfel_probe": 1, "samples": ["NaN?"]}', status=0).error
    assert LocalProbes("/no/python", {}).run(ProbeSpec(argv=("x",))).missing == "python"
