"""Speed and memory, side by side with the plain way of doing the same work and with TRL. Run with `make bench` or `python -m benchmarks`."""
