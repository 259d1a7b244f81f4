"""Creates the topics that Penstock keeps for itself."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import KafkaError
from confluent_kafka.admin import NewTopic

from penstock.errors import UserError
from penstock.logs.kafka.admin import BoundedAdmin
from penstock.logs.kafka.faults import Fault

REPLICAS = 3


def create_topic(admin: BoundedAdmin, kind: str, name: str, partitions: int, settings: Mapping[str, str]) -> None:
    """Create a topic with up to three replicas, as the cluster allows; fine if another process was faster.

    `kind` says in errors what it is for. A broker may learn of the topic a little later.
    """
    cluster = admin.call("the cluster", lambda client, seconds: client.describe_cluster(request_timeout=seconds))
    replicas = min(REPLICAS, len(cluster.nodes))
    durable = {"min.insync.replicas": "2"} if replicas == REPLICAS else {}
    config = {**settings, **durable}
    topic = NewTopic(name, partitions, replicas, config=config)
    [result] = admin.try_each(lambda client, seconds: client.create_topics([topic], request_timeout=seconds)).values()
    if not isinstance(result, Fault) or result.code == KafkaError.TOPIC_ALREADY_EXISTS:
        return
    if result.code in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED):
        wanted = " ".join(f"--config {key}={setting}" for key, setting in config.items())
        raise UserError(
            f"not allowed to create the {kind} {name}",
            detail=result.text,
            hint=f"grant Create, or create it with {partitions} partitions and: {wanted}",
        )
    raise admin.error(result, f"{kind} {name}")
