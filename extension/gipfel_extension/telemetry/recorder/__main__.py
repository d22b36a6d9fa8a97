"""``python -m gipfel_extension.telemetry.recorder``."""

import sys

from .command import main

sys.exit(main())
