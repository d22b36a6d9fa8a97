"""Lowest layer, for hub and notebooks: EDF, engines, scheduler, runtime, run folder; nothing of Jupyter."""
