// How much of its memory a store gives to clients that have proved that they belong to the job.
#include <poll.h>

#include <memory>
#include <string>
#include <vector>

#include "allocated_bytes.h"
#include "base/error.h"
#include "fabrics.h"
#include "raw_store_client.h"
#include "transport/store_values.h"
#include "transport/wire.h"

namespace ringtune::testing_support {
namespace {

using StoreLimitsTest = LeakChecked;

constexpr std::size_t kMib = std::size_t{1} << 20;

std::unique_ptr<StoreClient> client_of(const StoreServer& server, StoreRole role = StoreRole::kRank, int rank = 0) {
  return std::make_unique<StoreClient>("127.0.0.1", server.port(), test_secret(), seconds(10),
                                       StoreIdentity{role, rank, "job.1"});
}

std::string refused(StoreClient& client, const std::string& key, std::size_t bytes) {
  return expect_throw<Error>([&] { client.set(key, Bytes(bytes)); }).what();
}

TEST_F(StoreLimitsTest, AClientThatSetsMoreThanItsLimitIsToldWhichAndIsServedOn) {
  const StoreServer server("127.0.0.1", 0, test_secret(), {.client_bytes = 4 * kMib, .all_bytes = 64 * kMib});
  const auto client = client_of(server);
  client->set("a", Bytes(2 * kMib));
  client->set("b", Bytes(kMib));
  const std::string said = refused(*client, "c", 2 * kMib);
  EXPECT_NE(said.find("the value of key 'c' has 2097152 bytes, and it keeps 3145986 bytes already, of at most 4194304 "
                      "of one client"),
            std::string::npos)
      << said;
  EXPECT_THROW((void)client->get("c", seconds(0)), Timeout) << "nothing of it was kept";
  client->set("a", text("small"));  // what is overwritten counts no more
  client->set("c", Bytes(2 * kMib));
  EXPECT_EQ(client->get("c", seconds(10)).size(), 2 * kMib);
  // Another one has a limit of its own, and a launcher, in whose process the store usually is, that of all.
  client_of(server, StoreRole::kRank, 1)->set("d", Bytes(3 * kMib));
  client_of(server, StoreRole::kLauncher)->set("e", Bytes(8 * kMib));
}

TEST_F(StoreLimitsTest, WhoeverOverwritesAValueOwnsIt) {
  const StoreServer server("127.0.0.1", 0, test_secret(), {.client_bytes = 4 * kMib, .all_bytes = 64 * kMib});
  const auto sender = client_of(server);
  const auto taker = client_of(server, StoreRole::kRank, 1);
  for (int i = 0; i < 10; ++i) {  // as parts of a timeline travel
    const std::string key = "part/" + std::to_string(i);
    sender->set(key, Bytes(3 * kMib));
    EXPECT_EQ(taker->get(key, seconds(10)).size(), 3 * kMib);
    taker->set(key, {});
  }
}

TEST_F(StoreLimitsTest, AllClientsTogetherHaveALimitThoughTheyComeAnew) {
  const StoreServer server("127.0.0.1", 0, test_secret(), {.client_bytes = 4 * kMib, .all_bytes = 10 * kMib});
  for (int i = 0; i < 3; ++i) client_of(server)->set("key/" + std::to_string(i), Bytes(3 * kMib));
  const auto client = client_of(server);
  const std::string said = refused(*client, "more", 3 * kMib);
  EXPECT_NE(said.find("of at most 10485760 of all clients together"), std::string::npos) << said;
  client->set("key/0", {});
  client->set("more", Bytes(3 * kMib));
}

TEST_F(StoreLimitsTest, EmptyValuesAndCountsInAnyNumberHaveALimitToo) {
  StoreValues values({.client_bytes = 10 * (StoreValues::kEntryBytes + 8), .all_bytes = kMib});
  for (int i = 0; i < 10; ++i) {
    const std::string key = "key/" + std::string(4, static_cast<char>('0' + i));
    EXPECT_EQ(values.refusal(1, false, key, 0), "");
    values.put(1, key, {});
  }
  EXPECT_NE(values.refusal(1, false, "another", 0), "");
  EXPECT_EQ(values.refusal(2, false, "another", 0), "");

  const StoreServer server("127.0.0.1", 0, test_secret(), {.client_bytes = 256, .all_bytes = kMib});
  const auto client = client_of(server);
  EXPECT_EQ(client->add("count", 3), 3);
  EXPECT_THROW(client->add("another", 1), Error);
  EXPECT_EQ(client->add("count", 4), 7);
}

TEST_F(StoreLimitsTest, WhatAClientHasSentAndGotCostsNothingAfterwards) {
  const StoreServer server("127.0.0.1", 0, test_secret());
  const auto setter = client_of(server);
  std::vector<std::unique_ptr<StoreClient>> clients;
  for (int rank = 1; rank <= 4; ++rank) clients.push_back(client_of(server, StoreRole::kRank, rank));
  const std::size_t before = allocated_bytes();
  for (const auto& client : clients) {
    client->set("key", Bytes(40 * kMib));
    EXPECT_EQ(client->get("key", seconds(20)).size(), 40 * kMib);
  }
  setter->set("key", {});
  // Both ends release what was large before the next request, and the next answer.
  for (const auto& client : clients) EXPECT_TRUE(client->get("key", seconds(10)).empty());
  EXPECT_LT(allocated_bytes(), before + 120 * kMib);
}

TEST_F(StoreLimitsTest, AClientThatAsksAndDoesNotReadIsAnsweredNoFurtherThanItsLimit) {
  const StoreServer server("127.0.0.1", 0, test_secret());
  const auto setter = client_of(server);
  setter->set("key", Bytes(8 * kMib));
  const Fd greedy = proven_client(server.port());
  const std::size_t before = allocated_bytes();
  ByteWriter asked;
  for (std::uint32_t i = 1; i <= 40; ++i) {
    ByteWriter get;
    get.u8(static_cast<std::uint8_t>(StoreOp::kGet));
    get.u32(i);
    get.string("key");
    asked.blob(get.bytes());
  }
  EXPECT_EQ(write_some(greedy.get(), asked.bytes()).bytes, asked.bytes().size());
  ASSERT_TRUE(poll_socket(greedy.get(), POLLIN, seconds(10)));
  setter->set("another", {});  // the server has seen to it by now
  EXPECT_LT(allocated_bytes(), before + 100 * kMib) << "40 answers are 320 MiB";
  // It gets all of them once it reads.
  FrameAssembler in(kStoreMaxFrameBytes);
  for (std::uint32_t answers = 0; answers < 40;) {
    if (const std::optional<ByteView> frame = in.next()) {
      EXPECT_EQ(ByteReader(*frame).u32(), ++answers);
      continue;
    }
    ASSERT_TRUE(poll_socket(greedy.get(), POLLIN, seconds(20)));
    const Transfer transfer = read_some(greedy.get(), in.space());
    ASSERT_FALSE(transfer.closed);
    in.filled(transfer.bytes);
  }
}

TEST_F(StoreLimitsTest, AClientWaitsForOneAnswerAtATime) {
  const StoreServer server("127.0.0.1", 0, test_secret());
  const Fd greedy = proven_client(server.port());
  const std::string twice("\x0a\0\0\0\x02\x01\0\0\0\x01\0\0\0k\x0a\0\0\0\x02\x02\0\0\0\x01\0\0\0k", 28);
  EXPECT_EQ(write_some(greedy.get(), std::as_bytes(std::span(twice))).bytes, twice.size());
  expect_closed(greedy.get());
}

TEST_F(StoreLimitsTest, WhatAClientLeavesForItsEndAndWhyKeysDoNotComeAreSentences) {
  const StoreServer server("127.0.0.1", 0, test_secret());
  const auto client = client_of(server);
  EXPECT_THROW(client->set_at_end("gone", Bytes(kMaxSentenceBytes)), Protocol);
  EXPECT_LE(client->refuse(std::string(4 * kMaxSentenceBytes, 'x'), "job.1/").size(), kMaxSentenceBytes);
  const Fd greedy = proven_client(server.port());
  ByteWriter at_end;
  at_end.u8(static_cast<std::uint8_t>(StoreOp::kAtEnd));
  at_end.u32(1);
  at_end.string("gone");
  at_end.blob(Bytes(kMaxSentenceBytes));
  ByteWriter frame;
  frame.blob(at_end.bytes());
  for (ByteView rest = frame.bytes(); !rest.empty();) {
    ASSERT_TRUE(poll_socket(greedy.get(), POLLOUT, seconds(10)));
    rest = rest.subspan(write_some(greedy.get(), rest).bytes);
  }
  expect_closed(greedy.get());
}

TEST_F(StoreLimitsTest, FourTimes200MibOfOneClientAreNotKept) {
  StoreValues values{StoreLimits{}};
  values.put(1, "0", Bytes(200 * kMib));
  for (const std::string key : {"1", "2", "3"}) {
    EXPECT_NE(values.refusal(1, false, key, 200 * kMib).find("268435456 of one client"), std::string::npos) << key;
    EXPECT_EQ(values.refusal(1, true, key, 200 * kMib), "") << "a launcher's";
  }
  EXPECT_EQ(values.refusal(1, false, "0", 200 * kMib), "") << "overwritten";
}

TEST_F(StoreLimitsTest, WhatWasRefusedCostsNothing) {
  const StoreServer server("127.0.0.1", 0, test_secret(), {.client_bytes = 50 * kMib, .all_bytes = 200 * kMib});
  const auto client = client_of(server);
  const Bytes large(40 * kMib);
  const std::size_t before = allocated_bytes();
  client->set("0", large);
  for (const std::string key : {"1", "2", "3"}) EXPECT_THROW(client->set(key, large), Error) << key;
  client->set("small", {});  // once the last one's memory is free
  EXPECT_LT(allocated_bytes(), before + 75 * kMib);
}

}  // namespace
}  // namespace ringtune::testing_support
