"""`python -m postrow` is the command `postrow`."""

import sys

from postrow.cli import main

sys.exit(main())
