"""What a trace says about the job: each module computes one analysis and returns a dataclass."""
