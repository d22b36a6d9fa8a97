"""Export of runs to other systems: to an MLflow server over HTTP, and as RO-Crates."""
