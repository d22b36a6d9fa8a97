"""Images that the tests use, made from Debian packages once per machine.

``debian.sqsh`` holds no Python, ``python-bookworm.sqsh`` holds Debian's and two packages for it, ``debian``
is the first one unpacked, ``debian-packages`` has the packages that it was made of. Others are made when a
test asks for them: another Debian's Python, or PyTorch beside Debian's.
"""

import argparse
import fcntl
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gipfel_cluster.model import GipfelError

SUITE = "bookworm"
#: Debian releases by the version of their Python.
SUITES = {"3.9": "bullseye", "3.11": SUITE, "3.13": "trixie"}
#: Beside what Debian calls essential; wheels of compiled packages need the C++ library.
_PYTHON_PACKAGES = ("python3", "python3-six", "python3-traitlets", "libstdc++6")
TORCH = "2.13.0"
#: Older than what the runtime brings, so that a test sees whose it is.
TORCH_NUMPY = "1.26.4"
ACCELERATE = "1.15.0"
#: Packages that it imports in addition to torch and its own.
_ACCELERATE_NEEDS = (
    "huggingface_hub", "safetensors", "psutil", "pyyaml", "packaging", "tqdm", "httpx", "httpcore", "h11",
    "anyio", "idna", "certifi", "sniffio",
)  # fmt: skip
MARKER = "/opt/marker.txt"
MARKER_TEXT = "made for Gipfel's tests\n"
BUILD_LIMIT_S = 900
#: Files that nothing reads in a test.
_LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
_REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Images:
    """Paths of the images; every user may read them."""

    debian: Path
    python: Path
    unpacked: Path
    packages: Path


def missing() -> str | None:
    """Return what this machine lacks to make images, in one line, or None."""
    if os.geteuid() != 0:
        return "Images are made by root only."
    absent = [name for name in ("mmdebstrap", "mksquashfs", "unsquashfs") if shutil.which(name) is None]
    if absent:
        return f"This machine lacks {' and '.join(absent)}: apt-get install mmdebstrap squashfs-tools."
    return None


def images_folder() -> Path:
    """``build/images`` where other users can read it, else a folder below ``/var/tmp``."""
    parents = (_REPOSITORY, *_REPOSITORY.parents)
    if all(parent.stat().st_mode & stat.S_IXOTH for parent in parents):
        return _REPOSITORY / "build" / "images"
    return Path(f"/var/tmp/gipfel-images-{os.getuid()}")


def build_images(folder: Path | None = None) -> Images:
    """Make what is not there yet; several processes may ask at once.

    Raises
    ------
    GipfelError
        A tool is missing or failed; nothing half made stays behind.
    """
    folder = images_folder() if folder is None else folder
    names = ("debian.sqsh", f"python-{SUITE}.sqsh", "debian", "debian-packages")
    images = Images(*(folder / name for name in names))
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _made(images.packages, lambda target: _bootstrap(images.unpacked, target))
        _made(images.debian, lambda target: _squash(images.unpacked, target))
        _made(images.python, lambda target: _squash_python(folder / ".python", target))
    return images


def python_image(version: str, folder: Path | None = None) -> Path:
    """Image of the Debian that has this Python and two packages for it, made when it is not there.

    Raises
    ------
    GipfelError
        As of `build_images`.
    """
    folder = images_folder() if folder is None else folder
    suite = SUITES[version]
    if suite == SUITE:
        return build_images(folder).python
    root = folder / f".python-{suite}"
    return _one(folder, f"python-{suite}.sqsh", lambda target: _squash_python(root, target, suite))


def torch_image(folder: Path | None = None) -> Path:
    """Image of Debian 12 with PyTorch for CPUs, and a NumPy that only its own packages ask for.

    Raises
    ------
    GipfelError
        As of `build_images`, or the wheels are out of reach.
    """
    folder = images_folder() if folder is None else folder
    name, root, python = f"torch-{TORCH}.sqsh", folder / ".torch", build_images(folder).python
    return _one(folder, name, lambda target: _squash_torch(python, root, target))


def accelerate_folder(folder: Path | None = None) -> Path:
    """Folder with Hugging Face's Accelerate for the Python of `torch_image`, to be mounted beside it.

    Raises
    ------
    GipfelError
        As of `torch_image`.
    """
    folder = images_folder() if folder is None else folder
    return _one(folder, f"accelerate-{ACCELERATE}", _install_accelerate)


def _install_accelerate(target: Path) -> None:
    how = ["--quiet", "--only-binary=:all:", "--python-version", "3.11", "--no-deps", "--target", str(target)]
    _call([sys.executable, "-m", "pip", "install", *how, f"accelerate=={ACCELERATE}", *_ACCELERATE_NEEDS])


def _one(folder: Path, name: str, make: Callable[[Path], None]) -> Path:
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    with (folder / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _made(folder / name, make)
    return folder / name


def _made(path: Path, make: Callable[[Path], None]) -> None:
    if path.exists():
        return
    reason = missing()
    if reason:
        raise GipfelError(reason)
    beside = path.with_name(f".{path.name}.half")
    _remove(beside)
    try:
        make(beside)
        beside.rename(path)
    finally:
        _remove(beside)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _bootstrap(target: Path, packages: Path) -> None:
    _remove(target)
    packages.mkdir(mode=0o755)
    options = [f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT]
    options += ["--skip=essential/unlink", f"--customize-hook=sync-out /var/cache/apt/archives {packages}"]
    _call(["mmdebstrap", "--quiet", "--variant=minbase", *options, SUITE, str(target)])
    _mark(target)


def _extract(target: Path, suite: str) -> None:
    """Unpack a Debian with Python without running its packages' scripts, in a quarter of the time."""
    packages = [f"--include={name}" for name in ("?essential", *_PYTHON_PACKAGES)]
    merged = "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr"
    _call(["mmdebstrap", "--quiet", "--variant=extract", merged, *packages, suite, str(target)])
    # What the scripts would have done, as far as containers need it.
    for name in ("media", "mnt", "opt", "srv", "usr/local/bin", "usr/local/lib"):
        (target / name).mkdir(parents=True, exist_ok=True)
    for name in ("passwd", "group"):
        shutil.copyfile(target / f"usr/share/base-passwd/{name}.master", target / "etc" / name)
    _call(["ldconfig", "-r", str(target)])
    libraries = [f"/usr/lib/{path.name}" for path in sorted(target.glob("usr/lib/python3*"))]
    _call(["chroot", str(target), "python3", "-m", "compileall", "-q", *libraries])
    for pattern in _LEFT_OUT:
        for path in target.glob(pattern.lstrip("/")):
            _remove(path)
    _mark(target)


def _mark(target: Path) -> None:
    target.chmod(0o755)
    (target / MARKER.lstrip("/")).write_text(MARKER_TEXT)


def _squash(source: Path, target: Path) -> None:
    # An image is read far more often than made: squashfuse spends a fifth of zstd's time on lz4.
    options = ["-comp", "lz4", "-noappend", "-quiet", "-no-progress"]
    _call(["mksquashfs", str(source), str(target), *options])
    target.chmod(0o644)


def _squash_python(root: Path, target: Path, suite: str = SUITE) -> None:
    _remove(root)
    try:
        _extract(root, suite)
        _squash(root, target)
    finally:
        _remove(root)


def _squash_torch(python: Path, root: Path, target: Path) -> None:
    _remove(root)
    try:
        _call(["unsquashfs", "-quiet", "-no-progress", "-dest", str(root), str(python)])
        packages = root / "usr/local/lib/python3.11/dist-packages"
        wheels = [f"torch=={TORCH}", f"numpy=={TORCH_NUMPY}"]
        how = ["--quiet", "--only-binary=:all:", "--python-version", "3.11", "--target", str(packages)]
        _call([sys.executable, "-m", "pip", "install", *how, *wheels])
        _squash(root, target)
    finally:
        _remove(root)


def _call(argv: list[str]) -> None:
    try:
        subprocess.run(argv, check=True, capture_output=True, text=True, timeout=BUILD_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise GipfelError(f"{argv[0]} took longer than {BUILD_LIMIT_S} s.") from error
    except subprocess.CalledProcessError as error:
        raise GipfelError(
            f"{argv[0]} failed: {error.stderr[-500:]}", "Is the package mirror in reach?"
        ) from error


def main() -> int:
    """Make the images and print where they are."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--folder", type=Path)
    try:
        images = build_images(parser.parse_args().folder)
    except GipfelError as error:
        print(error, file=sys.stderr)
        return 1
    print(images.debian, images.python, images.unpacked, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
