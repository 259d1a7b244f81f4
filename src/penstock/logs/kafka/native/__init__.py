"""The C interface of librdkafka, for what tasks read: without an object of Python for each record."""
