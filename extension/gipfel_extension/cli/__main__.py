"""Entry point of ``python -m gipfel_extension.cli``."""

import sys

from .main import main

sys.exit(main())
