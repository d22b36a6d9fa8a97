"""One configuration of storage classes, used by everything that takes a path: the doors."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_checkpoints_list import write_checkpoint

from gipfel_cluster.job.staging import StageRequest, stage_before_start, stage_request
from gipfel_cluster.model import GipfelError, split_list
from gipfel_extension.services.blueprint import read_blueprint
from gipfel_extension.services.directory import ServiceSpec, storage_directory
from gipfel_extension.training.launch import Launch, launch
from gipfel_extension.training.record.spec import LaunchSpec
from gipfel_spawner.form.options import UserOptions

Environment = dict[str, str]


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """The environment of a server at a site that configures all classes in one file."""
    for name in ("fast", "shared", "keep"):
        (tmp_path / "site" / name / "x").mkdir(parents=True)
        (tmp_path / "site" / name / "x" / "data.bin").write_bytes(name.encode())
    classes = {name: {"directory": f"$SITE/{name}"} for name in ("fast", "shared", "keep")}
    (tmp_path / "storage.yaml").write_text(json.dumps(classes))
    (tmp_path / "home").mkdir()
    return {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(tmp_path / "home"),
        "SITE": str(tmp_path / "site"), "GIPFEL_STORAGE": str(tmp_path / "storage.yaml"),
        "GIPFEL_RUNS": str(tmp_path / "runs"), "GIPFEL_SCHEDULER": "local",
    }  # fmt: skip


def gipfel(environment: Environment, *words: str) -> Any:
    argv = [sys.executable, "-m", "gipfel_extension.cli", *words, "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def stage(place: str, environment: Environment, _: Path) -> str:
    found = gipfel(environment, "data", "stage", f"{place}/data.bin", "--to", "memory")
    Path(found["folder"], "stop").touch()
    return str(Path(*found["data"]).parent)


def status(place: str, environment: Environment, _: Path) -> str:
    name, _, rest = place.partition(":")
    return f"{gipfel(environment, 'data', 'status')['classes'][name]}/{rest}"


def checkpoints(place: str, environment: Environment, tmp_path: Path) -> str:
    write_checkpoint(tmp_path / "site" / place.replace(":", "/"), 5)
    return str(gipfel(environment, "checkpoints", place)["space"][0]["directory"])


def training(place: str, environment: Environment, _: Path) -> str:
    program = (
        "import sys, torch.distributed as d; from gipfel_widgets.checkpoints import Checkpoints\n"
        "d.init_process_group('gloo', init_method=f'file://{sys.argv[2]}', rank=0, world_size=1)\n"
        "c = Checkpoints(sys.argv[1]); print(c.directory); c.close()"
    )
    argv = [sys.executable, "-W", "ignore", "-c", program, place, f"{environment['HOME']}/rendezvous"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, env=environment, check=True)
    return done.stdout.strip()


def launch_checkpoint(place: str, environment: Environment, tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text("import os; print('AT', os.environ['GIPFEL_CHECKPOINT'], flush=True)")
    spec = LaunchSpec(target="train.py", launcher="srun", gpus_per_node=1, checkpoint=place)
    started = launch(spec, environment, directory=tmp_path)
    assert isinstance(started, Launch)
    assert started.wait(120) == 0, started.state
    (line,) = (each.text for each in started.logs().lines if each.text.startswith("AT "))
    return line.removeprefix("AT ")


def blueprint(place: str, environment: Environment, tmp_path: Path) -> str:
    name, _, rest = place.partition(":")
    (tmp_path / "own").mkdir()
    text = f"name: kept\ntitle: Kept\nstorage: {name}\nparts:\n  web: {{command: [serve, '${{socket}}']}}\n"
    (tmp_path / "kept.yaml").write_text(text)
    plan = read_blueprint(tmp_path / "kept.yaml")
    found = storage_directory(ServiceSpec(name="kept", blueprint=plan), tmp_path / "own", environment)
    assert found.parent.name == f"gipfel-services-{os.geteuid()}"
    return str(found.parents[1] / rest)


def staged_before_start(request: StageRequest, environment: Environment, tmp_path: Path) -> str:
    (tmp_path / "run").mkdir()
    note = stage_before_start(request, tmp_path / "run", environment, lambda: False)
    assert note.startswith("transfer 1: 6 B staged") or "staged on 1 of 1 nodes" in note, note
    folder = tmp_path / "run" / "transfers" / "1"
    (folder / "stop").touch()
    return str(Path(*json.loads((folder / "spec.json").read_text())["data"]).parent)


def form(place: str, environment: Environment, tmp_path: Path) -> str:
    options = UserOptions(stage=f"{place}/data.bin")
    request = StageRequest(data=split_list(options.stage), to="memory")
    return staged_before_start(request, environment, tmp_path)


def edf(place: str, environment: Environment, tmp_path: Path) -> str:
    request = stage_request({"com.gipfel.stage.data": f"{place}/data.bin", "com.gipfel.stage.to": "memory"})
    assert request
    return staged_before_start(request, environment, tmp_path)


@pytest.mark.parametrize("name", ["fast", "shared", "keep"])
@pytest.mark.parametrize(
    "door", [stage, status, checkpoints, training, launch_checkpoint, blueprint, form, edf]
)
def test_a_class_is_the_same_directory_through_every_door(
    tmp_path: Path, environment: Environment, name: str, door: Callable[[str, Environment, Path], str]
) -> None:
    place = str(tmp_path / "site" / name / "x")
    if name == "fast" and door in {form, edf}:
        # Data on the node itself need not be copied there, and is not on the other nodes.
        with pytest.raises((GipfelError, ValueError), match=r"shared:|absolute"):
            door(f"{name}:x", environment, tmp_path)
    else:
        assert door(f"{name}:x", environment, tmp_path) == place
