"""``auto``: the source of a machine whose GPUs nobody named."""

from ..sample import SourceError
from . import no_argument
from .nvml import open_nvml
from .nvml_beside_dcgm import beside_dcgm
from .protocol import AbsentSource, Source, SourceRequest


def open_auto(argument: str, request: SourceRequest) -> Source:
    """``auto``: the job's GPUs of whichever maker, or nothing."""
    no_argument("auto", argument)
    try:
        nvml = open_nvml("", request)
    except SourceError:
        pass
    else:
        return beside_dcgm(nvml, request)
    from .amdsmi_source import open_amdsmi  # noqa: PLC0415 - where there is no NVIDIA GPU alone

    try:
        return open_amdsmi("", request)
    except SourceError:
        return AbsentSource("nvml")
