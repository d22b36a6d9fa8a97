"""Make Gipfel's engine papermill's default, on import."""

from papermill.engines import papermill_engines

from gipfel_extension.training.papermill import EntryPoint

papermill_engines.register(None, EntryPoint)
