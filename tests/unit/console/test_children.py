"""Commands in processes of their own: one of a kind per job, with progress, a result, and an end on request."""

from __future__ import annotations

import queue
import sys

import pytest

from penstock.console.children import Child, Children
from penstock.errors import UserError

REPORTS = """
import json, sys
print("a line", file=sys.stderr)
print(json.dumps({"step": "offsets", "done": 3, "total": 4}), file=sys.stderr)
print(json.dumps({"ok": True}))
sys.exit(3)
"""
WAITS = "import sys; print('waiting', file=sys.stderr, flush=True); sys.stdin.read(); import time; time.sleep(600)"
TOO_MUCH = "print('x' * 50_000_000)"


def run(code: str) -> tuple[Children, Child, queue.Queue[Child]]:
    children, changes = Children((sys.executable, "-c")), queue.Queue[Child]()
    return children, children.start("verify", "orders", [code], "anna", changes.put), changes


def ended(changes: queue.Queue[Child]) -> Child:
    while (child := changes.get(timeout=60)).running:
        pass
    return child


def test_progress_lines_result_and_exit_code_are_kept_after_the_end() -> None:
    children, _, changes = run(REPORTS)
    child = ended(changes)
    assert children.of("verify", "orders") is child
    assert (child.progress, list(child.lines)) == (("offsets", 3, 4), ["a line"])
    assert (child.result, child.exit_code, child.who) == ({"ok": True}, 3, "anna")


def test_a_second_one_of_a_kind_is_refused_until_the_first_has_ended() -> None:
    children, child, changes = run(WAITS)
    changes.get(timeout=60)
    with pytest.raises(UserError, match="runs already"):
        children.start("verify", "orders", [WAITS], "bert", changes.put)
    child.cancel()
    assert ended(changes).cancelled
    children.start("verify", "orders", [REPORTS], "bert", changes.put)
    assert ended(changes).who == "bert"


def test_close_ends_what_runs() -> None:
    children, child, changes = run(WAITS)
    changes.get(timeout=60)
    children.close()
    assert child.process.returncode is not None
    assert ended(changes).exit_code == child.process.returncode


def test_output_without_bound_is_dropped() -> None:
    _, _, changes = run(TOO_MUCH)
    child = ended(changes)
    assert (child.exit_code, child.result) == (0, None)
