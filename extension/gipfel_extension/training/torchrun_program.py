"""Program of a launch that runs torchrun inside the container; the launch's directory has a copy of it.

`rank_program` loads it only in the launcher's process, not in ranks. It runs with the image's Python, 3.9 or
newer, and imports only the standard library and torch.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

#: The environment variable with the launch's secret; ranks do not get it.
KEY = "GIPFEL_RENDEZVOUS_KEY"
_FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib is slower to import


def run_torchrun(arguments: list[str]) -> int:
    """Run torchrun with the rendezvous ``gipfel``, which is torch's c10d with authenticated states.

    Every user who reaches the port can write to c10d's store, and torch unpickles the state from it. The key
    is removed from the environment, so that ranks do not inherit it.
    """
    key = os.environ.pop(KEY, "")
    # Files in the launch's directory must not be imported as modules.
    sys.path[:] = [each for each in sys.path if each != _FOLDER]
    # Garbage collection would take a sixth of the time of importing torch, and frees almost nothing.
    gc.disable()
    try:
        from torch.distributed import run  # noqa: PLC0415
        from torch.distributed.elastic.rendezvous import RendezvousStateError  # noqa: PLC0415
        from torch.distributed.elastic.rendezvous import rendezvous_handler_registry as registry  # noqa: PLC0415
        from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend  # noqa: PLC0415
        from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler  # noqa: PLC0415

        def create(parameters: Any) -> Any:
            backend, store = create_backend(parameters)
            return create_handler(store, AuthenticatedBackend(backend, key, RendezvousStateError), parameters)  # type: ignore[arg-type]

        registry.register("gipfel", create)
    except (ImportError, AttributeError) as error:
        sys.stderr.write(f"gipfel: torch can't authenticate the rendezvous ({error}): use --launcher srun\n")
        return 1
    finally:
        gc.enable()
    if not key:
        sys.stderr.write("gipfel: the launch has no key for its rendezvous: start it with `gipfel launch`\n")
        return 1
    try:
        run.main(arguments)
    except RendezvousStateError as error:
        sys.stderr.write(f"gipfel: {error}\n")
        return 1
    return 0


class AuthenticatedBackend:
    """Rendezvous backend that adds an HMAC to each state, and rejects states with a wrong HMAC.

    `key` is the secret of the launch; `error` is raised for a state that another process wrote.
    """

    def __init__(self, backend: Any, key: str, error: type[Exception]) -> None:
        self._backend = backend
        self._key = key.encode()
        self._error = error

    @property
    def name(self) -> str:
        """Return the name of the backend."""
        return "gipfel"

    def get_state(self) -> tuple[bytes, Any] | None:
        """Return the state and its token; None if there is no state yet."""
        found = self._backend.get_state()
        return None if found is None else (self._verified(found[0]), found[1])

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Any, bool] | None:
        """Store a state; return the stored state, its token, and whether it is the given one."""
        found = self._backend.set_state(self._digest(state) + state, token)
        return None if found is None else (self._verified(found[0]), found[1], found[2])

    def _digest(self, state: bytes) -> bytes:
        import hmac  # noqa: PLC0415 - it loads OpenSSL, which ranks do not need

        return hmac.digest(self._key, state, "sha256")

    def _verified(self, stored: bytes) -> bytes:
        import hmac  # noqa: PLC0415 - it loads OpenSSL, which ranks do not need

        digest, state = stored[:32], stored[32:]
        if not hmac.compare_digest(digest, self._digest(state)):
            why = "another process wrote into this launch's rendezvous; its state was rejected"
            raise self._error(f"{why}: start the launch again")
        return state
