"""Registry: a JupyterHub service, in its own process, that collects the vetting results of a whole site."""
