"""History of vetting results by node: kept per cluster, and shared if the user agrees."""

from .exclusions import Exclusion, Exclusions
from .queries import (
    Baseline,
    baselines_of,
    recent_bad,
    recent_fitness,
    recently_vetted,
    settle_borderline,
    usual_figure,
)
from .site_registry import Shared, SharedReport, consents, set_consent, share_record
from .store import History, HistoryContent, HistoryEntry, VettingRecord, history_root, record_of

__all__ = [
    "Baseline",
    "Exclusion",
    "Exclusions",
    "History",
    "HistoryContent",
    "HistoryEntry",
    "Shared",
    "SharedReport",
    "VettingRecord",
    "baselines_of",
    "consents",
    "history_root",
    "recent_bad",
    "recent_fitness",
    "recently_vetted",
    "record_of",
    "set_consent",
    "settle_borderline",
    "share_record",
    "usual_figure",
]
