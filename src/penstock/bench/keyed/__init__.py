"""`bench keyed`: rows unique by key, against MERGE INTO; loads that are repeated; batches into tables that grow."""

from penstock.bench.keyed.compare import bench_keyed
from penstock.bench.keyed.growth import bench_growth

__all__ = ["bench_growth", "bench_keyed"]
