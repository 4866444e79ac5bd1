"""Traces made from a known schedule, for benchmarks and for the tests of the analyses."""
