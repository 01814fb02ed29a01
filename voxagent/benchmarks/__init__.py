"""Benchmarks of the product: they print JSON, and a plugin adds its peer to the same run."""
