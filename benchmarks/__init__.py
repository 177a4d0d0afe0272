"""Programs that measure; not part of the package. Run them from the root: `python -m benchmarks.NAME`."""
