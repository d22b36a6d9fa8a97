"""Kernel side: widgets and magics."""
