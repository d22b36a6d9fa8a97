"""``gipfel record``: the command is unaffected, with real processes, signals, terminals and recorders."""

import contextlib
import fcntl
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from gipfel_extension.telemetry.live import LiveReader
from gipfel_extension.telemetry.store.segments import read_samples
from gipfel_extension.telemetry.user_metrics import read_metrics
from gipfel_widgets.run import node_name, run_at

_LIMIT_S = 60
#: Says that it is ready, counts a signal for a while after the first, and ends with the count as its status.
_COUNTS = """
import signal, sys, time
counts = {}
def count(number, _):
    counts[number] = counts.get(number, 0) + 1
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGWINCH):
    signal.signal(number, count)
print("ready", flush=True)
ends = time.monotonic() + 30
while not counts and time.monotonic() < ends:
    time.sleep(0.01)
ends = time.monotonic() + 0.6
while time.monotonic() < ends:
    time.sleep(0.01)
print(sorted((signal.Signals(n).name, c) for n, c in counts.items()), flush=True)
"""


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of a user without a job."""
    own = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "GIPFEL_"))}
    return {**own, "HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture
def words(runs: Path) -> Callable[..., list[str]]:
    def argv(*command: str, source: str = "synthetic:training", to: Path = runs) -> list[str]:
        options = ["--runs", str(to), "--interval", "0.1", "--source", source]
        return [sys.executable, "-m", "gipfel_extension.cli", "record", *options, "--", *command]

    return argv


@pytest.fixture
def started(environment: dict[str, str]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a command in a separate session, and ends what is left of it."""
    found: list[subprocess.Popen[str]] = []

    def start(argv: list[str], **how: Any) -> subprocess.Popen[str]:
        how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True, **how}
        found.append(subprocess.Popen(argv, env=environment, text=True, **how))
        return found[-1]

    yield start
    for each in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in [*psutil.Process(each.pid).children(recursive=True), psutil.Process(each.pid)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        each.communicate(timeout=10)


def folder(runs: Path) -> Path:
    (found,) = runs.iterdir()
    return found


def recorder(pid: int) -> psutil.Process:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        for child in psutil.Process(pid).children():
            # A child may end between the two calls.
            with contextlib.suppress(psutil.NoSuchProcess):
                if "gipfel_extension.recorder" in child.cmdline():
                    return child
        time.sleep(0.02)
    raise AssertionError("no recorder")


def ended(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        process.wait(10)
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143), ("kill -KILL $$", 137)]
)
def test_the_exit_status_is_the_commands(words, environment, runs, script, status):
    done = subprocess.run(
        words("sh", "-c", script), env=environment, capture_output=True, text=True, timeout=_LIMIT_S
    )
    assert (done.returncode, done.stdout) == (status, "")
    record = json.loads((folder(runs) / "record.json").read_text())
    assert (record["exit_status"], record["command"]) == (status, ["sh", "-c", script])
    assert done.stderr.count("\n") == 1
    assert f"`gipfel score {folder(runs)}`" in done.stderr
    # A command that ended at once has a sample all the same.
    table = read_samples(folder(runs) / "telemetry")
    assert table.rows >= 4
    assert [each.state for each in table.segments] == ["closed"]
    # Scored already, by a process that is gone.
    assert json.loads((folder(runs) / "score.json").read_text())["simulated"] is True


def test_it_is_live_for_a_notebook_and_takes_metrics_from_a_file(words, started, runs, tmp_path):
    argv = words(source="host")[:-1]
    argv += ["--metric", "NVDEC0_ACTIVE", "--metrics", str(tmp_path / "train.jsonl"), "--"]
    code = (
        "import os, sys, time\n"
        "with open(sys.argv[1], 'a') as file: file.write('{\"step\": 1, \"loss\": 0.5}\\n')\n"
        "while not os.path.exists(sys.argv[2]): time.sleep(0.05)\n"
    )
    command = [*argv, sys.executable, "-c", code, str(tmp_path / "train.jsonl"), str(tmp_path / "enough")]
    process = started(command)
    deadline = time.monotonic() + _LIMIT_S
    while not list(runs.glob("*/live-*.json")) or not list(runs.glob("*/metrics.jsonl")):
        assert time.monotonic() < deadline, process.poll()
        time.sleep(0.05)
    run = run_at(folder(runs), {})
    assert run.sockets is not None
    with contextlib.closing(LiveReader(run.sockets)) as reader:
        tick = reader.receive(_LIMIT_S)
    assert tick is not None
    assert tick.samples[0].device.startswith("host:")
    (tmp_path / "enough").touch()
    assert process.wait(_LIMIT_S) == 0
    # Nothing is left of the stream, and a note that leads elsewhere is not followed.
    assert not run.sockets.exists()
    assert run_at(folder(runs), {}).sockets is None
    (run.path / f"live-{node_name({})}.json").write_text(json.dumps({"sockets": "/tmp"}))
    assert run_at(folder(runs), {}).sockets is None
    loss = read_metrics(folder(runs)).find("loss")
    assert loss is not None
    assert loss.values.tolist() == [0.5]


def test_arguments_streams_and_files_are_the_commands(words, environment, tmp_path):
    arguments = ["", "two words", "--help", "--", "-x", "$HOME;'\"", "line\nbreak", "\udcff"]
    code = "import os, sys; print([os.fsencode(a) for a in sys.argv[1:]], file=sys.stderr); "
    code += "sys.stdout.write(sys.stdin.read().upper()); os.write(int(os.environ['EXTRA']), b'more')"
    reads, writes = os.pipe()
    os.set_inheritable(writes, True)
    done = subprocess.run(
        words(sys.executable, "-c", code, *arguments),
        env={**environment, "EXTRA": str(writes)},
        input="given", capture_output=True, text=True, timeout=_LIMIT_S, pass_fds=[writes],
    )  # fmt: skip
    os.close(writes)
    assert done.stdout == "GIVEN"
    assert done.stderr.splitlines()[0] == str([os.fsencode(each) for each in arguments])
    # Nobody else holds it open.
    assert (os.read(reads, 9), os.read(reads, 9)) == (b"more", b"")
    os.close(reads)


def test_a_reader_sees_the_end_when_the_command_closes_its_output(words, started):
    code = "import os, time; os.write(1, b'all'); os.close(1); time.sleep(20)"
    process = started(words(sys.executable, "-c", code))
    before = time.monotonic()
    assert process.stdout.read() == "all"
    assert time.monotonic() - before < 15
    assert process.poll() is None


@pytest.mark.parametrize(
    ("to", "number"),
    [
        *(("process", each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)),
        ("group", signal.SIGINT),
        ("everyone", signal.SIGTERM),
    ],
)
def test_a_signal_reaches_the_command_once(words, started, number, to):
    process = started(words(sys.executable, "-c", _COUNTS))
    assert process.stdout.readline() == "ready\n"
    if to == "process":
        process.send_signal(number)
    elif to == "group":
        os.killpg(process.pid, number)
    else:
        # As Slurm does it: one after the other.
        beside = recorder(process.pid)
        for each in (process.pid, *(c.pid for c in psutil.Process(process.pid).children() if c != beside)):
            os.kill(each, number)
    assert process.stdout.readline() == f"[('{number.name}', 1)]\n"
    assert process.wait(20) == 0


def test_ctrl_c_at_a_terminal_reaches_the_command_once(words, started):
    ours, theirs = pty.openpty()
    process = started(
        words(sys.executable, "-c", "import os, sys; assert os.isatty(0) and os.isatty(1)\n" + _COUNTS),
        stdin=theirs, stdout=theirs, stderr=subprocess.PIPE,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    for word in (b"ready", b"]"):
        if word == b"]":
            os.write(ours, b"\x03")
        while word not in seen:
            seen += os.read(ours, 1000)
    assert b"[('SIGINT', 1)]" in seen
    assert process.wait(20) == 0
    assert not process.stderr.read().count("Traceback")
    os.close(ours)


def test_a_signal_reaches_the_command_once_where_the_monitor_has_not_run_yet(words, started):
    process = started(words(sys.executable, "-c", _COUNTS))
    assert process.stdout.readline() == "ready\n"
    # Until its exec, a recorder has this process's command line, as the monitor has.
    recorder(process.pid)
    family = psutil.Process(process.pid)
    (monitor,) = [each for each in family.children() if each.cmdline() == family.cmdline()]
    monitor.suspend()
    while monitor.status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    # Three times as long as the monitor has on an idle machine.
    time.sleep(0.3)
    monitor.resume()
    assert process.stdout.readline() == "[('SIGINT', 1)]\n"
    assert process.wait(20) == 0


def test_what_the_caller_ignores_stays_ignored(words, environment):
    code = "import signal; print(signal.getsignal(signal.SIGHUP).name, signal.getsignal(signal.SIGPIPE).name)"
    done = subprocess.run(
        ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *words(sys.executable, "-c", code)],
        env=environment, capture_output=True, text=True, timeout=_LIMIT_S,
    )  # fmt: skip
    # Python itself ignores SIGPIPE, which the command must not inherit from us.
    assert done.stdout == "SIG_IGN SIG_IGN\n"
    ask = ["sh", "-c", "grep SigIgn /proc/self/status"]
    inherited, done = (
        subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_LIMIT_S)
        for command in (ask, words(*ask))
    )
    # Whoever runs the tests may ignore a signal that Python cannot name; subprocess gives SIGPIPE back.
    assert done.stdout == inherited.stdout


def test_the_recorders_death_never_touches_the_command(words, started, runs):
    process = started(words("sh", "-c", "read line; echo $line; exit 5"), stdin=subprocess.PIPE)
    recorder(process.pid).kill()
    out, told = process.communicate("still here\n", timeout=20)
    assert (process.returncode, out) == (5, "still here\n")
    assert "The recorder ended early" in told


def test_what_stands_beside_ends_when_this_is_killed_and_the_command_goes_on(words, started):
    process = started(words(sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(30)"))
    assert process.stdout.readline() == "begun\n"
    recorder(process.pid)
    beside = psutil.Process(process.pid).children()
    command = next(each for each in beside if each.cmdline()[1] == "-c")
    beside.remove(command)
    assert len(beside) == 2
    process.kill()
    try:
        assert all(ended(each) for each in beside)
        assert command.is_running()
    finally:
        command.kill()


def test_a_command_that_cannot_run(words, environment, tmp_path):
    plain = tmp_path / "plain"
    plain.write_text("data")
    for command, status in (("no-such-program", 127), (str(plain), 126)):
        done = subprocess.run(
            words(command), env=environment, capture_output=True, text=True, timeout=_LIMIT_S
        )
        assert done.returncode == status
        assert "can't be run" in done.stderr
        assert "Traceback" not in done.stderr


def test_without_a_place_for_the_record_the_command_runs(words, environment, runs):
    runs.write_text("a file where the folder should be")
    done = subprocess.run(
        words("sh", "-c", "echo done; exit 4"),
        env=environment, capture_output=True, text=True, timeout=_LIMIT_S,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (4, "done\n")
    assert done.stderr.startswith("gipfel: Nothing is recorded: ")


def test_a_source_that_is_none_is_one_line_and_the_command_runs(words, environment):
    done = subprocess.run(
        words("sh", "-c", "exit 3", source="nonsense"),
        env=environment, capture_output=True, text=True, timeout=_LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 3
    assert "There is no source 'nonsense'" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="mounts a small file system")
def test_a_full_disk_never_touches_the_command(words, environment, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    code = "import os, sys, time\nfrom gipfel_widgets import log\n"
    code += f"held = open({str(small / 'fill')!r}, 'wb', buffering=0)\n"
    code += "try:\n    while True: held.write(bytes(4096))\nexcept OSError: pass\n"
    code += "for step in range(2000): log(step=step)\n"
    code += "time.sleep(2.5); print('worked'); sys.exit(6)"
    script = f'mount -t tmpfs -o size=256k none {small} && "$@"; s=$?; cat {small}/runs/*/rec*.json; exit $s'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh",
         *words(sys.executable, "-c", code, to=small / "runs")],
        env=environment, capture_output=True, text=True, timeout=_LIMIT_S,
    )  # fmt: skip
    if "Operation not permitted" in done.stderr:
        pytest.skip("no mounts here")
    worked, _, record = done.stdout.partition("\n")
    assert (done.returncode, worked) == (6, "worked")
    assert "Traceback" not in done.stderr
    assert sum("metrics.jsonl can't be written" in line for line in done.stderr.splitlines()) == 1
    # Putting the live stream away gives the disk some room back, which the recorder or the record takes.
    assert (json.loads(record)["ended"] is None) == (
        "The end of this run can't be written to its record: No space left" in done.stderr
    )


def test_in_a_slurm_step_the_first_of_a_node_records_for_all(words, environment, runs):
    step = {"SLURM_JOB_ID": "48812", "SLURM_STEP_ID": "3", "SLURM_STEP_NUM_TASKS": "4"}
    step["SLURM_CLUSTER_NAME"] = "alps"
    code = "import os; from gipfel_widgets import log; log(step=1); print(os.environ['GIPFEL_RUN'])"
    tasks = [
        subprocess.Popen(
            words(sys.executable, "-c", code),
            env={**environment, **step, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank % 2),
                 "SLURMD_NODENAME": f"nid{rank // 2}"},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(4)
    ]  # fmt: skip
    answers = [task.communicate(timeout=_LIMIT_S) for task in tasks]
    run = folder(runs)
    assert run.name == "alps-48812.3"
    assert {out for out, _ in answers} == {f"{run}\n"}
    assert [bool(told) for _, told in answers] == [True, False, False, False]
    assert sorted({each.provenance.node for each in read_samples(run / "telemetry").segments}) == [
        "nid0",
        "nid1",
    ]
    assert len(read_samples(run / "telemetry").segments) == 2
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert sorted((line["rank"], line["node"]) for line in lines) == [
        (0, "nid0"), (1, "nid0"), (2, "nid1"), (3, "nid1")
    ]  # fmt: skip


def test_ranks_with_gpus_of_their_own_record_them(words, environment, runs):
    step = {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    step["SLURM_GPUS_PER_TASK"] = "1"
    own = {**environment, **step, "SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURMD_NODENAME": "nid0"}
    subprocess.run(words("true"), env=own, timeout=_LIMIT_S, check=True)
    (segment,) = read_samples(folder(runs) / "telemetry").segments
    assert segment.provenance.recorder == "rank1"


def test_a_job_may_record_several_commands(words, environment, runs):
    own = {**environment, "SLURM_JOB_ID": "7", "GIPFEL_CLUSTER": "alps", "GIPFEL_RUN": "/beside"}
    for _ in range(2):
        subprocess.run(words("true"), env=own, timeout=_LIMIT_S, check=True)
    assert sorted(each.name for each in runs.iterdir()) == ["alps-7", "alps-7-2"]
    assert json.loads((runs / "alps-7/record.json").read_text())["beside"] == "/beside"


@pytest.mark.parametrize("words_of", [[], ["--interval", "0", "--", "true"], ["--nope", "--", "true"]])
def test_a_wrong_command_line_is_2(environment, words_of):
    argv = [sys.executable, "-m", "gipfel_extension.cli", "record", *words_of]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=_LIMIT_S)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
