"""The interpreter's own files: the program, its standard library, what it finds at start."""

import json
import os
import ssl
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution
from pathlib import Path

#: The interpreter, relative to the runtime's folder; ``bin/python3`` and ``bin/python`` point at it.
PROGRAM = f"bin/python{sys.version_info.major}.{sys.version_info.minor}"
#: Certificates for images that have none, relative to the runtime's folder.
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

# OpenSSL looks where the machine that built this keeps its certificates; images keep them elsewhere.
file = os.environ.get("SSL_CERT_FILE", {cafile!r})
folder = os.environ.get("SSL_CERT_DIR", {capath!r})
if not os.path.isfile(file) and not os.path.isdir(folder):
    for bundle in (*{bundles!r}, os.path.join(sys.prefix, {certificates!r})):
        if os.path.isfile(bundle):
            os.environ["SSL_CERT_FILE"] = bundle
            break
"""


def program() -> Path:
    """Find the program file of this interpreter, not that of its virtual environment."""
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
    """Find the certificates of authorities of this machine, else those of certifi."""
    paths = ssl.get_default_verify_paths()
    for candidate in (paths.cafile, *_IMAGE_CERTIFICATES):
        if candidate and Path(candidate).is_file():
            return Path(candidate)
    try:
        import certifi  # noqa: PLC0415 - not where the machine has its own
    except ImportError:
        return None
    return Path(certifi.where())


def start_file(site_packages: str) -> str:
    """Render a runtime's ``sitecustomize.py``, which finds packages, and certificates in any image."""
    paths = ssl.get_default_verify_paths()
    return _SITECUSTOMIZE.format(
        site_packages=site_packages,
        cafile=paths.openssl_cafile,
        capath=paths.openssl_capath,
        bundles=_IMAGE_CERTIFICATES,
        certificates=CERTIFICATES,
    )


def kernel(prefix: str) -> str:
    """Render the ``kernel.json`` of the runtime's own kernel, which ignores an image's PYTHON variables."""
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


def lab_defaults() -> str:
    """Render JupyterLab's defaults: no news and no updates, since a node often has no way to the internet."""
    quiet = {"fetchNews": "false", "checkForUpdates": False}
    return json.dumps({"@jupyterlab/apputils-extension:notification": quiet}, indent=1)


def commands(distributions: Iterable[Distribution], prefix: str) -> Iterator[tuple[str, str]]:
    """Yield target and text of the commands that distributions offer, such as ``bin/jupyter-lab``."""
    for one in distributions:
        for entry in one.entry_points:
            if entry.group == "console_scripts":
                start = entry.attr.partition(".")[0]
                imports = f"import sys\n\nfrom {entry.module} import {start}\n"
                yield f"bin/{entry.name}", f"#!{prefix}/bin/python3 -I\n{imports}\nsys.exit({entry.attr}())\n"
