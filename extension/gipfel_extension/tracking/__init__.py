"""Readers of the metric files that training programs already write, without importing their packages."""

from .find import FileSummary, Follower
from .scalar import Scalar

__all__ = ["FileSummary", "Follower", "Scalar"]
