"""What can go wrong with a WAL, by what the caller does next.

TransientError
├── WalFullError        unread records fill a partition, or a disk is full: send again later
└── WalAwayError        the server does not answer
UserError
├── UnknownTopicError   there is no such topic, partition or job
├── WalRefusedError     the request contradicts what the server keeps, or its limits
└── WalDeniedError      the server wants a token, and knows this one not
InvariantError
└── WalDamagedError     acknowledged records can no longer be read
"""

from __future__ import annotations

from penstock.errors import InvariantError, TransientError, UserError


class WalFullError(TransientError):
    """There is no room: nothing was appended, and the same append may be sent again later."""


class WalAwayError(TransientError):
    """The server did not answer; an append may have happened, and is safe to repeat with the same key."""


class UnknownTopicError(UserError):
    """There is no such topic, partition or job."""


class WalRefusedError(UserError):
    """The request cannot be served as it is; nothing was changed."""


class WalDeniedError(UserError):
    """The server answers only those who have its token."""


class WalDamagedError(InvariantError):
    """Acknowledged records are damaged or gone: nothing is cut, and the partition stays closed."""
