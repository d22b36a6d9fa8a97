"""What a user chooses: as a value, on a page, from a link, and whether it fits the cluster."""
