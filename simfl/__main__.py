"""`python -m simfl` is `simfl`."""

import sys

from simfl.cli import main

sys.exit(main())
