"""Starting a step from wherever one is: in a container of a job, on a job's node, or on a machine alone."""

import os
import socket
from collections.abc import Mapping
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from ..broker.messages import (
    MOST_BYTES,
    Refusal,
    Spot,
    Started,
    StepRequest,
    broker_socket,
    to_line,
)
from ..edf.model import Mount
from ..keeper_process import in_container, keeper_process
from ..model import GipfelError
from .handle import BrokersKeeper, OwnKeeper, StepHandle
from .setting import setting_of_host
from .spec import StepPlan, StepSetting, StepSpec

_LIMIT_S = 75.0
_ANSWER: TypeAdapter[Refusal | Started] = TypeAdapter(Refusal | Started)


def start_step(
    spec: StepSpec,
    environment: Mapping[str, str] | None = None,
    *,
    setting: StepSetting | None = None,
    mounts: tuple[Mount, ...] = (),
) -> StepHandle:
    """Start a step; it ends with the process that calls this.

    Parameters
    ----------
    environment
        The variables of this process, by which it is told where it is.
    setting
        On the host: the job, where it is not that of the variables.
    mounts
        On the host: more folders that the containers show.

    Raises
    ------
    GipfelError
        The folder can't be made, the host does not see it, or the job's broker refused.
    """
    environment = dict(os.environ) if environment is None else environment
    folder = Path(spec.folder)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        Path(folder, f"{spec.name}.json").unlink(missing_ok=True)
    except OSError as error:
        raise GipfelError(
            f"The step's folder {folder} can't be made: {error.strerror}.", "Choose another one."
        ) from error
    if setting is None and in_container(environment):
        return _through_broker(spec, environment)
    setting = setting_of_host(environment) if setting is None else setting
    return _here(StepPlan(spec=spec, setting=setting, folder=spec.folder, mounts=mounts), environment)


def _here(plan: StepPlan, environment: Mapping[str, str]) -> StepHandle:
    process = keeper_process(environment)
    assert process.stdin is not None  # noqa: S101 - a pipe was asked for
    process.stdin.write(plan.model_dump_json().encode() + b"\n")
    process.stdin.flush()
    return StepHandle(plan.spec, OwnKeeper(process))


def _through_broker(spec: StepSpec, environment: Mapping[str, str]) -> StepHandle:
    path = broker_socket(environment)
    if path is None:
        raise _gone()
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        request = StepRequest(
            spec=spec.model_dump(mode="json"),
            folder=Spot.of(Path(spec.folder)),
            directory=Spot.of(Path(spec.directory)) if spec.directory else None,
        )
        connected.settimeout(_LIMIT_S)
        connected.connect(str(path))
        connected.sendall(to_line(request))
        line, rest = _line(connected)
        said = _ANSWER.validate_json(line)
        if isinstance(said, Refusal):
            raise GipfelError(said.problem, said.fix)  # noqa: TRY301 - closed like the others
        connected.settimeout(None)
    except OSError as error:
        connected.close()
        raise GipfelError(f"The step can't be started: {error.strerror or error}.") from error
    except ValidationError as error:
        connected.close()
        raise GipfelError(
            "The job's broker gave an answer of another version.",
            "Use the gipfel of the runtime that this job runs with.",
        ) from error
    except BaseException:
        connected.close()
        raise
    return StepHandle(spec, BrokersKeeper(connected, rest))


def _line(connected: socket.socket) -> tuple[bytes, bytes]:
    """The first line that comes, and what came behind it."""
    content = b""
    while b"\n" not in content:
        piece = connected.recv(MOST_BYTES)
        if not piece:
            raise _gone()
        content += piece
    line, _, rest = content.partition(b"\n")
    return line, rest


def _gone() -> GipfelError:
    return GipfelError("This job's broker does not answer.", "Start the server anew.")
