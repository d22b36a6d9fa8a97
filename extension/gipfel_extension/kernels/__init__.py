"""Kernels that a server finds in the container it runs in."""

from .image_python import offer_image_kernel

__all__ = ["offer_image_kernel"]
