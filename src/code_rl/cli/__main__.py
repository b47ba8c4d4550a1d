"""`python -m code_rl.cli VERB`."""

import sys

from code_rl.cli.main import main

sys.exit(main())
