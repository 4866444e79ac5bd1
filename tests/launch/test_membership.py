"""Who belongs to an elastic job: exact actions for exact events."""

from __future__ import annotations

import pytest

from ringtune.elastic.results import HostUpdateResult
from ringtune.launch.hosts import Host
from ringtune.launch.membership import Dismiss, GiveUp, Kill, Limits, Membership, Notify, Publish, Say, Start

HERE = [Host("a", 2)]


def started(limits: Limits, hosts: list[Host]) -> Membership:
    """A job whose first generation runs with every slot filled."""
    membership = Membership(limits)
    membership.discovered(hosts, 0.0)
    starts = [action for action in membership.take_actions() if isinstance(action, Start)]
    for action in starts:
        membership.ready(action.worker, 1.0)
    [publish] = membership.take_actions()
    assert publish == Publish(1, tuple(range(len(starts))))
    return membership


def test_all_slots_are_filled_and_ranks_follow_hosts() -> None:
    membership = Membership(Limits(2, 1))
    membership.discovered([Host("a", 2), Host("b", 1)], 0.0)
    assert membership.take_actions() == [Start(0, "a"), Start(1, "a"), Start(2, "b")]
    membership.ready(2, 1.0)
    membership.ready(1, 1.0)
    assert membership.take_actions() == []
    membership.ready(0, 1.0)
    assert membership.take_actions() == [Publish(1, (0, 1, 2))]


def test_no_more_than_the_most() -> None:
    membership = Membership(Limits(1, 1, max_np=2))
    membership.discovered([Host("a", 4)], 0.0)
    assert membership.take_actions() == [Start(0, "a"), Start(1, "a")]


def test_a_failed_worker_is_replaced_and_survivors_come_first() -> None:
    membership = started(Limits(2, 1), HERE)
    membership.ended(0, 137, 5.0)
    assert membership.take_actions() == [Start(2, "a")]
    membership.ready(2, 6.0)
    assert membership.take_actions() == []
    membership.ready(1, 6.0)
    assert membership.take_actions() == [Publish(2, (1, 2))]


def test_goes_on_with_fewer_when_no_slot_is_left() -> None:
    membership = started(Limits(2, 1), [Host("a", 1), Host("b", 1)])
    membership.ended(1, 1, 5.0)
    assert membership.take_actions() == [Say("no new ranks on b: too many of them failed there")]
    membership.ready(0, 6.0)
    assert membership.take_actions() == [Publish(2, (0,))]


def test_a_host_cools_down() -> None:
    membership = started(Limits(2, 2, cooldown_s=(10.0, 15.0)), [Host("a", 1), Host("b", 1)])
    membership.ended(1, 1, 5.0)
    membership.ready(0, 6.0)
    membership.take_actions()
    membership.tick(14.9)
    assert membership.take_actions() == []
    membership.tick(15.0)
    assert membership.take_actions() == [Start(2, "b")]
    membership.ended(2, 1, 16.0)
    membership.take_actions()
    membership.tick(30.9)  # twice as long, but at most 15 s
    assert membership.take_actions() == []
    membership.tick(31.0)
    assert membership.take_actions() == [Start(3, "b")]


def test_gives_up_below_the_least() -> None:
    membership = started(Limits(2, 2, fixed_hosts=True), [Host("a", 1), Host("b", 1)])
    membership.ended(1, 9, 5.0)
    membership.ready(0, 6.0)
    actions = membership.take_actions()
    assert actions[-1] == GiveUp("1 ranks are left, at least 2 are needed, and no host takes new ones", 9)
    assert membership.over


def test_waits_for_hosts_until_the_timeout() -> None:
    membership = started(Limits(2, 2, timeout_s=60.0), [Host("a", 1), Host("b", 1)])
    membership.ended(1, 9, 5.0)
    membership.ready(0, 6.0)
    membership.take_actions()
    membership.tick(64.9)
    assert membership.take_actions() == []
    membership.tick(65.0)
    assert membership.take_actions() == [GiveUp("only 1 ranks after 60 s, at least 2 are needed", 9)]


def test_the_state_must_survive() -> None:
    membership = started(Limits(2, 1), HERE)
    membership.ended(0, 1, 5.0)
    membership.ended(1, 1, 5.0)
    assert membership.take_actions()[-1] == GiveUp("no rank is left that holds the state of training", 1)


def test_failing_at_the_start_ends_the_job() -> None:
    membership = Membership(Limits(2, 1, fixed_hosts=True))
    membership.discovered(HERE, 1000.0)
    membership.take_actions()
    membership.ended(0, 1, 1000.1)
    assert membership.take_actions() == [Start(2, "a")]
    membership.ended(1, 1, 1000.2)
    assert membership.take_actions() == [Say("no new ranks on a: too many of them failed there")]
    membership.ended(2, 1, 1000.3)
    assert isinstance(membership.take_actions()[-1], GiveUp)


def test_new_slots_are_published_and_taken_at_the_next_generation() -> None:
    membership = started(Limits(1, 1), [Host("a", 1)])
    membership.discovered([Host("a", 1), Host("b", 2)], 5.0)
    assert membership.take_actions() == [Notify(HostUpdateResult.added)]
    membership.ready(0, 6.0)
    assert membership.take_actions() == [Start(1, "b"), Start(2, "b")]
    membership.ready(2, 7.0)
    membership.ready(1, 7.0)
    assert membership.take_actions() == [Publish(2, (0, 1, 2))]


def test_ranks_of_a_host_that_is_taken_away_are_dismissed() -> None:
    membership = started(Limits(2, 1), [Host("a", 1), Host("b", 1)])
    membership.discovered([Host("a", 1)], 5.0)
    assert membership.take_actions() == [Notify(HostUpdateResult.removed)]
    membership.ready(1, 6.0)
    assert membership.take_actions() == [Dismiss(1, "host b has been taken from the job")]
    membership.ready(0, 6.0)
    assert membership.take_actions() == [Publish(2, (0,))]
    membership.ended(1, 0, 7.0)
    assert not membership.over
    assert membership.take_actions() == []


def test_one_host_goes_another_comes() -> None:
    membership = started(Limits(2, 1), [Host("a", 1), Host("b", 1)])
    membership.discovered([Host("a", 1), Host("c", 1)], 5.0)
    assert membership.take_actions() == [Notify(HostUpdateResult.mixed)]


def test_reset_limit() -> None:
    membership = started(Limits(2, 1, reset_limit=1), HERE)
    membership.ended(0, 1, 5.0)
    membership.ready(1, 5.0)
    membership.ready(2, 5.0)
    assert membership.take_actions()[-1] == Publish(2, (1, 2))
    membership.ready(1, 6.0)
    membership.ready(2, 6.0)
    assert membership.take_actions() == [GiveUp("the ranks have changed 1 times, which is the limit", 1)]


def test_a_worker_that_does_not_come_is_ended() -> None:
    membership = started(Limits(2, 1, timeout_s=60.0), HERE)
    membership.ready(0, 5.0)
    membership.take_actions()
    membership.tick(65.0)
    assert membership.take_actions() == [Kill(1)]
    membership.ended(1, 137, 65.1)
    assert membership.take_actions() == [Start(2, "a")]


def test_the_end() -> None:
    membership = started(Limits(2, 1), HERE)
    membership.ended(0, 0, 5.0)
    assert not membership.over
    membership.ready(1, 5.0)
    assert membership.take_actions() == [Dismiss(1, "the job is ending: another rank has finished")]
    membership.ended(1, 0, 5.1)
    assert membership.over and not membership.failed_at_the_end


def test_a_failure_after_the_end_counts() -> None:
    membership = started(Limits(2, 1), HERE)
    membership.ended(0, 0, 5.0)
    membership.ended(1, 3, 5.1)
    assert membership.over and membership.failed_at_the_end
    assert membership.take_actions() == []


@pytest.mark.parametrize("late", [29.0, 31.0])
def test_a_long_generation_clears_strikes(late: float) -> None:
    membership = started(Limits(2, 1), HERE)
    membership.ended(0, 1, 2.0)
    membership.ready(1, 3.0)
    membership.ready(2, 3.0)
    membership.take_actions()
    membership.ended(2, 1, 3.0 + late)
    blocked = any(isinstance(action, Say) for action in membership.take_actions())
    assert blocked == (late < 30.0)
