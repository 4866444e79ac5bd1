"""What a training step would cost elsewhere: a cost model of the runtime, replayed over a job's own gradients.

`workload` says when gradients become ready, `cluster` what the ranks are joined by, `collectives` what a reduction
costs, `replay` plays a step, `measured` and `calibrate` fit the terms to a trace (`adopt` and `rounds` make one of what
other tools wrote), `questions` asks what if. Pure, and without torch or Optuna.
"""
