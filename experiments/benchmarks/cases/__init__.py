"""One module per case; `experiments.benchmarks.harness` runs them.

- `SETTINGS`: arguments by setting. The page has one line for settings with the same prefix before
  a colon; `--quick` measures the first setting.
- `programs(data_dir, *arguments)`: programs by name, compiled and checked against each other.
  A number in place of a program is a figure: it is written as it is.
- `RATIOS`: "A / B", the time of program A over that of B, or a figure, with its goal,
  such as "≥ 5" or "≤ 1.3 (CPU)", or None.
- `SECONDS`, optional: time for the rounds of a setting.
"""
