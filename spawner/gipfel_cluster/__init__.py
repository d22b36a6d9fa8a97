"""What a cluster is: EDF, engines, scheduler, runtime and the run folder; nothing of Jupyter."""
