"""A consumer of one partition by the C interface of the client, and requests that only that interface offers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping

import numpy as np
from confluent_kafka import KafkaError

from penstock.logs.kafka.native.library import STATISTICS, TEXT_BYTES, C, failure
from penstock.logs.kafka.native.messages import Addresses, Messages

_CONSUMER = 1
_ANY_REQUEST = 0
_UNKNOWN = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)


class RawConsumer:
    """A consumer that is assigned one partition; used by one thread. Raises `KafkaException`."""

    def __init__(self, settings: Mapping[str, str], on_statistics: Callable[[str], None]) -> None:
        # The client keeps no reference to it.
        self._on_statistics = STATISTICS(lambda _, text, length, __: _pass_statistics(on_statistics, text, length))
        self._client = self._opened(settings)
        C["poll_set_consumer"](self._client)
        self._queue = C["queue_get_consumer"](self._client)
        self._pointers: Addresses = np.zeros(0, np.uint64)

    def assign(self, topic: str, partition: int, offset: int) -> None:
        listed, name = C["topic_partition_list_new"](1), topic.encode()
        try:
            C["topic_partition_list_add"](listed, name, partition)
            C["topic_partition_list_set_offset"](listed, name, partition, offset)
            code = C["assign"](self._client, listed)
        finally:
            C["topic_partition_list_destroy"](listed)
        if code:
            raise failure(code)

    def consume(self, count_max: int, seconds_max: float) -> Messages | None:
        """The records that the client has fetched; waits only for the first, None if none arrives."""
        if len(self._pointers) < count_max:
            self._pointers = np.zeros(count_max, np.uint64)
        place = self._pointers.ctypes.data
        count = max(0, C["consume_batch_queue"](self._queue, int(seconds_max * 1000), place, 1))
        if count and count_max > 1:
            count += max(0, C["consume_batch_queue"](self._queue, 0, place + 8, count_max - 1))
        return Messages(self._pointers[:count].copy()) if count else None

    def ask_topic_id(self, broker: int, topic: str, seconds_max: float) -> TopicIdRequest:
        """Send the request; its answer may be fetched later."""
        return TopicIdRequest(self._client, broker, topic, seconds_max)

    def close(self) -> None:
        C["queue_destroy"](self._queue)
        C["consumer_close"](self._client)
        C["destroy"](self._client)

    def _opened(self, settings: Mapping[str, str]) -> int:
        text = ctypes.create_string_buffer(TEXT_BYTES)
        conf = C["conf_new"]()
        for name, value in settings.items():
            if C["conf_set"](conf, name.encode(), str(value).encode(), text, TEXT_BYTES):
                C["conf_destroy"](conf)
                raise failure(KafkaError._INVALID_ARG, text.value)
        C["conf_set_stats_cb"](conf, self._on_statistics)
        client: int | None = C["new"](_CONSUMER, conf, text, TEXT_BYTES)
        if not client:
            C["conf_destroy"](conf)
            raise failure(KafkaError._FAIL, text.value)
        return client


def _pass_statistics(on_statistics: Callable[[str], None], text: int, length: int) -> int:
    on_statistics(ctypes.string_at(text, length).decode())
    return 0


class TopicIdRequest:
    """A request that is under way; `answer` or `close` end it, before its client is closed. Raises `KafkaException`."""

    def __init__(self, client: int, broker: int, topic: str, seconds_max: float) -> None:
        self._millis = int(seconds_max * 1000)
        text = ctypes.create_string_buffer(TEXT_BYTES)
        names = (ctypes.c_char_p * 1)(topic.encode())
        options = C["AdminOptions_new"](client, _ANY_REQUEST)
        topics = C["TopicCollection_of_topic_names"](ctypes.addressof(names), 1)
        self._queue: int | None = C["queue_new"](client)
        try:
            C["AdminOptions_set_request_timeout"](options, self._millis, text, TEXT_BYTES)
            if code := C["AdminOptions_set_broker"](options, broker, text, TEXT_BYTES):
                raise failure(code, text.value)
            C["DescribeTopics"](client, topics, options, self._queue)
        finally:
            C["TopicCollection_destroy"](topics)
            C["AdminOptions_destroy"](options)

    def answer(self) -> str | None:
        """The id that the topic has for the broker; None if it knows no such topic."""
        try:
            # The client ends the request itself at the timeout.
            event = C["queue_poll"](self._queue, 2 * self._millis)
        finally:
            self.close()
        if not event:
            raise failure(KafkaError._TIMED_OUT)
        try:
            return _topic_id(event)
        finally:
            C["event_destroy"](event)

    def close(self) -> None:
        if self._queue is not None:
            C["queue_destroy"](self._queue)
            self._queue = None


def _topic_id(event: int) -> str | None:
    if code := C["event_error"](event):
        raise failure(code, C["event_error_string"](event))
    count = ctypes.c_size_t()
    described = C["DescribeTopics_result_topics"](C["event_DescribeTopics_result"](event), ctypes.addressof(count))
    [topic] = [described[number] for number in range(count.value)]
    code = C["error_code"](C["TopicDescription_error"](topic))
    if code in _UNKNOWN:
        return None
    if code:
        raise failure(code)
    result: bytes = C["Uuid_base64str"](C["TopicDescription_topic_id"](topic))
    return result.decode()
