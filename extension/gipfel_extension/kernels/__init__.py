"""Kernels that a server finds in the container it runs in."""

from .image_python import NATIVE, offer_image_kernel

__all__ = ["NATIVE", "offer_image_kernel"]
