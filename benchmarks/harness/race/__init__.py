"""The part of a race that every rank of every contender runs, in its own environment.

These modules need Python and NumPy alone (and the peer they measure): the environments of the MPI peers hold nothing
else. A test reads their imports.
"""
