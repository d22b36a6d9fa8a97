"""The registry: a JupyterHub service, in its own process, with the vetting results of a whole site."""
