"""Report the container as the image's Python sees it: user, C library, and the GPUs that torch sees.

Request: empty. Answer: evidence.
"""

from __future__ import annotations

import json
import os
import platform
import pwd
import sys
from typing import Any


def main() -> None:
    """Answer one request."""
    sys.stdin.read()
    evidence: dict[str, Any] = {
        "python": platform.python_version(),
        "uid": os.getuid(),
        "machine": platform.machine(),
    }
    answer = {"gipfel_probe": 1, "evidence": evidence}
    try:
        evidence["user"] = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        evidence["user"] = None
    library, version = platform.libc_ver()
    evidence["libc"] = (f"{library} {version}").strip()
    try:
        import torch  # noqa: PLC0415 - a missing module is reported

        evidence["torch"] = torch.__version__
        evidence["cuda"] = torch.version.cuda or getattr(torch.version, "hip", None)
        evidence["gpus"] = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if evidence["gpus"]:
            # A visible GPU may not work: open a context on each.
            for index in range(evidence["gpus"]):
                torch.zeros(1, device=f"cuda:{index}").add_(1).item()
    except ImportError as error:
        evidence["torch"] = None
        evidence["torch_error"] = str(error)[:300]
    except Exception as error:  # noqa: BLE001 - every error is reported
        answer["error"] = f"torch can't use the GPUs: {type(error).__name__}: {str(error)[:400]}"
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
