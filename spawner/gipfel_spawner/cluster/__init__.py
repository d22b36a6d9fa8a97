"""What all servers of a hub share: one scheduler, one watcher, and one answer for all pages."""
