"""What a cluster is, for hub and notebook alike: EDF, engines, scheduler, runtime, run folder; no Jupyter."""
