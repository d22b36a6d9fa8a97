"""Find, parse, resolve and check environment definition files (EDF)."""

from .check import as_json, check_edf, check_edfs, check_local, is_edf_directory, show_edf
from .lookup import find_edf, list_edfs
from .model import DIALECTS, Diagnostic, Dialect, Edf, EdfError, Mount, annotation_variables
from .resolve import Resolution, load_edf, resolve, resolve_text

__all__ = [
    "DIALECTS",
    "Diagnostic",
    "Dialect",
    "Edf",
    "EdfError",
    "Mount",
    "Resolution",
    "annotation_variables",
    "as_json",
    "check_edf",
    "check_edfs",
    "check_local",
    "find_edf",
    "is_edf_directory",
    "list_edfs",
    "load_edf",
    "resolve",
    "resolve_text",
    "show_edf",
]
