"""An image's own Python becomes a kernel: in containers of a plain user, from a runtime that is one file."""

import json
from dataclasses import dataclass
from pathlib import Path

import images as image_builder
import pytest
from edf_files import write_edf
from images import Images
from kept_runtime import kernel_runtime_for_tests
from notebook_files import printed, write_notebook
from unix_users import UnixUser

from gipfel_cluster.model import GipfelError
from gipfel_cluster.runtime import Runtime
from gipfel_cluster.runtime.model import read_description

pytestmark = pytest.mark.cluster

_LIMIT_S = 150
#: Version in Debian 11 and 12, with which current IPython does not start.
_OLD_TRAITLETS = {"3.9": "5.0.5", "3.11": "5.5.0"}
_BODY = """\
import json, sys
import ipykernel, six, traitlets
files = {each.__name__: each.__file__ for each in (ipykernel, six, traitlets)}
try:
    import gipfel_widgets
    gipfel_widgets.Saturation
    widgets = gipfel_widgets.__file__
except ImportError as error:
    widgets = str(error)
print(json.dumps([sys.executable, list(sys.version_info[:2]), files, widgets]))"""
_OLD_PYTHON = """\
#!/bin/sh
[ "$1" = -c ] && echo 3.6 && exit
echo "SyntaxError: future feature annotations is not defined" >&2
exit 1
"""
_TORCH = """\
import matplotlib.pyplot, numpy, plotly, pyarrow, torch
from gipfel_widgets import Saturation, measure
made = torch.from_numpy(numpy.arange(4.0)).sum().item()
print(json.dumps([torch.__version__, torch.__file__, numpy.__version__, numpy.__file__, made]))
print(json.dumps([each.__file__ for each in (ipykernel, pyarrow, plotly, matplotlib)]))"""


@pytest.fixture(scope="module")
def file_runtime() -> Runtime:
    """A ``.sqsh`` runtime with kernels for what Debian 11, 12 and 13 have."""
    return kernel_runtime_for_tests(tuple(image_builder.SUITES))


@dataclass
class Batch:
    """A notebook of a plain user in an image, by ``gipfel submit`` on this machine."""

    user: UnixUser
    program: str
    options: tuple[str, ...]
    mounts: tuple[str, ...] = ()

    def run(self, image: Path | str, body: str, *words: str) -> "Batch":
        """Run a notebook to its end; what it printed and said is kept."""
        self.user.write("kernels/.keep", "")
        folder = self.user.home / "kernels"
        self.user.own(write_notebook(folder / "in.ipynb", body=body))
        write_edf(self.user, "demo", image=image, mounts=self.mounts, env={"PATH": "/usr/local/bin:/usr/bin"})
        argv = ["env", "-i", f"--chdir={folder}", f"HOME={self.user.home}", "PATH=/usr/bin:/bin"]
        argv += [self.program, "submit", "in.ipynb", "out.ipynb", "--edf", "demo", "--wait"]
        log, out = folder / "out.ipynb.log", folder / "out.ipynb"
        for earlier in (log, out):
            earlier.unlink(missing_ok=True)
        self.status = self.user.run(*argv, *self.options, *words, limit_s=_LIMIT_S).returncode
        self.log = log.read_text()
        self.printed = printed(out)
        return self


@pytest.fixture
def batch(file_runtime: Runtime, runtime: Path, plain_users: tuple[UnixUser, UnixUser], fuse: None) -> Batch:
    """The host side runs with the folder's interpreter, since a host can't start one from a file."""
    how = ("--scheduler", "local", "--runtime", file_runtime.root)
    return Batch(plain_users[0], f"{runtime}/bin/gipfel", how)


def _python_image(version: str, runtime: Runtime) -> Path:
    folder = f"cp{version.replace('.', '')}"
    if folder not in read_description(Path(runtime.root)).kernels:
        pytest.skip(f"The packages for Python {version} could not be had: no package index is in reach.")
    try:
        return image_builder.python_image(version)
    except GipfelError as error:
        pytest.skip(str(error))


def _check_packages(ran: Batch, printed: str, file_runtime: Runtime, version: str) -> None:
    """Check what `_BODY` printed in an image with this Python."""
    executable, seen, files, widgets = json.loads(printed)
    ours = f"{file_runtime.prefix}/kernels/cp{version.replace('.', '')}/"
    assert executable == "/usr/bin/python3", ran.log
    assert ".".join(str(part) for part in seen) == version
    assert files["ipykernel"].startswith(ours)
    assert files["six"] == "/usr/lib/python3/dist-packages/six.py"
    if version in _OLD_TRAITLETS:
        assert files["traitlets"].startswith(ours)
        assert f"The image's traitlets {_OLD_TRAITLETS[version]} is too old for a kernel" in ran.log
    else:
        assert files["traitlets"].startswith("/usr/lib/python3/dist-packages/")
        assert "too old" not in ran.log
    if version == "3.9":
        assert widgets == "gipfel_widgets needs Python 3.11 or newer; this kernel is Python 3.9."
    else:
        assert widgets == f"{file_runtime.prefix}/kernels/gipfel/gipfel_widgets/__init__.py"


@pytest.mark.parametrize("version", ["3.9", "3.13"])
def test_the_images_python_runs_a_notebook_and_its_packages_win(
    batch: Batch, file_runtime: Runtime, version: str
) -> None:
    ran = batch.run(_python_image(version, file_runtime), _BODY)
    assert ran.status == 0, ran.log
    _check_packages(ran, ran.printed[-1], file_runtime, version)


def test_the_runtimes_own_python_is_there_by_name(batch: Batch, file_runtime: Runtime) -> None:
    image = _python_image("3.13", file_runtime)
    ran = batch.run(image, "import sys; print(sys.prefix)", "--kernel", "gipfel")
    assert (ran.status, ran.printed[-1]) == (0, file_runtime.prefix), ran.log


def test_torch_and_its_numpy_are_the_images(batch: Batch, file_runtime: Runtime) -> None:
    # With the Python of Debian 12 and its packages, as in the images above.
    _python_image("3.11", file_runtime)
    try:
        image = image_builder.torch_image()
    except GipfelError as error:
        pytest.skip(str(error))
    ran = batch.run(image, f"{_BODY}\n{_TORCH}")
    assert ran.status == 0, ran.log
    _check_packages(ran, ran.printed[-3], file_runtime, "3.11")
    torch, torch_file, numpy, numpy_file, made = json.loads(ran.printed[-2])
    assert (torch.partition("+")[0], numpy, made) == (image_builder.TORCH, image_builder.TORCH_NUMPY, 6.0)
    packages = "/usr/local/lib/python3.11/dist-packages"
    assert (torch_file, numpy_file) == (f"{packages}/torch/__init__.py", f"{packages}/numpy/__init__.py")
    ours = f"{file_runtime.prefix}/kernels/cp311/"
    assert all(file.startswith(ours) for file in json.loads(ran.printed[-1])), ran.printed


def test_a_python_without_a_kernel_says_so_in_the_notebook(
    batch: Batch, images: Images, file_runtime: Runtime
) -> None:
    # Nobody has one for a version as old as this.
    batch.user.write("old/python3", _OLD_PYTHON, 0o755)
    batch.mounts = (f"{batch.user.home}/old:/usr/local/bin:ro",)
    ran = batch.run(images.debian, "print(1)", "--kernel", "image")
    assert ran.status == 1
    assert "The image's Python 3.6 is too old for the runtime's kernels." in ran.log
    own = batch.run(images.debian, "import sys; print(sys.prefix)")
    assert (own.status, own.printed[-1]) == (0, file_runtime.prefix), own.log


def test_without_an_image_the_python_that_runs_the_job_serves(batch: Batch, runtime: Path) -> None:
    ran = batch.run("", "import sys; print(sys.prefix)")
    assert (ran.status, ran.printed[-1]) == (0, str(runtime)), ran.log
