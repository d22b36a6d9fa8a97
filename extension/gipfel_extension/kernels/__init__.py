"""Kernels that a server finds in the container it runs in, and that of a launch's ranks."""

from .image_python import NATIVE, offer_image_kernel
from .rank_python import INSTALL, offer_rank_kernel, rank_kernel

__all__ = ["INSTALL", "NATIVE", "offer_image_kernel", "offer_rank_kernel", "rank_kernel"]
