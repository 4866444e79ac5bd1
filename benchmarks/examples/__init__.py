"""Training scripts as users write them: quoted in the README, run by the tests and by `make demo`."""
