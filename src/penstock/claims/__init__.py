"""Claims: the exclusive right of a process to a partition."""

from penstock.claims.group import Claims, StaticClaims
from penstock.claims.member.agent import CoordinationOptions
from penstock.claims.member.consumer.acks import LostClaimError, NotInFlightError
from penstock.claims.member.consumer.member import Member
from penstock.claims.member.consumer.start_offsets import PositionOutOfRangeError
from penstock.claims.member.consumer.streams import Work
from penstock.claims.member.membership import DuplicateClientError, MemberOptions, ReplacedError

__all__ = [
    "Claims",
    "CoordinationOptions",
    "DuplicateClientError",
    "LostClaimError",
    "Member",
    "MemberOptions",
    "NotInFlightError",
    "PositionOutOfRangeError",
    "ReplacedError",
    "StaticClaims",
    "Work",
]
