"""The protobuf decoder."""
