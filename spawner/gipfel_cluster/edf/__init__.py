"""Environment definition files (EDF): found, read, inherited, expanded and checked."""

from .check import as_json, check_edf, check_edfs, check_here, show_edf
from .lookup import find_edf, list_edfs
from .model import Diagnostic, Edf, EdfError, Mount
from .resolve import Resolution, load_edf, resolve

__all__ = [
    "Diagnostic",
    "Edf",
    "EdfError",
    "Mount",
    "Resolution",
    "as_json",
    "check_edf",
    "check_edfs",
    "check_here",
    "find_edf",
    "list_edfs",
    "load_edf",
    "resolve",
    "show_edf",
]
