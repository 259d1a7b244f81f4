"""The C interface of librdkafka, so that tasks read without a Python object per record."""
