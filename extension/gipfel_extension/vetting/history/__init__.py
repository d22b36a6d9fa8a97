"""History of vetting results by node: stored per cluster, and shared with the site if the user agrees."""
