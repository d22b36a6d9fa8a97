"""A kernel that answers every cell with the reason why the image's Python cannot be a kernel.

``python -m gipfel_extension.kernels.unusable REASON -f CONNECTION_FILE``. A kernel that only exits would
leave the reason in the server's log, where notebook users do not see it.
"""

import sys
from typing import Any

from ipykernel.kernelbase import Kernel

from gipfel_cluster.runtime.kernel_launch import launch


class UnusableKernel(Kernel):
    """Kernel that runs no code."""

    implementation = "gipfel"
    implementation_version = "1"
    language_info = {"name": "python", "mimetype": "text/x-python", "file_extension": ".py"}  # noqa: RUF012
    banner = ""
    problem = ""

    async def do_execute(self, code: str, silent: bool, *_: Any, **__: Any) -> dict[str, Any]:  # noqa: ARG002, FBT001
        """Answer with the problem as an error, so that a batch run ends."""
        content = {"ename": "NoKernel", "evalue": self.problem, "traceback": [self.problem]}
        if not silent:
            self.send_response(self.iopub_socket, "error", content)  # type: ignore[no-untyped-call]
        return {"status": "error", "execution_count": self.execution_count, **content}


def main(arguments: list[str]) -> None:
    """Start the kernel; the first argument is the problem."""
    UnusableKernel.problem = arguments[0]
    launch(arguments[1:], kernel_class=UnusableKernel)


if __name__ == "__main__":
    main(sys.argv[1:])
