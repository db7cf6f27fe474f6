"""python -m leaseway.cli"""

import sys

from leaseway.cli.main import main

sys.exit(main())
