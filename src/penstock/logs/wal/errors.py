"""What can go wrong with a WAL, by what the caller does next.

TransientError
├── WalFullError        no space in a partition or on the disk, or too many requests: send again later
└── WalAwayError        the server does not answer
UserError
├── UnknownTopicError   there is no such topic, partition or job
├── WalRefusedError     the request contradicts what the server keeps, or its limits
│   └── BadBodyError    the body is not what its content type says
└── WalDeniedError      the server requires a token, or another host or origin
InvariantError
└── WalDamagedError     acknowledged records can no longer be read
"""

from __future__ import annotations

from penstock.errors import InvariantError, TransientError, UserError


class WalFullError(TransientError):
    """There is no space: nothing was appended, and the same append may be sent again later."""


class WalAwayError(TransientError):
    """The server did not answer; an append may have happened, and is safe to repeat with the same key."""


class UnknownTopicError(UserError):
    """There is no such topic, partition or job."""


class WalRefusedError(UserError):
    """The request cannot be served as it is; nothing was changed."""


class BadBodyError(WalRefusedError):
    """Nothing of the body was appended."""


class WalDeniedError(UserError):
    """The server does not accept requests of this client."""


class WalDamagedError(InvariantError):
    """Acknowledged records are damaged: nothing is skipped or deleted."""
