"""``python -m specrs.cli`` is ``specrs``."""

import sys

from specrs.cli import main

sys.exit(main())
