"""Speed and memory of the parts, side by side with the plain way of doing the same work. Run with `make bench` or `python -m benchmarks`."""
