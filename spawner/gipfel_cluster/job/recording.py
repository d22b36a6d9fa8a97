"""The recorders beside a job: started before it on all its nodes, ended after it, their ends written down."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from .. import recorder_keeper
from ..recorder_keeper import RecorderKeeper
from ..runs import RunFolder
from .fan_in_head import FanInHead
from .other_nodes import OtherNodes, other_nodes
from .spec import JobSpec

KEEPER = recorder_keeper.__name__


class Recording:
    """A recorder here, in a session of its own, out of reach of the workload's signals, and those elsewhere.

    Parameters
    ----------
    spec
        Interval and sources.
    run
        The folder that they write to.
    sockets
        A private folder on local disk with a short path, for the live stream.
    node
        This node's name.
    environment
        The job's: it says which nodes and GPUs the job has. The tree below this process is the job here.
    """

    def __init__(
        self, spec: JobSpec, run: RunFolder, sockets: Path, node: str, environment: Mapping[str, str]
    ) -> None:
        command = [sys.executable, "-I", "-m", "gipfel_extension.telemetry.recorder"]
        command += ["--telemetry", str(run.telemetry), "--name", "job"]
        command += [] if spec.interval is None else ["--interval", str(spec.interval)]
        for source in spec.sources:
            command += ["--source", source]
        # Named, not asked for: when the recorder has been loaded, its parent may be another one.
        here = ["--sockets", str(sockets), "--node", node]
        here += ["--root-pid", str(os.getpid()), f"--with-parent={os.getpid()}"]
        self._keeper = RecorderKeeper([*command, *here], run.telemetry, node, environment)
        others = other_nodes(environment, node)
        self._others = (
            OtherNodes(
                others,
                # Each below one that starts it again, and ends with the daemon of the step.
                [sys.executable, "-I", "-m", KEEPER, str(run.telemetry), "", *command],
                run.telemetry,
                environment,
                here=node,
                interval=spec.interval or 1.0,
                head=FanInHead(sockets, node, environment, run.path / "fan-in.log"),
            )
            if others
            else None
        )

    @property
    def pid(self) -> int:
        """The recorder's process."""
        return self._keeper.pid

    def processes(self) -> frozenset[int]:
        """What must outlive the work: the recorder, and what holds the recorders of other nodes.

        From now on none that dies is started again.
        """
        others = frozenset() if self._others is None else self._others.processes()
        return others | {self._keeper.hold()}

    def stop(self) -> None:
        """End the recorders so that they flush and close their segments; after 15 s by force."""
        self._keeper.hold()
        if self._others is not None:
            self._others.stop()
        self._keeper.stop()
