"""A launch as a folder, and the process that supervises it."""
