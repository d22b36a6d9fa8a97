"""Files of a run's samples: Arrow streams while the run is recorded, Parquet after it ended."""
