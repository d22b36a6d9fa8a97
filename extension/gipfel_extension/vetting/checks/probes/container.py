"""Report a container as the image's Python sees it.

The argument names what is reported, as evidence of the answer:

``environment``
    User, C library, and the GPUs that torch sees. Request: empty.
``versions``
    Name to version of packages of this Python, null if one is not installed. Request: names.
``libraries``
    How many shared libraries a directory has, and the errors of those that can't be loaded, each in its own
    process. Request: folder.
"""

from __future__ import annotations

import json
import os
import platform
import pwd
import subprocess
import sys
from importlib import metadata
from typing import Any

_LOAD = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"


def main() -> None:
    """Answer one request."""
    request = json.loads(sys.stdin.read() or "{}")
    answer: dict[str, Any] = {"gipfel_probe": 1, "evidence": {}}
    error = REPORTS[sys.argv[1]](request, answer["evidence"])
    if error:
        answer["error"] = error
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def report_environment(_request: Any, evidence: Any) -> str:
    """Add user, C library and the GPUs that torch sees; return why torch can't use them."""
    evidence.update(python=platform.python_version(), uid=os.getuid(), machine=platform.machine())
    try:
        evidence["user"] = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        evidence["user"] = None
    evidence["libc"] = " ".join(platform.libc_ver()).strip()
    try:
        import torch  # noqa: PLC0415 - a missing module is reported

        evidence["torch"] = torch.__version__
        evidence["cuda"] = torch.version.cuda or getattr(torch.version, "hip", None)
        evidence["gpus"] = torch.cuda.device_count() if torch.cuda.is_available() else 0
        # A visible GPU may not work, so open a context on each.
        for index in range(evidence["gpus"]):
            torch.zeros(1, device=f"cuda:{index}").add_(1).item()
    except ImportError as error:
        evidence["torch"] = None
        evidence["torch_error"] = str(error)[:300]
    except Exception as error:  # noqa: BLE001 - every error is reported
        return f"torch can't use the GPUs: {type(error).__name__}: {str(error)[:400]}"
    return ""


def report_versions(request: Any, evidence: Any) -> str:
    """Add the version of each package."""
    evidence.update({name: version(name) for name in request["names"]})
    return ""


def version(name: str) -> str | None:
    """Return the version of a package; None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def report_libraries(request: Any, evidence: Any) -> str:
    """Add the libraries that can't be loaded; return why the directory can't be read."""
    evidence.update(count=0, broken={})
    folder = request["folder"]
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".so"))  # noqa: PTH208 - Python 3.9
        evidence["count"] = len(names)
        for name in names:
            error = loading_error(os.path.join(folder, name))  # noqa: PTH118
            if error:
                evidence["broken"][name] = error
    except Exception as error:  # noqa: BLE001 - every error is reported
        return f"{type(error).__name__}: {error}"
    return ""


def loading_error(path: Any) -> Any:
    """Return why a library can't be loaded, empty if it can; try it in a child process, which may crash."""
    done = subprocess.run(
        [sys.executable, "-c", _LOAD, path], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False
    )
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    if not done.returncode:
        return ""
    return lines[-1][:300] if lines else f"it exited with status {done.returncode}"


REPORTS = {
    "environment": report_environment,
    "versions": report_versions,
    "libraries": report_libraries,
}

if __name__ == "__main__":
    main()
