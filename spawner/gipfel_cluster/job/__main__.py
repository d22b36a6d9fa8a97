"""``python -m gipfel_cluster.job``: run the job that ``$GIPFEL_JOB`` describes."""

import sys

from .runner import main

sys.exit(main())
