"""Planning: which offsets the next batch holds, decided without clock, network or disk."""

from penstock.plan.planner import (
    BeyondEndError,
    GapError,
    Lane,
    LogCutError,
    LostTailError,
    Terms,
    Wait,
    plan,
    records_per_batch_max,
    records_per_flush,
)

__all__ = [
    "BeyondEndError",
    "GapError",
    "Lane",
    "LogCutError",
    "LostTailError",
    "Terms",
    "Wait",
    "plan",
    "records_per_batch_max",
    "records_per_flush",
]
