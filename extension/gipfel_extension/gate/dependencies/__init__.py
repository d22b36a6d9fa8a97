"""Judge files that name dependencies: what of them lets others choose what is installed."""
