"""GPUs that can't be used."""

from .cause import Cause

GPUS = (
    Cause(
        name="gpu-exclusive",
        reason="A GPU is taken by another process and is in exclusive mode.",
        fix="Start again on another node; tell the administrators this node's name if nobody else is there.",
        patterns=(
            r"all CUDA-capable devices are busy or unavailable",
            r"cudaErrorDevicesUnavailable",
            r"CUDA_ERROR_DEVICE_UNAVAILABLE",
        ),
    ),
    Cause(
        name="gpu-driver",
        reason="The node's GPU driver does not answer, or is older than the image needs.",
        fix="Start again on another node, or take an image for an older CUDA.",
        patterns=(
            r"CUDA driver version is insufficient",
            r"nvidia-container-cli: (?:initialization|mount) error",
            r"couldn't communicate with the NVIDIA driver",
            r"nvidia-container-cli: requirement error",
        ),
    ),
    Cause(
        name="gpu-lost",
        reason="A GPU of the node has failed.",
        fix="Start again: Slurm takes another node. Tell the administrators this node's name.",
        patterns=(r"GPU is lost", r"fallen off the bus", r"uncorrectable ECC error"),
    ),
)
