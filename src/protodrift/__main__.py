"""`python -m protodrift`."""

import sys

from .cli import main

sys.exit(main())
