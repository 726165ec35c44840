"""One module per case; `experiments.benchmarks.harness` runs them.

A case's docstring says what it measures and against what. The module declares

- `SETTINGS`: arguments by setting. The page summarizes settings with the same prefix before a colon
  in one line; `--quick` measures the first setting;
- `programs(data_dir, *arguments)`: programs by name, compiled and checked against each other, or
  `figures(data_dir, *arguments)`: numbers by name, for cases that time nothing, or both;
- `RATIOS`: "A / B", the time of program A over that of B, or a figure, with its goal,
  such as "≥ 5" or "≤ 1.3 (CPU)", or None;
- optionally `SECONDS`: time for the rounds of a setting.
"""
