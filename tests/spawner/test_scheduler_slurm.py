"""The slurm adapter: its argv as a property, its errors with small programs, the rest on a real Slurm."""

import asyncio
import importlib.util
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from gipfel_cluster.job import batch_script
from gipfel_cluster.model import GipfelError
from gipfel_cluster.scheduler.machine import run_as_prefix
from gipfel_cluster.scheduler.protocol import JobRequest, JobStatus, LostJobError
from gipfel_cluster.scheduler.slurm import SlurmScheduler, submit_arguments

_TEXTS = (
    "name",
    "partition",
    "account",
    "qos",
    "reservation",
    "constraint",
    "memory",
    "exclude",
    "time",
    "output",
)
_HOSTILE = st.one_of(
    st.text(max_size=40),
    st.text(alphabet="a1-=\n\r\0\u2028\x85 #;$`'\"|&%/", max_size=40),
    st.sampled_from(
        ["x\n#SBATCH --uid=0", "--wrap=id", "-x", "x --uid=0", "$(id)", "\u2028#SBATCH", "1:00:00\n"]
    ),
)


@settings(max_examples=400, deadline=None)
@given(
    st.dictionaries(st.sampled_from((*_TEXTS, "directory", "user")), _HOSTILE, max_size=6),
    st.dictionaries(_HOSTILE, _HOSTILE, max_size=2),
)
def test_no_value_adds_a_line_a_directive_or_an_argument(
    values: dict[str, str], environment: dict[str, str]
) -> None:
    plain: dict[str, Any] = {"name": "n", "script": batch_script("/python"), "directory": "/home/ada"}
    try:
        request = JobRequest.model_validate(plain | values | {"environment": environment})
    except ValidationError:
        return
    argv = submit_arguments(request)
    assert request.script == plain["script"]
    expected = {
        "job-name": request.name, "chdir": request.directory, "nodes": "1",
        "output": request.output or "/dev/null",
        "partition": request.partition, "account": request.account, "qos": request.qos,
        "reservation": request.reservation, "constraint": request.constraint, "mem": request.memory,
        "exclude": request.exclude, "time": request.time, "export": "ALL",
    }  # fmt: skip
    assert argv[:2] == ("sbatch", "--parsable")
    assert dict(each[2:].split("=", 1) for each in argv[2:]) == {
        key: each for key, each in expected.items() if each
    }
    for each in argv:
        assert len(each.splitlines()) == 1
        assert not set(each) & set("\n\r\0\x85\u2028\u2029")
    for name in request.environment:
        assert not name.startswith(("SBATCH_", "SQUEUE_")), "would be read as an option"
    prefix = run_as_prefix(request.user, "sudo -u {username} --")
    assert prefix in {(), ("sudo", "-u", request.user, "--")}
    assert not request.user.startswith("-")


@given(st.text(max_size=60).filter(lambda text: "\0" not in text))
def test_an_interpreter_stays_one_word_of_the_script(python: str) -> None:
    first, rest = batch_script(python).split("\n", 1)
    assert first == "#!/bin/sh"
    assert shlex.split(rest) == ["exec", python, "-I", "-m", "gipfel_cluster.job"]


def program(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def fake(folder: Path, limit: float = 5) -> SlurmScheduler:
    return SlurmScheduler(environment={"PATH": f"{folder}:{os.environ['PATH']}"}, limit=limit)


REQUEST = JobRequest(name="t", script="#!/bin/sh\ntrue\n", directory="/", environment={"SECRET": "s3cret"})


def test_values_travel_in_the_environment_only(tmp_path: Path) -> None:
    program(
        tmp_path,
        "sbatch",
        f'echo "$@" > {tmp_path}/argv; env > {tmp_path}/env; cat > {tmp_path}/script; echo "7;c"',
    )
    assert asyncio.run(fake(tmp_path).submit(REQUEST)) == "7"
    assert "s3cret" not in (tmp_path / "argv").read_text()
    assert "SECRET=s3cret" in (tmp_path / "env").read_text()
    assert (tmp_path / "script").read_text() == REQUEST.script
    assert "CUDA_VISIBLE_DEVICES=\n" in (tmp_path / "env").read_text()


def test_a_slurm_that_does_not_answer_is_one_line_and_unknown(tmp_path: Path) -> None:
    for name in ("sbatch", "squeue", "scancel", "sinfo", "scontrol"):
        program(tmp_path, name, "sleep 60 & wait")

    async def run() -> None:
        slurm = fake(tmp_path, limit=0.3)
        began = time.monotonic()
        statuses = await slurm.query(["1", "2"])
        assert {each.answer for each in statuses.values()} == {"unknown"}
        for call in (slurm.submit(REQUEST), slurm.cancel("1"), slurm.address("n1"), slurm.partitions()):
            with pytest.raises(
                GipfelError, match=r"^Slurm did not answer within (?:0\.3|1\.8) s \(s\w+\)\."
            ) as caught:
                await call
            assert "\n" not in str(caught.value)
        assert time.monotonic() - began < 10

    asyncio.run(run())


@pytest.mark.parametrize(
    ("squeue", "answer"),
    [
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", "ended"),
        (
            "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1",
            "unknown",
        ),
        ("echo 'squeue: fatal: Could not establish a configuration source' >&2; exit 1", "unknown"),
        ("exit 1", "unknown"),
        ("exit 0", "ended"),
        ("printf '\\377\\376|garbage'", "unknown"),
        ("echo '||||||||||'", "unknown"),
        ("echo 'Welcome to the cluster.'; echo '5|RUNNING|n1|N/A|0|None|normal|1|N/A|'", "ended"),
        ("yes x", "unknown"),
        ("printf '4|PENDING|n|N/A|0|R|p|%05000d|x|' 1", "unknown"),
    ],
)
def test_only_an_answer_of_slurm_can_end_a_job(tmp_path: Path, squeue: str, answer: str) -> None:
    program(tmp_path, "squeue", squeue)
    assert asyncio.run(fake(tmp_path).query(["4"]))["4"].answer == answer


def test_a_missing_slurm_is_one_line(tmp_path: Path) -> None:
    slurm = SlurmScheduler(environment={"PATH": str(tmp_path)})
    with pytest.raises(GipfelError, match="can't be run: No such file"):
        asyncio.run(slurm.submit(REQUEST))
    assert asyncio.run(slurm.query(["1"]))["1"].answer == "unknown"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("echo hello; echo world", "printed no job id"),
        (":", "printed no job id"),
        ("yes x", "printed more"),
    ],
)
def test_a_job_without_a_printed_id_may_exist(tmp_path: Path, body: str, said: str) -> None:
    program(tmp_path, "sbatch", body)
    with pytest.raises(LostJobError, match=said) as caught:
        asyncio.run(fake(tmp_path).submit(REQUEST.model_copy(update={"mark": "gipfel-7"})))
    assert caught.value.mark == "gipfel-7"


def one_machine() -> ModuleType:
    path = Path(__file__).parents[1] / "cluster/one_machine.py"
    sys.path.insert(0, str(path.parent))
    try:
        spec = importlib.util.spec_from_file_location("one_machine", path)
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault("one_machine", module)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


@pytest.fixture(scope="module")
def real() -> Iterator[Any]:
    module = one_machine()
    if module.missing():
        pytest.skip(module.missing())
    with tempfile.TemporaryDirectory(prefix="gipfel-s-", dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        with module.OneMachine(Path(folder) / "slurm") as machine:
            yield machine


async def ended(slurm: SlurmScheduler, job: str) -> JobStatus:
    end = time.monotonic() + 40
    while (status := (await slurm.query([job]))[job]).answer != "ended":
        assert time.monotonic() < end, status
        await asyncio.sleep(0.2)
    return status


@pytest.mark.cluster
class TestReal:
    def slurm(self, real: Any) -> SlurmScheduler:
        return SlurmScheduler(environment={**os.environ, **real.environment})

    def test_a_job_of_another_user_with_gpus(self, real: Any, tmp_path: Path) -> None:
        async def run() -> None:
            slurm = self.slurm(real)
            log = f"/tmp/gipfel-test-{os.getpid()}-%j"
            script = (
                '#!/bin/sh\necho "$(id -un) [$CUDA_VISIBLE_DEVICES] $PWD $COLOUR $SLURM_JOB_ID"\nexit 5\n'
            )
            request = JobRequest(
                name="test", script=script, directory="/", output=log, gpus_per_node=2, time="5",
                user="nobody",
                environment={"COLOUR": "light blue, dark"},
            )  # fmt: skip
            job = await slurm.submit(request)
            status = await ended(slurm, job)
            text = Path(log.replace("%j", job)).read_text()
            Path(log.replace("%j", job)).unlink()
            assert text == f"nobody [0,1] / light blue, dark {job}\n"
            assert (status.state, status.exit_code) == ("FAILED", 5)
            assert status.nodes[0] in real.node_names

        asyncio.run(run())

    @pytest.mark.parametrize(
        "prefix",
        [
            "runuser -u {username} --",
            "setpriv --reuid={uid} --regid={gid} --init-groups --",
            "setpriv --reuid={username} --regid={gid} --clear-groups env --",
        ],
    )
    def test_every_way_to_act_as_a_user_submits_and_cancels(self, real: Any, prefix: str) -> None:
        mark = f"gipfel-test-{abs(hash(prefix))}"

        async def run() -> None:
            slurm = SlurmScheduler(environment={**os.environ, **real.environment}, exec_prefix=prefix)
            request = REQUEST.model_copy(
                update={"script": "#!/bin/sh\nsleep 300\n", "user": "nobody", "mark": mark}
            )
            job = await slurm.submit(request)
            owner = real.call(["squeue", "--noheader", f"--jobs={job}", "--format=%u"]).strip()
            assert owner == "nobody"
            assert await slurm.find(mark, "nobody") == job
            assert await slurm.find(mark, "daemon") is None
            assert await slurm.find(mark, "no-such-user") is None
            assert await slurm.find(f"{mark}0", "nobody") is None
            await slurm.cancel(job, user="nobody")
            assert (await ended(slurm, job)).state == "CANCELLED"

        asyncio.run(run())

    def test_query_returns_queue_position_and_requested_resources(self, real: Any) -> None:
        async def run() -> None:
            slurm = self.slurm(real)
            request = REQUEST.model_copy(
                update={"script": "#!/bin/sh\nsleep 300\n", "nodes": 2, "gpus_per_node": 4, "time": "10"}
            )
            jobs = [await slurm.submit(request) for _ in range(3)]
            end = time.monotonic() + 40
            while (last := (await slurm.query(jobs))[jobs[2]]).queue_position != 2 or not last.expected_start:
                assert time.monotonic() < end, last
                await asyncio.sleep(1)
            assert (last.requested, last.partition, last.blocked) == (
                "2 nodes with 4 GPUs each",
                "normal",
                False,
            )
            for job in reversed(jobs):
                await slurm.cancel(job)
            await ended(slurm, jobs[0])

        asyncio.run(run())

    def test_several_jobs_in_one_query_with_reason_and_cancel(self, real: Any) -> None:
        async def run() -> None:
            slurm = self.slurm(real)
            request = REQUEST.model_copy(
                update={"script": "#!/bin/sh\nsleep 300\n", "nodes": 2, "gpus_per_node": 4}
            )
            first, second = await slurm.submit(request), await slurm.submit(request)
            end = time.monotonic() + 30
            while True:
                statuses = await slurm.query([first, second, "999999"])
                if (
                    statuses[first].state == "RUNNING"
                    and statuses[second].reason == "no fitting nodes are free"
                ):
                    break
                assert time.monotonic() < end, statuses
                await asyncio.sleep(0.3)
            assert statuses["999999"].answer == "ended"
            assert statuses[first].nodes == tuple(real.node_names)
            assert statuses[second].answer == "running"
            await slurm.cancel(second)
            await slurm.cancel(first)
            assert (await ended(slurm, first)).state == "CANCELLED"
            await slurm.cancel(first)
            await slurm.cancel("999999")

        asyncio.run(run())

    def test_partitions_addresses_and_refusals(self, real: Any) -> None:
        async def run() -> None:
            slurm = self.slurm(real)
            normal = next(each for each in await slurm.partitions() if each.default)
            assert (normal.nodes, normal.gpus[0].type, normal.gpus[0].count) == (2, "gh200", 4)
            node = real.node_names[0]
            assert await slurm.address(node) == str(real.addresses[node])
            with pytest.raises(GipfelError, match="Slurm refused"):
                await slurm.address("nowhere")
            with pytest.raises(GipfelError, match=r"Invalid partition name specified\. Pick another"):
                await slurm.submit(REQUEST.model_copy(update={"partition": "nope"}))
            with pytest.raises(
                GipfelError, match=r"Requested node configuration is not available\. Ask for fewer"
            ):
                await slurm.submit(REQUEST.model_copy(update={"gpus_per_node": 9}))

        asyncio.run(run())
