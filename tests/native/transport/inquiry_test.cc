// Questions over the liveness connections, between fabrics of one process.
#include "transport/inquiry.h"

#include <gtest/gtest.h>

#include <string>

#include "fabrics.h"

namespace ringtune::testing_support {
namespace {

Bytes bytes_of(const std::string& text) {
  const auto* const begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

std::string text_of_answer(const std::optional<Bytes>& answer) {
  if (!answer) return "none";
  return {reinterpret_cast<const char*>(answer->data()), answer->size()};
}

Joined job_that_answers(int size, const std::string& with) {
  Joined job = join_processes(size, [](FabricOptions& options) { options.transport = TransportChoice::kTcp; });
  for (const std::unique_ptr<Fabric>& fabric : job.fabrics) {
    Fabric* const own = fabric.get();
    own->on_inquiry([own, with](int from, std::uint32_t number, const Bytes& question) {
      own->reply(from, number, bytes_of("rank " + std::to_string(own->rank()) + with + text_of_answer(question)));
    });
    own->start_monitor([](int, const std::string&) {});
  }
  return job;
}

TEST(Inquiry, RankZeroAsksAllAndTheyAskRankZero) {
  Joined job = job_that_answers(3, " says ");
  const Answers all = job[0].inquire(bytes_of("hm"), seconds(20));
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(text_of_answer(all[0]), "none");
  EXPECT_EQ(text_of_answer(all[1]), "rank 1 says hm");
  EXPECT_EQ(text_of_answer(all[2]), "rank 2 says hm");
  const Answers one = job[2].inquire(bytes_of("hm"), seconds(20));
  EXPECT_EQ(text_of_answer(one[0]), "rank 0 says hm");
  EXPECT_EQ(text_of_answer(one[1]), "none");
}

TEST(Inquiry, AnswersOfTheLargestSizeArriveWhole) {
  Joined job = job_that_answers(3, std::string(15 << 10, 'x'));
  for (int round = 0; round < 40; ++round) {
    const Answers all = job[0].inquire(bytes_of("?"), seconds(20));
    for (const int rank : {1, 2}) {
      EXPECT_EQ(text_of_answer(all[static_cast<std::size_t>(rank)]),
                "rank " + std::to_string(rank) + std::string(15 << 10, 'x') + "?");
    }
  }
}

TEST(Inquiry, WhoHasLeftOrIsSilentGivesNoAnswer) {
  Joined job = join_processes(3, [](FabricOptions& options) { options.transport = TransportChoice::kTcp; });
  job[0].start_monitor([](int, const std::string&) {});
  job[1].start_monitor([](int, const std::string&) {});
  job[2].on_inquiry([](int, std::uint32_t, const Bytes&) {});  // takes it, and says nothing
  job[2].start_monitor([](int, const std::string&) {});
  job[1].leave();
  const Answers all = job[0].inquire(bytes_of("?"), milliseconds(50));
  for (const std::optional<Bytes>& answer : all) EXPECT_EQ(text_of_answer(answer), "none");
  std::thread asker([&] { (void)job[0].inquire(bytes_of("?"), seconds(3600)); });
  job[0].end_inquiries();
  asker.join();
}

}  // namespace
}  // namespace ringtune::testing_support
