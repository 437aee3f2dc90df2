"""The parts of `scripts/bench`: contenders (one child process each), timing, and the report."""
