import subprocess
import sys

import pytest

import gipfel_cluster
from gipfel_cluster.edf import Edf, Mount
from gipfel_cluster.edf.mounts import read_reference
from gipfel_cluster.engines import ContainerRequest, engine_for, engine_names
from gipfel_cluster.engines.choice import available_engine_names
from gipfel_cluster.hooks import engine_invocation
from gipfel_cluster.model import GipfelError

START = f"{gipfel_cluster.__path__[0]}/engines/sandbox/start.py"
PLAIN = Edf(name="plain", path=None, env={"A": "edf", "GONE": ""}, workdir="/usr")
IMAGE = Edf(name="image", path=None, image="/none.sqsh")


def request(edf, *command, **more):
    return ContainerRequest(edf=edf, command=command, scratch="/nowhere", **more)


def test_without_an_image_it_is_the_host():
    assert engine_for(PLAIN, "bubblewrap").name == "host"
    assert engine_for(PLAIN).name == "host"
    assert engine_for(IMAGE).name == "bubblewrap"
    assert engine_names() == ("bubblewrap", "podman", "apptainer", "ce", "pyxis", "host")


@pytest.mark.parametrize(("edf", "name"), [(IMAGE, "host"), (IMAGE, "docker"), (PLAIN, "docker")])
def test_an_engine_that_can_not_is_one_line(edf, name):
    with pytest.raises(GipfelError) as error:
        engine_for(edf, name)
    assert error.value.fix


def test_the_host_runs_the_command_in_its_folder_with_its_variables():
    inherited = {"A": "host", "GONE": "1", "TOKEN": "t"}
    invocation = engine_for(PLAIN).render(
        request(PLAIN, "/bin/sh", "-c", 'echo "$A-$TOKEN-${GONE-unset}"; pwd; exit 5', environment=inherited),
        python=sys.executable,
    )
    done = subprocess.run(
        invocation.argv, env=invocation.environment, capture_output=True, text=True, cwd="/"
    )
    assert (done.returncode, done.stdout) == (5, "edf-t-unset\n/usr\n")
    assert invocation.notes == ()


def test_the_host_says_which_mounts_it_does_not_make():
    edf = PLAIN.model_copy(
        update={"mounts": (Mount(source="/a", destination="/a"), Mount(source="/a", destination="/b"))}
    )
    (note,) = engine_for(edf).render(request(edf, "true"), python=sys.executable).notes
    assert "/a:/b" in note


def test_the_host_refuses_an_image_and_no_command():
    with pytest.raises(GipfelError):
        engine_for(PLAIN).render(request(IMAGE, "true"), python=sys.executable)
    with pytest.raises(GipfelError):
        engine_for(PLAIN).render(request(PLAIN), python=sys.executable)


@pytest.mark.parametrize(
    "edf",
    [
        IMAGE,
        Edf(name="x", path=None, image="ubuntu:24.04"),
        Edf(name="x", path=None, image="/usr", mounts=(Mount(source="/none", destination="/x"),)),
        Edf(name="x", path=None, image="/usr", env={"A": "x" * (200 << 10)}),
    ],
)
def test_what_bubblewrap_can_not_run_is_one_line(edf):
    with pytest.raises(GipfelError) as error:
        engine_for(edf).render(request(edf, "true"), python=sys.executable)
    assert error.value.fix


def test_bubblewrap_keeps_values_out_of_the_argv_and_notes_unsupported_flags():
    edf = Edf(
        name="x",
        path=None,
        image="/usr",
        entrypoint=True,
        env={"SECRET": "hidden"},
        mounts=(Mount(source="/tmp", destination="/x", flags=("ro", "noexec")),),
    )
    invocation = engine_for(edf).render(request(edf, "true"), python=("a", "b"))
    assert invocation.argv == ("a", "b", "-I", "-S", START, "container")
    assert "hidden" in invocation.environment["GIPFEL_CONTAINER"]
    (note,) = invocation.notes
    assert "noexec" in note


def test_the_sandbox_needs_only_the_standard_library():
    words = [sys.executable, "-I", "-S", START, "container"]
    done = subprocess.run(words, capture_output=True, text=True, env={})
    assert done.returncode == 125
    assert done.stderr == "gipfel: There is no container to run: the variable GIPFEL_CONTAINER is not set.\n"


def test_an_invocation_can_be_shown():
    given = request(PLAIN, "true", environment={"X": "1"})
    invocation = engine_invocation(given, engine_for(PLAIN), python="python3")
    assert invocation.argv[-1] == "true"
    assert invocation.environment == {"X": "1", "A": "edf"}


def test_notes_of_hooks_and_engine_are_combined():
    edf = IMAGE.model_copy(
        update={
            "image": "/usr",
            "annotations": {"com.hooks.nobody_knows.enabled": "true"},
            "mounts": (Mount(source="/tmp", destination="/x", flags=("noexec",)),),
        }
    )
    invocation = engine_invocation(request(edf, "true"), engine_for(edf), python="python3")
    assert ["nobody_knows" in note for note in invocation.notes] == [True, False]
    assert "noexec" in invocation.notes[1]


def test_another_package_brings_an_engine(tmp_path):
    (tmp_path / "other_engine.py").write_text(
        "from gipfel_cluster.engines import Invocation\n"
        "class Other:\n"
        "    name = 'other'\n"
        "    def unavailable_reason(self): return None\n"
        "    def render(self, request, *, python):\n"
        "        return Invocation(argv=('other', *request.command), environment={})\n"
    )
    about = tmp_path / "other-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    (about / "entry_points.txt").write_text(
        "[gipfel.engines]\nother = other_engine:Other\nbroken = nowhere:X\n"
    )
    code = (
        "from gipfel_cluster.engines import *\n"
        "from gipfel_cluster.engines import engine_names, engine_for\n"
        "from gipfel_cluster.hooks import engine_invocation\n"
        "from gipfel_cluster.edf import Edf\n"
        "edf = Edf(name='x', path=None, image='a')\n"
        "given = ContainerRequest(edf=edf, command=('true',), scratch='/x')\n"
        "print(engine_names()[-2:], engine_invocation(given, engine_for(edf, 'other'), python='p').argv)\n"
        "try: engine_for(edf, 'broken')\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": str(tmp_path)}
    )
    first, second = done.stdout.splitlines()
    assert first == "('broken', 'other') ('other', 'true')"
    assert second.startswith("GipfelError The engine broken can't be loaded from nowhere:X")


def test_a_form_offers_the_engines_that_run_here():
    here = available_engine_names()
    assert "host" in here
    assert set(here) <= set(engine_names())
    assert ("ce" in here) == (engine_for(IMAGE, "ce").unavailable_reason() is None)


def test_the_host_says_what_it_can_not_keep_from_being_changed():
    edf = Edf(
        name="x",
        path=None,
        entrypoint=True,
        writable=False,
        mounts=(
            Mount(source="/srv", destination="/srv", flags=("ro",)),
            Mount(source="/a", destination="/a"),
        ),
    )
    notes = engine_invocation(request(edf, "true"), engine_for(edf), python="python").notes
    assert [note.split(",")[0] for note in notes] == [
        "The mount /srv:/srv:ro is not read-only",
        "entrypoint = true has no effect",
        "writable = false has no effect",
    ]


@pytest.mark.parametrize(
    ("image", "oci", "enroot"),
    [
        ("ubuntu", "docker.io/library/ubuntu", "ubuntu"),
        ("ubuntu:24.04", "docker.io/library/ubuntu:24.04", "ubuntu:24.04"),
        ("a/b", "docker.io/a/b", "a/b"),
        ("nvcr.io#nvidia/cuda:13", "nvcr.io/nvidia/cuda:13", "nvcr.io#nvidia/cuda:13"),
        ("nvcr.io/nvidia/cuda:13", "nvcr.io/nvidia/cuda:13", "nvcr.io#nvidia/cuda:13"),
        ("me@host:5000#a/b:1", "host:5000/a/b:1", "me@host:5000#a/b:1"),
        ("localhost/a", "localhost/a", "localhost#a"),
        ("docker://a/b:1", "docker.io/a/b:1", "a/b:1"),
        (
            f"ghcr.io/a/b@sha256:{'0' * 64}",
            f"ghcr.io/a/b@sha256:{'0' * 64}",
            f"ghcr.io#a/b@sha256:{'0' * 64}",
        ),
    ],
)
def test_the_name_of_an_image_is_written_as_each_engine_wants_it(image, oci, enroot):
    assert (read_reference(image).oci, read_reference(image).enroot) == (oci, enroot)
