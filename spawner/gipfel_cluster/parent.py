"""Programs that end with the process that started them, even where that one is killed."""

import os
import signal

from .engines.sandbox.namespaces import die_with_parent


def end_with_parent(parent: int) -> None:
    """Let the kernel send SIGTERM to this process when its parent, of this process id, has ended."""
    die_with_parent(signal.SIGTERM)
    if os.getppid() != parent:
        # It ended while this program was loaded, and the kernel has nothing to tell any more.
        os.kill(os.getpid(), signal.SIGTERM)
