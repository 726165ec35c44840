"""`python -m experiments.benchmarks`."""

import sys

from experiments.benchmarks.harness import main

if __name__ == "__main__":
    sys.exit(main())
