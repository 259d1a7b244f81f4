"""Upkeep of the group that any of its members does: end pauses whose time is over, forget silent client ids. Pure."""

from __future__ import annotations

from penstock.claims.member.membership import Send
from penstock.claims.member.outbox import Outbox
from penstock.claims.protocol.group_view import GroupView
from penstock.claims.protocol.records import ForgettingMember, ResumingGroup, Who

FORGET_INTERVALS = 30
"""A client id that is silent for so long is forgotten: randomly generated ids would fill the snapshots."""


def end_pauses(view: GroupView, outbox: Outbox, wall_now: float) -> list[Send]:
    """End pauses whose time is over: any member may do so (RULES M4)."""
    waiting = {each.pause_id for each in outbox.waiting(ResumingGroup)}
    return [
        Send(place, outbox.record_of(ResumingGroup, pause_id=pause_id))
        for pause_id, pause in view.pauses().items()
        if pause.until_at is not None and wall_now >= pause.until_at and pause_id not in waiting
        for place in view.paused_places(pause_id)
    ]


def forget_silent(view: GroupView, outbox: Outbox, who: Who, now: float) -> list[Send]:
    """Forget the client ids, other than our own, that have long been silent."""
    waiting = {each.client_id for each in outbox.waiting(ForgettingMember)}
    silent = [
        each
        for each in view.members()
        if each.who != who
        and each.who.client_id not in waiting
        and view.silence_seconds(each.who.client_id, now) > FORGET_INTERVALS * view.heartbeat_seconds
    ]
    return [
        Send(
            view.home_of(each.who.client_id),
            outbox.record_of(ForgettingMember, client_id=each.who.client_id, if_last=each.last),
        )
        for each in silent
    ]
