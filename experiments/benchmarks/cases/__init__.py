"""One module a case; `experiments.benchmarks.harness` runs them.

A case's docstring says what it measures and against what. The module declares

- `SETTINGS`: arguments by the name of a setting. The page summarises settings with the same words
  before a colon together; `--quick` measures the first one;
- `programs(data_dir, *arguments)`: programs by name, compiled and checked against each other, or
  `figures(data_dir, *arguments)`: numbers by name, where nothing is timed in turns, or both;
- `RATIOS`: "A / B", the time of program A over that of B, or a figure, with its goal,
  such as "≥ 5" or "≤ 1.3 (CPU)", or None;
- optionally `SECONDS`: how long the rounds of a setting take.
"""
