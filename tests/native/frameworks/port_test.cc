#include "frameworks/port.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <future>
#include <string>
#include <thread>

#include "base/clock.h"
#include "runtime/job.h"

namespace ringtune::frameworks {
namespace {

using testing_support::allreduce_of;
using testing_support::barrier_of;
using testing_support::Job;
using testing_support::numbers_in;

/// A job whose ranks are asked through a port each.
struct PortJob {
  explicit PortJob(int size) : job(size), ports(static_cast<std::size_t>(size)) {
    for (int rank = 0; rank < size; ++rank) at(rank).open(job[rank]);
  }
  ~PortJob() {
    job.on_every_rank([&](int rank) {
      job[rank].shutdown(5'000'000'000);
      at(rank).close(job[rank]);
    });
  }
  [[nodiscard]] Port& at(int rank) { return ports[static_cast<std::size_t>(rank)]; }

  Job job;
  std::deque<Port> ports;
};

Calls one(Submission call) {
  Calls calls;
  calls.push_back(std::move(call));
  return calls;
}

Submission moved(CollectiveKind kind, const std::string& name, std::vector<std::int32_t>& data) {
  Submission call = allreduce_of(name, data);
  call.request.kind = kind;
  call.output = nullptr;
  return call;
}

Outcomes submit_and_get(Port& port, Calls calls) {
  auto told = std::make_shared<std::promise<Outcomes>>();
  std::future<Outcomes> found = told->get_future();
  port.submit(std::move(calls), [told](Outcomes outcomes) { told->set_value(std::move(outcomes)); });
  return found.get();
}

enum class Way { kBlocking, kAsynchronous };
class PortWays : public testing::TestWithParam<std::tuple<Way, int>> {
 protected:
  [[nodiscard]] int size() const { return std::get<1>(GetParam()); }
  Outcomes ask(Port& port, Calls calls) const {
    if (std::get<0>(GetParam()) == Way::kBlocking) return port.run(std::move(calls));
    return submit_and_get(port, std::move(calls));
  }
};
INSTANTIATE_TEST_SUITE_P(All, PortWays,
                         testing::Combine(testing::Values(Way::kBlocking, Way::kAsynchronous),
                                          testing::Values(1, 2, 3)));

TEST_P(PortWays, EveryKindComesBack) {
  PortJob ports(size());
  ports.job.on_every_rank([&](int rank) {
    Port& port = ports.at(rank);
    for (int round = 0; round < 5; ++round) {
      std::vector<std::int32_t> data{rank + 1, 2};
      EXPECT_FALSE(ask(port, one(allreduce_of("sum", data))).front().failed());
      EXPECT_EQ(data, (std::vector<std::int32_t>{size() * (size() + 1) / 2, 2 * size()}));

      std::vector<std::int32_t> mine(static_cast<std::size_t>(rank) + 1, rank);
      const Outcome gathered = std::move(ask(port, one(moved(CollectiveKind::kAllgather, "all", mine))).front());
      std::vector<std::int32_t> expected;
      for (int r = 0; r < size(); ++r) expected.insert(expected.end(), static_cast<std::size_t>(r) + 1, r);
      EXPECT_EQ(numbers_in(gathered.gathered), expected);
      EXPECT_EQ(gathered.shape, (std::vector<std::int64_t>{static_cast<std::int64_t>(expected.size())}));

      std::vector<std::int32_t> row(static_cast<std::size_t>(size()), rank);
      std::vector<std::int32_t> placed(row.size());
      Submission exchange = moved(CollectiveKind::kAlltoall, "exchange", row);
      exchange.output = placed.data();
      exchange.room = placed.size() * sizeof(std::int32_t);
      const Outcome exchanged = std::move(ask(port, one(std::move(exchange))).front());
      EXPECT_EQ(exchanged.splits, std::vector<std::int64_t>(static_cast<std::size_t>(size()), 1));
      EXPECT_TRUE(exchanged.gathered.empty()) << "it was to lie where there was room";
      for (int r = 0; r < size(); ++r) EXPECT_EQ(placed[static_cast<std::size_t>(r)], r);

      EXPECT_FALSE(ask(port, one(barrier_of("together"))).front().failed());
    }
  });
}

TEST_P(PortWays, MembersOfAGroupComeBackTogether) {
  PortJob ports(size());
  ports.job.on_every_rank([&](int rank) {
    std::vector<std::vector<float>> data(7, std::vector<float>(3, static_cast<float>(rank)));
    Calls calls;
    for (std::size_t i = 0; i < data.size(); ++i) {
      Submission call = allreduce_of("g" + std::to_string(i), data[i]);
      call.request.group = "g";
      call.request.group_size = 7;
      calls.push_back(std::move(call));
    }
    const Outcomes outcomes = ask(ports.at(rank), std::move(calls));
    ASSERT_EQ(outcomes.size(), data.size());
    for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.error, "");
    const auto sum = static_cast<float>(size() * (size() - 1) / 2);
    for (const std::vector<float>& tensor : data) EXPECT_EQ(tensor, std::vector<float>(3, sum));
  });
}

TEST_P(PortWays, WhatOneRankRefusesAloneIsToldAndSubmitsNothing) {
  PortJob ports(size());
  ports.job.on_every_rank([&](int rank) {
    std::vector<std::int32_t> data(2, 1);
    Calls calls = one(allreduce_of("good", data));
    Submission bad = allreduce_of("bad", data);
    bad.request.dtype = DType::kUint32;
    calls.push_back(std::move(bad));
    const Outcomes outcomes = ask(ports.at(rank), std::move(calls));
    ASSERT_EQ(outcomes.size(), 2U);
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.error, "InvalidArgument");
      EXPECT_NE(outcome.text.find("'bad': uint32 is not reduced"), std::string::npos) << outcome.text;
    }
    EXPECT_EQ(ports.job[rank].open_operations(), 0U);
  });
}

TEST_P(PortWays, RanksThatDisagreeAreToldAndGoOn) {
  if (size() == 1) return;
  PortJob ports(size());
  ports.job.on_every_rank([&](int rank) {
    std::vector<std::int32_t> data(static_cast<std::size_t>(rank) + 1, 1);
    const Outcomes outcomes = ask(ports.at(rank), one(allreduce_of("shape", data)));
    EXPECT_EQ(outcomes.front().error, "Mismatch");
    EXPECT_NE(outcomes.front().text.find("shape"), std::string::npos);
    std::vector<std::int32_t> same(1, 1);
    EXPECT_FALSE(ask(ports.at(rank), one(allreduce_of("shape", same))).front().failed());
    EXPECT_EQ(same.front(), size());
  });
}

TEST_P(PortWays, ShuttingDownEndsWhatIsPending) {
  if (size() == 1) return;
  PortJob ports(size());
  std::vector<std::int32_t> data(3, 1);
  std::future<Outcomes> waiting =
      std::async(std::launch::async, [&] { return ask(ports.at(1), one(allreduce_of("alone", data))); });
  while (ports.job[1].open_operations() == 0) std::this_thread::yield();
  ports.job.on_every_rank([&](int rank) {
    ports.job[rank].shutdown(5'000'000'000);
    ports.at(rank).close(ports.job[rank]);
    EXPECT_FALSE(ports.at(rank).is_open());
  });
  const Outcomes outcomes = waiting.get();
  EXPECT_TRUE(outcomes.front().error == "ShutDown" || outcomes.front().error == "PeerLost") << outcomes.front().error;
}

TEST_P(PortWays, WithoutASessionItSaysSo) {
  Port port;
  std::vector<std::int32_t> data(1, 1);
  const Outcomes outcomes = ask(port, one(allreduce_of("x", data)));
  EXPECT_EQ(outcomes.front().error, "NotInitialized");
  EXPECT_NE(outcomes.front().text.find("hvd.init()"), std::string::npos);
}

/// Once the ranks follow a schedule of that one collective, the thread that asks for it carries it out.
TEST(Port, ASmallCollectiveForWhichAllRanksComeEndsOnTheThreadThatAsks) {
  PortJob ports(2);
  std::array<int, 2> itself{};
  ports.job.on_every_rank([&](int rank) {
    const std::int64_t until = now_ns() + 60'000'000'000;
    int& found = itself[static_cast<std::size_t>(rank)];
    for (int round = 0;; ++round) {
      // Both ranks stop in the same round.
      std::vector<std::int32_t> enough{found >= 20 || now_ns() > until ? 1 : 0};
      ASSERT_EQ(ports.at(rank).run(one(allreduce_of("enough", enough))).front().error, "");
      if (enough.front() == 2) break;
      for (int i = 0; i < 50; ++i) {
        std::vector<std::int32_t> data(4, rank + round);
        std::promise<std::thread::id> done;
        std::future<std::thread::id> on = done.get_future();
        ports.at(rank).submit(one(allreduce_of("x", data)), [&](const Outcomes& outcomes) {
          EXPECT_EQ(outcomes.front().error, "");
          done.set_value(std::this_thread::get_id());
        });
        if (on.get() == std::this_thread::get_id()) ++found;
        ASSERT_EQ(data, std::vector<std::int32_t>(4, 2 * round + 1));
      }
    }
  });
  EXPECT_GE(itself[0], 20);
  EXPECT_GE(itself[1], 20);
}

/// The other rank is late: nobody waits for it on the thread that asks.
TEST(Port, WhatOtherRanksAreLateForGoesOnInTheBackground) {
  PortJob ports(2);
  std::array<std::vector<std::int32_t>, 2> data;
  ports.job.on_every_rank([&](int rank) {
    for (int i = 0; i < 200; ++i) {
      std::vector<std::int32_t> some(4, 1);
      ASSERT_EQ(submit_and_get(ports.at(rank), one(allreduce_of("x", some))).front().error, "");
    }
    data[static_cast<std::size_t>(rank)].assign(4, rank + 1);
  });
  for (int i = 0; i < 40; ++i) {  // longer than tries are left out
    std::promise<Outcomes> told;
    ports.at(0).submit(one(allreduce_of("x", data[0])), [&](Outcomes found) { told.set_value(std::move(found)); });
    EXPECT_EQ(ports.job[0].open_operations(), 1U) << "it has returned without the other rank";
    EXPECT_EQ(ports.at(1).run(one(allreduce_of("x", data[1]))).front().error, "");
    EXPECT_EQ(told.get_future().get().front().error, "");
    EXPECT_EQ(data[0], data[1]);
  }
}

TEST(Port, WhatIsAskedForAfterTheJobHasEndedIsReportedOnce) {
  PortJob ports(2);
  ports.job.on_every_rank([&](int rank) {
    for (int i = 0; i < 200; ++i) {
      std::vector<std::int32_t> data(4, 1);
      ASSERT_EQ(submit_and_get(ports.at(rank), one(allreduce_of("x", data))).front().error, "");
    }
  });
  ports.job.on_every_rank([&](int rank) { ports.job[rank].shutdown(5'000'000'000); });
  std::vector<std::int32_t> data(4, 1);
  EXPECT_EQ(submit_and_get(ports.at(0), one(allreduce_of("x", data))).front().error, "ShutDown");
}

/// Frameworks run their next kernels in the callback, which ask for more.
TEST(Port, ACallbackMayAskForMore) {
  PortJob ports(2);
  ports.job.on_every_rank([&](int rank) {
    Port& port = ports.at(rank);
    std::vector<std::int32_t> data(1, 1);
    std::promise<void> last;
    std::function<void(int)> next = [&](int left) {
      port.submit(one(allreduce_of("again", data)), [&, left](const Outcomes& outcomes) {
        EXPECT_EQ(outcomes.front().error, "");
        std::vector<std::int32_t> inner(1, 1);
        EXPECT_EQ(port.run(one(allreduce_of("inner", inner))).front().error, "") << "it may even wait";
        left == 0 ? last.set_value() : next(left - 1);
      });
    };
    next(9);
    last.get_future().get();
    EXPECT_EQ(data.front(), 1 << 10);
  });
}

TEST(Port, StepsEndWhereAProgramMarksThemOrRepeatsItself) {
  PortJob ports(2);
  ports.job.on_every_rank([&](int rank) {
    Port& port = ports.at(rank);
    const auto step = [&] {
      for (const char* name : {"a", "b", "c"}) {
        std::vector<std::int32_t> data(8, 1);
        EXPECT_EQ(port.run(one(allreduce_of(name, data))).front().error, "");
      }
    };
    port.follow_steps(true);
    std::future<std::optional<EndedStep>> first = std::async(std::launch::async, [&] { return port.next_step(); });
    // Both ranks take as many turns, each of half the time that a step has at least.
    for (int turn = 0; turn < 200; ++turn) {
      step();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_TRUE(first.get().value().detected);
    port.end_step();
    std::optional<EndedStep> next = port.next_step();
    while (next && next->detected) next = port.next_step();  // what was detected before the mark
    ASSERT_TRUE(next);
    for (int turn = 0; turn < 100; ++turn) step();
    port.stop_following();
    EXPECT_FALSE(port.next_step()) << "none is detected once one was marked";
    port.end_step();
    EXPECT_FALSE(port.next_step()) << "nobody follows";
  });
}

TEST(Port, OneThatIsOpenedAgainAsksTheNewRuntime) {
  Port port;
  for (int generation = 0; generation < 3; ++generation) {
    Job job(1);
    port.open(job[0]);
    std::vector<std::int32_t> data(1, generation);
    EXPECT_EQ(port.run(one(allreduce_of("x", data))).front().error, "");
    EXPECT_EQ(submit_and_get(port, one(allreduce_of("x", data))).front().error, "");
    job[0].shutdown(1'000'000'000);
    Job other(1);
    port.close(other[0]);
    EXPECT_TRUE(port.is_open()) << "another runtime was closed";
    port.close(job[0]);
    EXPECT_EQ(port.run(one(allreduce_of("x", data))).front().error, "NotInitialized");
  }
}

}  // namespace
}  // namespace ringtune::frameworks
