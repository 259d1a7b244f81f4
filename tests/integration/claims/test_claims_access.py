"""A member without a permission that the protocol needs gets an error that names what to grant."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from penstock.errors import UserError
from tests.support.claimants import Crew, hits_up_to
from tests.support.guarded import Guarded, guarded_cluster, sasl_settings
from tests.support.waiting import wait_until

SECONDS_MAX = 120
USERS = ("owner", "reader", "writer", "denied", "member")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A cluster whose SASL users may do only what is granted to them."""
    users = {user: f"{user}-secret" for user in USERS}
    with guarded_cluster(tmp_path_factory.mktemp("guarded"), users, {}) as running:
        yield running


@pytest.fixture
def crew(guarded: Guarded) -> Iterator[Crew]:
    """The coordination topic is there, created by a user with all permissions."""
    maker = Crew(guarded.bootstrap, hits_up_to(2))
    maker.join("maker")
    wait_until(lambda: maker.shared(2))
    maker.close()
    crew = Crew(guarded.sasl_bootstrap, hits_up_to(2), maker.topic)
    yield crew
    crew.close()


def acting_as(crew: Crew, user: str) -> Crew:
    crew.client_settings = sasl_settings(user, f"{user}-secret")
    return crew


def allow(cluster: Guarded, user: str, topic: str, *operations: AclOperation) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    bindings = [
        AclBinding(
            ResourceType.TOPIC,
            topic,
            ResourcePatternType.PREFIXED,
            f"User:{user}",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        for operation in operations
    ]
    for future in admin.create_acls(bindings).values():
        future.result(SECONDS_MAX)


def refusal(crew: Crew) -> UserError:
    agent = crew.join("anna")
    with pytest.raises(UserError) as raised:
        wait_until(lambda: bool(agent.held()) and False, 20)
    assert agent.member.client_id == "anna"
    return raised.value


def test_read_write_and_describe_are_enough_where_the_topic_is_there(crew: Crew, guarded: Guarded) -> None:
    allow(guarded, "member", crew.topic, AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE)
    acting_as(crew, "member").join("anna")
    wait_until(lambda: crew.shared(2))


def test_a_topic_that_may_not_be_written_is_named_with_what_to_grant(crew: Crew, guarded: Guarded) -> None:
    allow(guarded, "reader", crew.topic, AclOperation.READ, AclOperation.DESCRIBE)
    fault = refusal(acting_as(crew, "reader"))
    assert crew.topic in fault.primary
    assert "Write" in fault.hint


def test_a_topic_that_may_not_be_read_is_named_with_what_to_grant(crew: Crew, guarded: Guarded) -> None:
    allow(guarded, "writer", crew.topic, AclOperation.WRITE, AclOperation.DESCRIBE)
    fault = refusal(acting_as(crew, "writer"))
    assert crew.topic in fault.primary
    assert "Read" in fault.hint


def test_an_unauthorized_topic_is_named_in_the_error(crew: Crew) -> None:
    assert crew.topic in refusal(acting_as(crew, "denied")).primary


def test_without_permission_to_create_the_topic_the_error_shows_the_command(guarded: Guarded) -> None:
    crew = acting_as(Crew(guarded.sasl_bootstrap, hits_up_to(2)), "owner")
    allow(guarded, "owner", crew.topic, AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE)
    fault = refusal(crew)
    assert crew.topic in fault.primary
    assert "message.timestamp.type=LogAppendTime" in fault.hint
    crew.close()


def test_a_wrong_password_is_reported_at_once(guarded: Guarded, crew: Crew) -> None:
    crew.client_settings = sasl_settings("owner", "guess-7")
    fault = refusal(crew)
    assert "credentials" in fault.primary
    assert "guess-7" not in str(fault)
