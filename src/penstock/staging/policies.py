"""Policies of a batch that differ from those of its job file."""

from __future__ import annotations

from dataclasses import replace

from penstock.job.spec import NewColumnPolicy, Policies


def stopping_nothing(on: Policies) -> Policies:
    """The policies of a replay: a record that would stop the job stays where it is and stops nothing."""
    return replace(on, new_column=NewColumnPolicy.QUARANTINE) if on.new_column is NewColumnPolicy.FAIL else on
