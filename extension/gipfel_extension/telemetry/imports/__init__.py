"""Recordings of ours and of others as one table, with what the format lost."""

from .open import open_recording
from .recording import Recording

__all__ = ["Recording", "open_recording"]
