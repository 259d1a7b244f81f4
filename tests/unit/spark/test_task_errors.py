"""A Penstock error that a Spark task raised keeps its branch, its detail and its hint on the way to the driver."""

from __future__ import annotations

import pytest

from penstock.errors import InvariantError, TransientError, UserError
from penstock.spark.failures import task_error
from penstock.storage import NotFoundError

TRACE = """\
Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
OSError: [Errno 13] Permission denied: '/lake'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "task.py", line 2, in run
penstock.errors.{error}

\tat org.apache.spark.api.python.BasePythonRunner.read(PythonRunner.scala:581)
"""


@pytest.mark.parametrize("branch", [UserError, TransientError, InvariantError])
def test_error_class_detail_and_hint_reach_the_driver(branch: type[UserError]) -> None:
    raised = branch("permission denied: /lake", detail="Errno 13\nof the disk", hint="ask")
    result = task_error(Exception(TRACE.format(error=f"{branch.__name__}: {raised}")))
    assert type(result) is branch
    assert (result.primary, result.detail, result.hint) == (raised.primary, raised.detail, raised.hint)


def test_an_error_without_detail_prints_no_detail() -> None:
    result = task_error(Exception(TRACE.format(error="UserError: no")))
    assert result is not None
    assert (result.primary, result.detail, result.hint) == ("no", "", "")


def test_a_more_special_error_arrives_as_its_branch() -> None:
    text = TRACE.format(error="UserError: x").replace("errors.UserError", f"storage.failures.{NotFoundError.__name__}")
    result = task_error(Exception(text))
    assert result is not None
    assert issubclass(NotFoundError, type(result))


def test_a_foreign_exception_is_passed_on() -> None:
    assert task_error(Exception(TRACE.format(error="x").replace("penstock.errors.x", "ZeroDivisionError: x"))) is None
