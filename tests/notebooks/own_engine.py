"""Makes Gipfel's engine the one that papermill takes where none is named, by being imported."""

from papermill.engines import papermill_engines

from gipfel_extension.training.papermill import EntryPoint

papermill_engines.register(None, EntryPoint)
