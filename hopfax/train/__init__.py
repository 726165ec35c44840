"""Training of all seeds in one compiled program, with bit-for-bit resumption.

- `loop` trains; `objectives` defines losses, `step` the training step, `state` parameters and
  optimizer, `schedule` the order of rows, `sharding` the distribution over devices.
- `evaluate` predicts with or without noise, and `metrics` scores predictions.
- `adversarial` trains on perturbed inputs; `white_box` exposes a trained model to the attacks of
  `hopfax.text`.
- `checkpoint` saves and restores runs; `interrupt` stops a run between steps on Ctrl-C or SIGTERM.

Import from these modules; start with `loop.fit` and an objective from `objectives.classification`.
`experiments/cells.py` is a complete run.
"""
