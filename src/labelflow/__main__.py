"""`python -m labelflow`, for `torchrun -m labelflow` and `accelerate launch -m labelflow`."""

import sys

from labelflow.cli import main

if __name__ == "__main__":
    sys.exit(main())
