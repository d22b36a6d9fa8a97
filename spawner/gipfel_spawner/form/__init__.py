"""User options: their model, the form's page, and their validation against the cluster."""
