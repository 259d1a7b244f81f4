"""Offset-addressed logs.

Only the values are re-exported: plan and Spark's Python workers use them, and must not load the Kafka client for it.
"""

from penstock.logs.log import Batch, Bounds, Partition, Slice

__all__ = ["Batch", "Bounds", "Partition", "Slice"]
