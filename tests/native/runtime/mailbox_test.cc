#include "runtime/mailbox.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/error.h"
#include "thrown.h"

namespace ringtune {
namespace {

using testing_support::message_of;

TEST(Mailbox, GivesEachLetterOnceAndInOrder) {
  Mailbox mailbox;
  EXPECT_FALSE(mailbox.has_mail());
  EXPECT_FALSE(mailbox.take());
  EXPECT_EQ(mailbox.propose({.fusion_bytes = 1}), 1U);
  EXPECT_EQ(mailbox.propose({.fusion_bytes = 2}), 2U);
  mailbox.report({.step = 7, .duration_ns = 5});
  EXPECT_TRUE(mailbox.has_mail());
  const auto mail = mailbox.take();
  ASSERT_TRUE(mail);
  ASSERT_EQ(mail->proposals.size(), 2U);
  EXPECT_EQ(mail->proposals[0].fusion_bytes, 1U);
  EXPECT_EQ(mail->proposals[1].fusion_bytes, 2U);
  EXPECT_EQ(mail->reports, (std::vector<StepReport>{{.step = 7, .duration_ns = 5}}));
  EXPECT_FALSE(mailbox.take());
  EXPECT_EQ(mailbox.propose({}), 3U);
}

TEST(Mailbox, CountsLooksOverAllLetters) {
  Mailbox mailbox;
  EXPECT_EQ(mailbox.request_look(), 1U);
  EXPECT_EQ(mailbox.take()->looks, 1U);
  mailbox.report({});
  EXPECT_EQ(mailbox.take()->looks, 1U) << "no new one";
  EXPECT_EQ(mailbox.request_look(), 2U);
  EXPECT_EQ(mailbox.request_look(), 3U);
  EXPECT_EQ(mailbox.take()->looks, 3U);
}

TEST(Mailbox, AWishToLeaveBringsItsDeadlineAndReason) {
  Mailbox mailbox;
  EXPECT_FALSE(mailbox.leave_requested());
  mailbox.leave({.who = "rank 1 on host b", .how = "has ended its script", .failed = true}, Deadline::at(42));
  EXPECT_TRUE(mailbox.leave_requested());
  EXPECT_EQ(mailbox.leave_deadline().when_ns(), 42);
  EXPECT_EQ(mailbox.departure(), (Departure{.who = "rank 1 on host b", .how = "has ended its script", .failed = true}));
}

TEST(Mailbox, TheFirstLossCounts) {
  Mailbox mailbox;
  EXPECT_FALSE(mailbox.loss(0));
  mailbox.lose(std::make_exception_ptr(PeerLost(2, "the process has died")), true);
  mailbox.lose(std::make_exception_ptr(DeviceError("the GPU has failed")), false);
  const auto loss = mailbox.loss(0);
  ASSERT_TRUE(loss);
  EXPECT_TRUE(loss->known);
  EXPECT_NE(message_of<PeerLost>([&] { std::rethrow_exception(loss->error); }).find("the process has died"),
            std::string::npos);
}

TEST(Mailbox, WhoWaitsForALossIsWokenByIt) {
  constexpr std::int64_t kMinuteNs = 60'000'000'000;
  Mailbox mailbox;
  std::thread monitor([&] { mailbox.lose(std::make_exception_ptr(PeerLost(1, "gone")), true); });
  const std::int64_t begin_ns = now_ns();
  EXPECT_TRUE(mailbox.loss(kMinuteNs));
  EXPECT_LT(now_ns() - begin_ns, kMinuteNs);
  monitor.join();
}

}  // namespace
}  // namespace ringtune
