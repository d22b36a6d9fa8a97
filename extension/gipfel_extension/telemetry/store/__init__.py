"""The files of a run's samples: Arrow streams are the truth, and become Parquet when the run has ended."""
