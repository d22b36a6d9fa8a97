"""A notebook as a batch job: planned, submitted, listed and followed."""
