// Requests that are kept and submitted again and again.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <set>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/sleep.h"
#include "runtime/job.h"

namespace ringtune {
namespace {

using testing_support::Job;
using testing_support::kSecondNs;
using testing_support::submission_of;

AllreduceCall call_of(std::string_view name, std::span<const std::int64_t> shape, std::vector<float>& data) {
  AllreduceCall call;
  call.name = name;
  call.shape = shape;
  call.input = call.output = data.data();
  return call;
}

std::shared_ptr<const Prepared> prepared(const std::string& name) {
  Request request;
  request.name = name;
  request.shape = {1};
  return std::make_shared<const Prepared>(std::move(request));
}

class PersistentAtSize : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, PersistentAtSize, testing::Values(1, 2, 3));

TEST_P(PersistentAtSize, SumsExactlyBlockingAndNot) {
  Job job(GetParam());
  job.on_every_rank([&](int rank) {
    Runtime& runtime = job[rank];
    std::vector<float> data(33);
    const std::array<std::int64_t, 1> shape{33};
    const PersistentRequest persistent = runtime.keep(submission_of(call_of("x", shape, data)));
    for (int round = 0; round < 60; ++round) {
      std::fill(data.begin(), data.end(), static_cast<float>(rank + round));
      Ticket ticket = 0;
      if (round % 3 == 2) {
        ticket = runtime.submit(persistent, data.data(), data.data());
      } else {
        ticket = runtime.run_now(persistent, {data.data(), data.data()}, 10 * kSecondNs);
        ASSERT_EQ(ticket, 0u);
      }
      if (ticket != 0) {
        ASSERT_EQ(runtime.finish(ticket, Deadline::after(10 * kSecondNs)), Finish::kDone);
      }
      const auto expected = static_cast<float>(job.size() * round + job.size() * (job.size() - 1) / 2);
      ASSERT_EQ(data, std::vector<float>(33, expected)) << round;
    }
    runtime.drop(persistent);
  });
}

TEST(PersistentCollective, AtTheDeadlineTheOperationGoesOn) {
  Job job(2);
  std::vector<float> data(4, 1.0f);
  std::vector<float> other(4, 2.0f);
  const std::array<std::int64_t, 1> shape{4};
  std::array<PersistentRequest, 2> persistent;
  job.on_every_rank([&](int rank) {
    std::vector<float>& own = rank == 0 ? data : other;
    persistent[static_cast<std::size_t>(rank)] = job[rank].keep(submission_of(call_of("x", shape, own)));
    for (int i = 0; i < 20; ++i) {
      ASSERT_EQ(job[rank].run_now(persistent[static_cast<std::size_t>(rank)], {own.data(), own.data()}, 10 * kSecondNs),
                0u);
    }
    std::fill(own.begin(), own.end(), static_cast<float>(rank + 1));
  });
  const Ticket ticket = job[0].run_now(persistent[0], {data.data(), data.data()}, 1'000'000);
  ASSERT_NE(ticket, 0u);
  EXPECT_FALSE(job[0].release_if_done(ticket));
  EXPECT_THROW((void)job[0].submit(persistent[0], data.data(), data.data()), InvalidArgument) << "it is in flight";
  EXPECT_EQ(job[1].run_now(persistent[1], {other.data(), other.data()}, 10 * kSecondNs), 0u);
  EXPECT_EQ(job[0].finish(ticket, Deadline::after(10 * kSecondNs)), Finish::kDone);
  EXPECT_THROW((void)job[0].finish(ticket, Deadline::after(0)), InvalidArgument) << "released";
  EXPECT_EQ(data, std::vector<float>(4, 3.0f));
  EXPECT_EQ(other, data);
}

/// The other rank comes later than a wait spins. Where the cycle thread is at work a call goes on in the background.
TEST(PersistentCollective, ACallIsCarriedOutWhereOthersComeWithinItsPatience) {
  Job job(2);
  std::array<std::vector<float>, 2> data;
  const std::array<std::int64_t, 1> shape{4};
  std::array<PersistentRequest, 2> persistent;
  job.on_every_rank([&](int rank) {
    std::vector<float>& own = data[static_cast<std::size_t>(rank)];
    own.assign(4, 1.0f);
    PersistentRequest& kept = persistent[static_cast<std::size_t>(rank)];
    kept = job[rank].keep(submission_of(call_of("x", shape, own)));
    for (int i = 0; i < 20; ++i) ASSERT_EQ(job[rank].run_now(kept, {own.data(), own.data()}, 10 * kSecondNs), 0u);
  });
  const std::int64_t until = now_ns() + 60 * kSecondNs;
  for (int carried_out = 0; carried_out < 5;) {
    ASSERT_LT(now_ns(), until);
    data[0].assign(4, 1.0f);
    data[1].assign(4, 2.0f);
    Ticket ticket = 0;
    std::atomic<bool> calls{false};
    std::thread waits([&] {
      calls = true;
      calls.notify_one();
      ticket = job[0].run_or_submit(persistent[0], {data[0].data(), data[0].data()}, 60 * kSecondNs);
    });
    calls.wait(false);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(job[1].run_now(persistent[1], {data[1].data(), data[1].data()}, 10 * kSecondNs), 0u);
    waits.join();
    if (ticket == 0) {
      ++carried_out;
    } else {
      ASSERT_EQ(job[0].finish(ticket, Deadline::never()), Finish::kDone);
    }
    EXPECT_EQ(data[0], std::vector<float>(4, 3.0f));
    EXPECT_EQ(data[1], data[0]);
  }
}

TEST(PersistentCollective, WhatFailsStaysUntilItsErrorIsAskedFor) {
  Job job(2);
  job.on_every_rank([&](int rank) {
    std::vector<float> data(4, 1.0f);
    const std::array<std::int64_t, 1> shape{4};
    AllreduceCall call = call_of("x", shape, data);
    if (rank == 1) call.op = ReduceOp::kMax;
    const PersistentRequest persistent = job[rank].keep(submission_of(call));
    const Ticket ticket = job[rank].run_now(persistent, {data.data(), data.data()}, 10 * kSecondNs);
    ASSERT_NE(ticket, 0u);
    EXPECT_EQ(job[rank].finish(ticket, Deadline::never()), Finish::kFailed);
    EXPECT_THROW((void)job[rank].wait(ticket, Deadline::never()), Mismatch);
    job[rank].release(ticket);
  });
}

TEST(TicketTable, WhatIsKeptIsNotForgotten) {
  TicketTable table;
  const PersistentRequest kept = table.keep(prepared("kept"));
  float value = 0;
  for (int i = 0; i < 70'000; ++i) {  // more names than are remembered
    const Ticket ticket = table.submit(prepared("t" + std::to_string(i)), {&value, &value}, 0);
    const OperationPtr operation = table.find(ticket);
    table.finish({&operation, 1}, nullptr);
    table.release(ticket);
    if (i % 1000 == 0) (void)table.take_submitted();
  }
  (void)table.take_submitted();
  const Ticket ticket = table.submit(kept, {&value, &value}, 0);
  ASSERT_EQ(table.take_submitted().size(), 1u);
  EXPECT_EQ(table.in_flight(0, "kept"), table.find(ticket));
  EXPECT_EQ(table.find(ticket)->prepared, kept.prepared);
}

TEST(TicketTable, AKeptRequestCountsAgainAfterAnotherOfItsName) {
  TicketTable table;
  const PersistentRequest kept = table.keep(prepared("x"));
  const auto other = prepared("x");
  float value = 0;
  const auto run = [&](Ticket ticket) {
    const OperationPtr operation = table.find(ticket);
    const std::shared_ptr<const Prepared> used = operation->prepared;
    table.finish({&operation, 1}, nullptr);
    table.release(ticket);
    return used;
  };
  EXPECT_EQ(run(table.submit(other, {&value, &value}, 0)), other);
  EXPECT_EQ(run(table.submit(kept, {&value, &value}, 0)), kept.prepared);
  EXPECT_EQ(table.known(0, "x"), kept.prepared);
}

TEST(TicketTable, AnOperationOfTheDriverIsReleasedByItself) {
  TicketTable table;
  const PersistentRequest kept = table.keep(prepared("x"));
  float value = 0;
  OperationPtr operation = &table.begin(kept, {&value, &value}, 0);
  EXPECT_TRUE(table.take_submitted().empty());
  EXPECT_EQ(table.open(), 1u);
  EXPECT_THROW((void)table.submit(kept, {&value, &value}, 0), InvalidArgument);
  const Ticket ticket = operation->ticket;
  table.finish({&operation, 1}, nullptr);
  EXPECT_EQ(table.open(), 0u);
  EXPECT_THROW((void)table.find(ticket), InvalidArgument);

  operation = &table.begin(kept, {&value, &value}, 0);
  const Ticket handed = table.hand_over(*operation);
  EXPECT_FALSE(table.release_if_done(handed));
  table.finish({&operation, 1}, nullptr);
  EXPECT_TRUE(table.release_if_done(handed));
  EXPECT_THROW((void)table.release_if_done(handed), InvalidArgument);
}

class CountingObserver final : public SleepObserver {
 public:
  void before_sleep() noexcept override { ++count; }
  int count = 0;
};

TEST(Sleep, AnObserverIsToldOnceAndOnItsThreadAlone) {
  CountingObserver observer;
  observe_sleep(&observer);
  std::thread([] { about_to_sleep(); }).join();
  EXPECT_EQ(observer.count, 0);
  about_to_sleep();
  about_to_sleep();
  EXPECT_EQ(observer.count, 1);
  observe_sleep(&observer);
  observe_sleep(nullptr);
  about_to_sleep();
  EXPECT_EQ(observer.count, 1);
}

}  // namespace
}  // namespace ringtune
