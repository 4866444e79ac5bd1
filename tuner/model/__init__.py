"""What a training step would cost elsewhere: a cost model of the runtime, replayed over a job's own gradients.

`workload` says when gradients become ready, `cluster` which links join the ranks, `collectives` what a reduction costs.
`replay` plays a step; `measured` and `calibrate` fit the terms to a trace, which `adopt` and `rounds` make of traces of
other tools; `questions` predicts the job under changes. Pure, and without torch or Optuna.
"""
