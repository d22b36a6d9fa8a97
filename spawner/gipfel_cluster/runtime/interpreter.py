"""Files of the runtime other than packages: interpreter, standard library, settings, OpenSSH's server."""

import json
import os
import shutil
import ssl
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import Distribution
from pathlib import Path

from .relocate import is_elf

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
    """Return the program file of this interpreter, not that of its virtual environment."""
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
    """Return the ``kernel.json`` of the runtime's own kernel, which ignores an image's PYTHON variables."""
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
    """Yield target and text of the distributions' console scripts, such as ``bin/jupyter-lab``."""
    for one in distributions:
        for entry in one.entry_points:
            if entry.group == "console_scripts":
                start = entry.attr.partition(".")[0]
                imports = f"import sys\n\nfrom {entry.module} import {start}\n"
                yield f"bin/{entry.name}", f"#!{prefix}/bin/python3 -I\n{imports}\nsys.exit({entry.attr}())\n"


def openssh_programs() -> dict[str, tuple[str, Path]]:
    """Find OpenSSH's server on this machine: name -> path in the runtime's directory, file on this machine.

    Empty without ``sshd``; else those of its programs that exist on this machine.
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
