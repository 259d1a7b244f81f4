"""Functions of the librdkafka that confluent-kafka brings, by their names without the prefix.

Only the public interface is used (`rdkafka.h`), whose structures keep their layout within a major version.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from ctypes import c_char_p, c_int, c_int32, c_int64, c_size_t, c_ssize_t, c_void_p
from typing import Any

from confluent_kafka import KafkaError, KafkaException, cimpl

TEXT_BYTES = 512
"""Of the client's text about a fault."""
STATISTICS = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, c_void_p)

Signatures = Mapping[str, tuple[Any, list[Any]]]
_TEXT: list[Any] = [c_char_p, c_size_t]
_SIGNATURES: Signatures = {
    "conf_new": (c_void_p, []),
    "conf_set": (c_int, [c_void_p, c_char_p, c_char_p, *_TEXT]),
    "conf_set_stats_cb": (None, [c_void_p, STATISTICS]),
    "conf_destroy": (None, [c_void_p]),
    "new": (c_void_p, [c_int, c_void_p, *_TEXT]),
    "poll_set_consumer": (c_int, [c_void_p]),
    "queue_get_consumer": (c_void_p, [c_void_p]),
    "queue_new": (c_void_p, [c_void_p]),
    "queue_poll": (c_void_p, [c_void_p, c_int]),
    "queue_destroy": (None, [c_void_p]),
    "consumer_close": (c_int, [c_void_p]),
    "destroy": (None, [c_void_p]),
    "topic_partition_list_new": (c_void_p, [c_int]),
    "topic_partition_list_add": (c_void_p, [c_void_p, c_char_p, c_int32]),
    "topic_partition_list_set_offset": (c_int, [c_void_p, c_char_p, c_int32, c_int64]),
    "topic_partition_list_destroy": (None, [c_void_p]),
    "assign": (c_int, [c_void_p, c_void_p]),
    "consume_batch_queue": (c_ssize_t, [c_void_p, c_int, c_void_p, c_size_t]),
    "err2str": (c_char_p, [c_int]),
    "AdminOptions_new": (c_void_p, [c_void_p, c_int]),
    "AdminOptions_set_request_timeout": (c_int, [c_void_p, c_int, *_TEXT]),
    "AdminOptions_set_broker": (c_int, [c_void_p, c_int32, *_TEXT]),
    "AdminOptions_destroy": (None, [c_void_p]),
    "TopicCollection_of_topic_names": (c_void_p, [c_void_p, c_size_t]),
    "TopicCollection_destroy": (None, [c_void_p]),
    "DescribeTopics": (None, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "event_error": (c_int, [c_void_p]),
    "event_error_string": (c_char_p, [c_void_p]),
    "event_DescribeTopics_result": (c_void_p, [c_void_p]),
    "event_destroy": (None, [c_void_p]),
    "DescribeTopics_result_topics": (ctypes.POINTER(c_void_p), [c_void_p, c_void_p]),
    "TopicDescription_error": (c_void_p, [c_void_p]),
    "error_code": (c_int, [c_void_p]),
    "TopicDescription_topic_id": (c_void_p, [c_void_p]),
    "Uuid_base64str": (c_char_p, [c_void_p]),
}
_QUICK_SIGNATURES: Signatures = {
    "message_destroy": (None, [c_void_p]),
    "message_timestamp": (c_int64, [c_void_p, c_void_p]),
    "message_leader_epoch": (c_int32, [c_void_p]),
    "message_broker_id": (c_int32, [c_void_p]),
    "message_headers": (c_int, [c_void_p, c_void_p]),
    "header_get_all": (c_int, [c_void_p, c_size_t, c_void_p, c_void_p, c_void_p]),
    "headers_new": (c_void_p, [c_size_t]),
    "header_add": (c_int, [c_void_p, c_char_p, c_ssize_t, c_char_p, c_ssize_t]),
    "headers_destroy": (None, [c_void_p]),
}


def _functions(library: Any, signatures: Signatures) -> dict[str, Callable[..., Any]]:
    functions = {}
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"rd_kafka_{name}")
        function.restype, function.argtypes = result, arguments
        functions[name] = function
    return functions


# The client's own extension module: it resolves symbols of the librdkafka that it is linked with.
C = _functions(ctypes.CDLL(cimpl.__file__), _SIGNATURES)
QUICK = _functions(ctypes.PyDLL(cimpl.__file__), _QUICK_SIGNATURES)
"""These never block: releasing the GIL would cost more than the calls."""


def failure(code: int, text: str | bytes = "") -> KafkaException:
    """As the client's own classes raise it."""
    reason = text or C["err2str"](code)
    return KafkaException(KafkaError(code, reason.decode(errors="replace") if isinstance(reason, bytes) else reason))
