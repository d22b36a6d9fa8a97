"""A job's input and output, and the file systems beside it, as a plain user can see them."""

from .record import StorageRecord, read_storage

__all__ = ["StorageRecord", "read_storage"]
