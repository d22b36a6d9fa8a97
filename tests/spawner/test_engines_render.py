"""Rendering of an EDF by each engine: argv lists and environments, exact to the byte."""

import csv
import hashlib
import json
import subprocess
from pathlib import Path

import pytest

from gipfel_cluster.edf import Edf, Mount
from gipfel_cluster.engines import ContainerRequest, Invocation, engine_for
from gipfel_cluster.engines.bubblewrap import Bubblewrap
from gipfel_cluster.engines.devices import Hardware
from gipfel_cluster.engines.podman import Podman
from gipfel_cluster.hooks import engine_invocation
from gipfel_cluster.model import GipfelError
from gipfel_cluster.staged import StagedPath

ODD = "a  \"b\" 'c' $HOME ${HOME} `x` \\n ü€𝄞 # ; | & * ? ~ %s = :,"
NOTHING = Hardware(cdi_directories=(), libraries=lambda: "")
HUB = "jupyter/base-notebook:2026"
STEP = ("--nodes=1", "--ntasks=1")


def request(
    tmp_path: Path, *, environment: dict[str, str] | None = None, render_only: bool = False, **edf: object
) -> ContainerRequest:
    given = {"name": "e", "path": "/edfs/e.toml", "image": HUB, **edf}
    return ContainerRequest(
        edf=Edf.model_validate(given),
        command=("python", "-c", ODD),
        environment={"PATH": "/bin", "HUB_TOKEN": "t", "GONE": "h", **(environment or {})},
        protected=("HUB_*",),
        scratch=str(tmp_path / "scratch"),
        step=STEP,
        render_only=render_only,
    )


def rendered(engine: str, given: ContainerRequest) -> Invocation:
    made = {"podman": Podman(NOTHING, user=lambda: 1000), "bubblewrap": Bubblewrap(NOTHING)}
    return engine_invocation(
        given, made.get(engine) or engine_for(given.edf, engine), python="/usr/bin/python3"
    )


ENGINES = ("ce", "pyxis", "apptainer", "podman")


@pytest.mark.parametrize("engine", ENGINES)
def test_the_command_is_the_end_of_the_argv_byte_by_byte(tmp_path, engine):
    invocation = rendered(engine, request(tmp_path))
    assert invocation.argv[-3:] == ("python", "-c", ODD)


@pytest.mark.parametrize("engine", [*ENGINES, "bubblewrap"])
def test_no_value_of_a_variable_is_in_an_argv(tmp_path, engine):
    image = {"image": str(_image(tmp_path))} if engine == "bubblewrap" else {}
    given = request(
        tmp_path, env={"SECRET": "s3cret-of-the-edf"}, environment={"HUB_TOKEN": "s3cret-t"}, **image
    )
    assert "s3cret" not in " ".join(rendered(engine, given).argv)


@pytest.mark.parametrize("engine", [*ENGINES, "bubblewrap"])
@pytest.mark.parametrize("bad", ["a\nb", "a\0b"])
@pytest.mark.parametrize("key", ["env", "workdir", "mounts", "annotations"])
def test_a_newline_or_nul_is_refused_in_one_line(tmp_path, monkeypatch, engine, bad, key):
    # Sources of mounts are compared with the files that are staged on this node.
    file = tmp_path / "data"
    file.write_bytes(b"1")
    staged = StagedPath(str(file), 1, file.stat().st_mtime_ns, "7", str(file))
    monkeypatch.setattr("gipfel_cluster.hooks.invocation.staged_paths", lambda _: [("nvme", staged)])
    values = {
        "env": {"A": bad},
        "workdir": f"/{bad}",
        "mounts": (Mount(source=f"/{bad}", destination="/a"),),
        "annotations": {"a": bad},
    }
    with pytest.raises(GipfelError, match=f"A value of {key} has a newline") as error:
        rendered(engine, request(tmp_path, **{key: values[key]}))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_variable_with_the_empty_value_is_taken_away(tmp_path, engine):
    invocation = rendered(engine, request(tmp_path, env={"GONE": "", "A": ODD}))
    if engine == "ce":
        # The plugin reads that in the EDF itself.
        assert "--environment=/edfs/e.toml" in invocation.argv
        return
    assert "GONE" not in invocation.environment
    after = {
        "pyxis": ("env", "-u", "GONE"),
        "apptainer": ("env", "-u", "GONE"),
        "podman": ("--unsetenv", "GONE"),
    }
    words = list(invocation.argv)
    assert words[words.index("GONE") - len(after[engine]) + 1 : words.index("GONE") + 1] == list(
        after[engine]
    )
    assert ODD in invocation.environment.values()


def test_ce_reads_the_users_file_and_gets_gipfels_options(tmp_path):
    given = request(tmp_path)
    assert rendered("ce", given).argv[:3] == ("srun", "--environment=/edfs/e.toml", *STEP[:1])
    ours = given.model_copy(
        update={"mounts": (Mount(source="/a", destination="/b", flags=("ro",)),), "workdir": "/w"}
    )
    argv = rendered("ce", ours).argv
    assert {"--container-mounts=/a:/b:ro", "--container-workdir=/w", "--container-env=HUB_TOKEN"} <= set(argv)
    assert rendered(
        "ce", given.model_copy(update={"edf": given.edf.model_copy(update={"devices": ("/dev/fuse",)})})
    ).notes
    with pytest.raises(GipfelError, match="has none"):
        rendered("ce", request(tmp_path, path=None))


def test_pyxis_is_told_every_key(tmp_path):
    given = request(
        tmp_path,
        image="nvcr.io/nvidia/pytorch:25.11-py3",
        workdir="/w x",
        writable=False,
        entrypoint=True,
        mounts=(
            Mount(source="/a b", destination="/c", flags=("ro", "private")),
            Mount(source="/d", destination="/d"),
        ),
        annotations={"com.hooks.cxi.enabled": "true"},
        env={"A": ODD},
    )
    invocation = rendered("pyxis", given)
    assert invocation.argv[: invocation.argv.index("python")] == (
        "srun",
        "--container-image=nvcr.io#nvidia/pytorch:25.11-py3",
        *STEP,
        "--container-mounts=/a b:/c:ro+private,/d:/d",
        "--container-workdir=/w x",
        "--container-readonly",
        "--container-entrypoint",
        "--no-container-mount-home",
        "--container-env=A,HUB_TOKEN",
    )
    assert invocation.environment["A"] == ODD
    assert invocation.environment["OCI_ANNOTATION_com__hooks__cxi__enabled"] == "true"


@pytest.mark.parametrize(
    "mount", [Mount(source="/a,b", destination="/c"), Mount(source="/a", destination="/b:c")]
)
def test_srun_can_carry_neither_comma_nor_colon(tmp_path, mount):
    with pytest.raises(GipfelError, match="comma or a colon"):
        rendered("pyxis", request(tmp_path, mounts=(mount,)))


def test_pyxis_refuses_a_squashfs_mount_and_names_devices(tmp_path):
    with pytest.raises(GipfelError, match="can't mount the SquashFS file"):
        rendered(
            "pyxis", request(tmp_path, mounts=(Mount(source="/a.sqsh", destination="/b", flags=("sqsh",)),))
        )
    assert "ignores devices" in " ".join(rendered("pyxis", request(tmp_path, devices=("/dev/fuse",))).notes)


def test_apptainer_supports_every_key(tmp_path):
    mounts = (
        Mount(source='/a,b:"c" d', destination="/e", flags=("ro",)),
        Mount(source="/x.sqsh", destination="/y", flags=("sqsh",)),
    )
    invocation = rendered("apptainer", request(tmp_path, mounts=mounts, workdir="/w", env={"A": ODD}))
    argv = list(invocation.argv)
    assert argv[:2] == ["apptainer", "exec"]
    assert {"--no-home", "--no-eval", "--writable-tmpfs"} <= set(argv)
    written = [next(csv.reader([argv[at + 1]])) for at, word in enumerate(argv) if word == "--mount"]
    assert written == [
        ["type=bind", 'source=/a,b:"c" d', "destination=/e", "ro"],
        ["type=bind", "source=/x.sqsh", "destination=/y", "image-src=/", "ro"],
    ]
    assert argv[argv.index("--pwd") + 1] == "/w"
    assert f"docker://docker.io/{HUB}" in argv
    assert invocation.environment["APPTAINERENV_A"] == ODD
    assert invocation.environment["APPTAINERENV_HUB_TOKEN"] == "t"
    assert rendered("apptainer", request(tmp_path, entrypoint=True)).argv[1] == "run"
    local = rendered("apptainer", request(tmp_path, entrypoint=True, image="/x.sqsh", writable=False))
    assert "/x.sqsh" in local.argv
    assert "--writable-tmpfs" not in local.argv
    assert "/etc/rc" in " ".join(local.argv)


def test_podman_supports_every_key_for_an_image_in_a_registry(tmp_path):
    source = str(tmp_path)
    mounts = (Mount(source=source, destination="/c:d", flags=("ro", "private")),)
    given = request(
        tmp_path, image="me@nvcr.io#nvidia/x:1", mounts=mounts, workdir="/w", writable=False,
        devices=("nvidia.com/gpu=all", "/dev/fuse"), env={"A": ODD, "PATH": "/of/the/edf"},
    )  # fmt: skip
    invocation = rendered("podman", given)
    argv = list(invocation.argv)
    assert f"type=bind,source={source},destination=/c:d,ro,bind-propagation=private" in argv
    assert {"--read-only", "--userns=keep-id", "--entrypoint=", "--workdir=/w", "--network=host"} <= set(argv)
    assert {"--device=nvidia.com/gpu=all", "--device=/dev/fuse"} <= set(argv)
    assert argv[-4] == "nvcr.io/nvidia/x:1"
    names = [argv[at + 1] for at, word in enumerate(argv) if word == "--env"]
    # Of the host's PATH podman itself has need.
    assert {"A", "HUB_TOKEN", "PATH=/of/the/edf"} <= set(names)
    assert (invocation.environment["A"], invocation.environment["PATH"]) == (ODD, "/bin")
    assert "podman login" in " ".join(invocation.notes)
    assert "--entrypoint=" not in rendered("podman", request(tmp_path, entrypoint=True)).argv
    (tmp_path / "a,b").mkdir()
    comma = request(tmp_path, mounts=(Mount(source=f"{source}/a,b", destination="/c"),))
    with pytest.raises(GipfelError, match="comma or a quote"):
        rendered("podman", comma)


def test_the_plan_is_in_the_environment(tmp_path):
    image = _image(tmp_path)
    for engine, is_podman in (("bubblewrap", False), ("podman", True)):
        given = request(tmp_path, image=str(image), env={"A": ODD}, devices=("/dev/null",), entrypoint=True)
        invocation = rendered(engine, given)
        plan = json.loads(invocation.environment["GIPFEL_CONTAINER"])
        assert invocation.argv[:-2] == ("/usr/bin/python3", "-I", "-S")
        assert invocation.argv[-1] == "container"
        assert Path(invocation.argv[-2]).is_file()
        assert (plan["podman"], plan["env"], plan["command"][-1]) == (is_podman, {"A": ODD}, ODD)
        assert plan["devices"][0]["source"] == "/dev/null"


@pytest.mark.parametrize(
    "device", ["/dev/no-such-device", "/etc/passwd", "vendor.com/class=one", "nvidia.com/gpu=all"]
)
def test_a_device_that_is_not_here_is_one_line(tmp_path, device):
    with pytest.raises(GipfelError) as error:
        rendered("bubblewrap", request(tmp_path, image=str(_image(tmp_path)), devices=(device,)))
    assert device in str(error.value)
    assert error.value.fix


def test_an_argv_of_podman_is_one_that_podman_reads(tmp_path):
    if Podman().unavailable_reason():
        pytest.skip(str(Podman().unavailable_reason()))
    given = request(
        tmp_path, env={"A": ODD, "GONE": ""}, workdir="/w", mounts=(Mount(source="/usr", destination="/u"),)
    )
    argv = list(rendered("podman", given).argv)
    at = argv.index("run") + 1
    done = subprocess.run(
        [*argv[:at], "--pull=never", *argv[at:]], capture_output=True, text=True, timeout=60
    )
    # It read all of it, and then found no such image.
    assert done.returncode == 125
    assert HUB in done.stderr


def _image(tmp_path: Path) -> Path:
    image = tmp_path / "image"
    (image / "etc").mkdir(parents=True, exist_ok=True)
    return image


def test_an_unpacked_layout_tells_its_entry_point(tmp_path):
    image = _image(tmp_path)
    (image / "blobs/sha256").mkdir(parents=True)

    def blob(content: object) -> dict[str, str]:
        text = json.dumps(content).encode()
        digest = hashlib.sha256(text).hexdigest()
        (image / "blobs/sha256" / digest).write_bytes(text)
        return {"digest": f"sha256:{digest}"}

    config = blob({"config": {"Entrypoint": ["/start", ODD], "Cmd": ["never"], "Env": ["A=b"]}})
    (image / "index.json").write_text(json.dumps({"manifests": [blob({"config": config})]}))
    for wanted, words in ((True, ["/start", ODD]), (False, [])):
        given = request(tmp_path, image=str(image), entrypoint=wanted)
        plan = json.loads(rendered("bubblewrap", given).environment["GIPFEL_CONTAINER"])
        assert (plan["entrypoint"], plan["entrypoint_argv"]) == (wanted, words)


def test_pyxis_sets_what_srun_reads_itself_in_the_container_alone(tmp_path):
    env = {"PATH": "/opt/venv/bin", "LD_PRELOAD": "/usr/lib/libmimalloc.so", "HOME": "/h", "A": "1"}
    invocation = rendered("pyxis", request(tmp_path, env={**env, "LD_LIBRARY_PATH": ""}))
    assert invocation.environment["PATH"] == "/bin"
    assert not {"LD_PRELOAD", "HOME"} & invocation.environment.keys()
    at = invocation.argv.index("env")
    assert invocation.argv[at:-3] == (
        *("env", "-u", "LD_LIBRARY_PATH"),
        *("PATH=/opt/venv/bin", "LD_PRELOAD=/usr/lib/libmimalloc.so", "HOME=/h"),
    )
    assert "--container-env=A,HUB_TOKEN" in invocation.argv
    # Taken away there, and still what srun is found by.
    assert rendered("pyxis", request(tmp_path, env={"PATH": ""})).environment["PATH"] == "/bin"


@pytest.mark.parametrize("engine", ["apptainer", "podman"])
def test_the_program_that_starts_a_container_keeps_what_is_its_own(tmp_path, engine):
    host = {"HOME": "/home/me", "LD_LIBRARY_PATH": "/host"}
    given = request(tmp_path, env={"PATH": "", "HOME": "", "LD_LIBRARY_PATH": ""}, environment=host)
    environment = rendered(engine, given).environment
    assert {name: environment.get(name) for name in ("PATH", *host)} == {"PATH": "/bin", **host}


@pytest.mark.parametrize("engine", ["pyxis", "apptainer", "podman"])
def test_search_paths_with_the_hosts_value_are_noted(tmp_path, engine):
    env = {"PATH": "/bin:/custom/bin", "LD_LIBRARY_PATH": "/x", "A": "/bin"}
    notes = " ".join(rendered(engine, request(tmp_path, env=env)).notes)
    assert "its PATH can't be read here" in notes
    assert "LD_LIBRARY_PATH can't" not in notes
    local = request(tmp_path, env=env, image=str(_image(tmp_path)))
    assert "can't be read here" not in " ".join(rendered("bubblewrap", local).notes)


@pytest.mark.parametrize("scheme", ["dockerd", "podman"])
@pytest.mark.parametrize("engine", ["pyxis", "apptainer", "podman"])
def test_an_image_of_a_store_of_the_machine_is_never_asked_of_a_registry(tmp_path, engine, scheme):
    given = request(tmp_path, image=f"{scheme}://myteam-img:1")
    if (engine, scheme) == ("pyxis", "dockerd"):
        assert "--container-image=dockerd://myteam-img:1" in rendered(engine, given).argv
    elif (engine, scheme) == ("podman", "podman"):
        argv = rendered(engine, given).argv
        assert "--pull=never" in argv
        assert argv[-4] == "myteam-img:1"
    else:
        with pytest.raises(GipfelError, match="local storage") as error:
            rendered(engine, given)
        assert f"{scheme}://myteam-img:1" in error.value.fix


def test_apptainer_sets_home_inside_and_adds_notes(tmp_path):
    invocation = rendered("apptainer", request(tmp_path, env={"HOME": "/h", "A": "1"}))
    assert "APPTAINERENV_HOME" not in invocation.environment
    assert invocation.argv[-5:-3] == ("env", "HOME=/h")
    notes = " ".join(invocation.notes)
    assert "host's value of a variable overrides" in notes
    assert "64 MiB" in notes
    local = rendered("apptainer", request(tmp_path, image="/x.sqsh", writable=False))
    assert not local.notes


def test_pyxis_has_an_option_for_the_log_of_the_entry_point(tmp_path):
    for value, wanted in (("true", True), ("false", False)):
        given = request(tmp_path, entrypoint=True, annotations={"com.pyxis.entrypoint_log": value})
        assert ("--container-entrypoint-log" in rendered("pyxis", given).argv) is wanted


@pytest.mark.parametrize("engine", ["bubblewrap", "podman"])
def test_render_only_requests_need_nothing_on_this_machine(tmp_path, engine):
    elsewhere = {
        "image": "/capstor/x.sqsh",
        "mounts": (Mount(source="/capstor/data", destination="/data"),),
        "devices": ("nvidia.com/gpu=all",),
    }
    given = request(tmp_path, **elsewhere)
    with pytest.raises(GipfelError, match=r"/capstor/x\.sqsh does not exist"):
        rendered(engine, given)
    shown = rendered(engine, request(tmp_path, render_only=True, **elsewhere))
    plan = json.loads(shown.environment["GIPFEL_CONTAINER"])
    assert (plan["image"], plan["squashfuse"][-10:]) == ("/capstor/x.sqsh", "squashfuse")
    said = [note for note in shown.notes if note.startswith("Not on this machine: ")]
    assert len(said) == 3
    registry = request(tmp_path, mounts=elsewhere["mounts"], render_only=True)
    assert "/capstor/data" in " ".join(rendered("podman", registry).argv)


def test_protected_variables_are_noted(tmp_path):
    given = request(tmp_path, env={"HUB_URL": "x", "USER": "me", "A": "1"}, environment={"USER": "you"})
    given = given.model_copy(update={"protected": ("HUB_*", "USER")})
    invocation = rendered("pyxis", given)
    assert "HUB_URL" not in invocation.environment
    assert "the scheduler: HUB_URL." in " ".join(invocation.notes)
    assert "the job's own value is used: USER." in " ".join(invocation.notes)


@pytest.mark.parametrize("engine", ["apptainer", "podman", "bubblewrap"])
def test_a_mount_without_a_source_is_refused_by_engines_that_make_none(tmp_path, engine):
    image = {"image": str(_image(tmp_path))} if engine == "bubblewrap" else {}
    mounts = (Mount(source="tmpfs", destination="/x"),)
    for shown in (False, True):
        with pytest.raises(GipfelError, match="tmpfs:/x"):
            rendered(engine, request(tmp_path, mounts=mounts, render_only=shown, **image))
    assert "--container-mounts=tmpfs:/x" in rendered("pyxis", request(tmp_path, mounts=mounts)).argv
