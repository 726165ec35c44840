"""Training: pure steps, compiled in chunks, all seeds in one program, resumable to the same bits.

`objectives` defines losses, `step` makes one step and a chunk of them, `schedule` decides which
rows come when, `loop` runs everything, `evaluate` predicts with or without noise, `sharding`
distributes a run over devices, `state` holds parameters and optimizer, `interrupt` stops a run
between two steps on Ctrl-C. `adversarial` trains on perturbed inputs; `white_box` exposes a trained
model to the attacks of `hopfax.text`.

Import from these modules; start with `loop.fit` and an objective from `objectives.classification`.
`experiments/cells.py` is a complete run.
"""
