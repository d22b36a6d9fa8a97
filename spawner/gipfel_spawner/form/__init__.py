"""Options of a user: as a value, on the form's page, from a link, and their check against the cluster."""
