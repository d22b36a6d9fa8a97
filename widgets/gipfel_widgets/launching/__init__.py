"""Launch cells: distributed training from a notebook, by a magic or a form; found again after a restart."""
