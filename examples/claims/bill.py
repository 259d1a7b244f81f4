"""Bill every order once per delivery; start it on several machines, and they share the partitions."""

import os

from penstock.claims import LostClaimError, Member

BROKERS = os.environ["KAFKA_BROKERS"]

with Member(BROKERS, group="example-billing", topics=["example_orders"], heartbeat_seconds=1) as member:
    billed = 0
    while billed < 4:
        for work in member.poll(seconds=1.0):
            print(f"billed {work.value.decode()}")
            try:
                member.done(work)
                billed += 1
            except LostClaimError:
                pass  # another process does it again
