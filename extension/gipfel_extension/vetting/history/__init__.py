"""History of vetting results by node: stored per cluster, and shared with the site if the user agrees."""

from .queries import (
    Baseline,
    Exclusion,
    Exclusions,
    compute_baselines,
    count_recent_bad,
    decide_borderline,
    recently_vetted,
)
from .site_registry import SharedReport, SharingResult, has_consent, set_consent, share_record
from .store import History, HistoryContent, HistoryEntry, VettingRecord, history_root, record_from_results

__all__ = [
    "Baseline",
    "Exclusion",
    "Exclusions",
    "History",
    "HistoryContent",
    "HistoryEntry",
    "SharedReport",
    "SharingResult",
    "VettingRecord",
    "compute_baselines",
    "count_recent_bad",
    "decide_borderline",
    "has_consent",
    "history_root",
    "recently_vetted",
    "record_from_results",
    "set_consent",
    "share_record",
]
