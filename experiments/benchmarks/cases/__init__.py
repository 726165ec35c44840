"""One module per case; `experiments.benchmarks.harness` runs them.

- `SETTINGS`: by setting, a function of the data folder that returns programs by name, compiled and
  checked against each other. A number in place of a program is a figure: it is written as it is.
  The page has one line for settings with the same prefix before a colon; `--quick` measures the
  first setting.
- `RATIOS`: "A / B", the time of program A over that of B, or a figure, with its goal,
  such as "≥ 5" or "≤ 1.3 (CPU)", or "".
- `SECONDS`, optional: time for the rounds of a setting.
"""
