"""Speed and memory beside plain programs of the same work and beside TRL.

Run with `make bench` or `python -m benchmarks`.
"""
