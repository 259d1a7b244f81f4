"""Claims: the exclusive right of a process to a partition."""

from penstock.claims.acks import DoneTwiceError, LostClaimError, UnknownWorkError
from penstock.claims.agent import CoordinationOptions
from penstock.claims.beginnings import PositionOutOfRangeError
from penstock.claims.member import Member
from penstock.claims.membership import DuplicateClientError, MemberOptions, ReplacedError
from penstock.claims.static import Claims, StaticClaims
from penstock.claims.streams import Work

__all__ = [
    "Claims",
    "CoordinationOptions",
    "DoneTwiceError",
    "DuplicateClientError",
    "LostClaimError",
    "Member",
    "MemberOptions",
    "PositionOutOfRangeError",
    "ReplacedError",
    "StaticClaims",
    "UnknownWorkError",
    "Work",
]
