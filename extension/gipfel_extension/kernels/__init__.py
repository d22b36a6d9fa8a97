"""Kernels that a server finds in the container it runs in, and that of a launch's ranks."""

from .examine import INSTALL, NATIVE, offer_image_kernel, offer_rank_kernel, rank_kernel

__all__ = ["INSTALL", "NATIVE", "offer_image_kernel", "offer_rank_kernel", "rank_kernel"]
