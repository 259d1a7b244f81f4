"""Payload bytes into columns, a whole Arrow batch at a time."""

from penstock.flow.decode.decoder import Decoder, decoder_for

__all__ = ["Decoder", "decoder_for"]
