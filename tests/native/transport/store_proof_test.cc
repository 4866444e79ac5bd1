// Whom a store serves: clients that prove that they belong to the job, each as who it is, and what others may cost.
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <thread>
#include <vector>

#include "allocated_bytes.h"
#include "base/clock.h"
#include "base/error.h"
#include "fabrics.h"
#include "raw_store_client.h"
#include "transport/wire.h"

namespace ringtune::testing_support {
namespace {

using StoreProofTest = LeakChecked;

void append_frame_of_set(ByteWriter& stream) {
  ByteWriter request;
  request.u8(static_cast<std::uint8_t>(StoreOp::kSet));
  request.u32(1);
  request.string("key");
  request.blob(text("value"));
  stream.blob(request.bytes());  // a blob's length stands as a frame's does
}

TEST_F(StoreProofTest, WhoDoesNotKnowTheSecretIsNotServed) {
  const StoreServer server("127.0.0.1", 0, test_secret());
  const std::string said = expect_throw<Protocol>([&] {
                             StoreClient client("127.0.0.1", server.port(), Secret("another"), seconds(20));
                           }).what();
  EXPECT_NE(said.find("does not know the secret"), std::string::npos) << said;
  EXPECT_THROW(Secret(""), InvalidArgument);
  // A client of its own making, which does not look at the server's proof and asks without one.
  const Fd raw = raw_client(server.port());
  (void)say_hello(raw.get(), {});
  ByteWriter claim;
  claim.raw(Digest{});
  append_frame_of_set(claim);
  (void)write_some(raw.get(), claim.bytes());
  ASSERT_TRUE(poll_socket(raw.get(), POLLIN, seconds(10)));
  std::byte byte{};
  EXPECT_TRUE(read_some(raw.get(), {&byte, 1}).closed);
  EXPECT_EQ(server.requests(), 0u);
}

TEST_F(StoreProofTest, IdleConnectionsInAnyNumberLockNobodyOut) {
  const StoreServer server("127.0.0.1", 0, test_secret());
  std::vector<Fd> idle;
  for (std::size_t i = 0; i < kMaxUnproven + 44; ++i) idle.push_back(raw_client(server.port()));
  StoreClient client("127.0.0.1", server.port(), test_secret(), seconds(20));
  client.set("key", text("value"));
  EXPECT_EQ(client.get("key", seconds(10)), text("value"));
}

TEST_F(StoreProofTest, AStrangerAtTheAddressIsRefused) {
  const Fd listener = listen_tcp("127.0.0.1", 0);
  std::thread foreign([&] {  // answers as a store does, but for the secret
    ASSERT_TRUE(poll_socket(listener.get(), POLLIN, seconds(10)));
    const std::optional<Fd> fd = accept_tcp(listener.get());
    ByteWriter challenge;
    challenge.u32(kStoreMagic);
    challenge.raw(fresh_nonce());
    challenge.raw(Digest{});
    (void)write_some(fd->get(), challenge.bytes());
    ASSERT_TRUE(poll_socket(fd->get(), POLLIN, seconds(10)));
    std::array<std::byte, 256> said;
    EXPECT_EQ(read_some(fd->get(), said).bytes, kStoreHelloBytes);
    ASSERT_TRUE(poll_socket(fd->get(), POLLIN, seconds(10)));
    EXPECT_TRUE(read_some(fd->get(), said).closed) << "nothing of the client's is shown to a stranger";
  });
  const std::uint16_t port = local_port(listener.get());
  EXPECT_THROW(StoreClient("127.0.0.1", port, test_secret(), seconds(20)), Protocol);
  foreign.join();
}

TEST_F(StoreProofTest, AProofHoldsForTheClaimThatItWasMadeFor) {
  const StoreServer server("127.0.0.1", 0, test_secret());
  const StoreClaim own = StoreClaim::of({StoreRole::kRank, 1, "job.1"});
  StoreClaim other_rank = own;
  other_rank.rank = 2;
  StoreClaim other_role = own;
  other_role.role = StoreRole::kLauncher;
  StoreClaim other_job = StoreClaim::of({StoreRole::kRank, 1, "job.2"});
  for (const StoreClaim& claim : {other_rank, other_role, other_job}) {
    const Fd fd = raw_client(server.port());
    const Handshake handshake = say_hello(fd.get(), claim);
    ByteWriter said;
    said.raw(handshake.proof(test_secret(), Side::kCaller, store_purpose(own)));
    append_frame_of_set(said);
    (void)write_some(fd.get(), said.bytes());
    expect_closed(fd.get());
  }
  EXPECT_EQ(server.requests(), 0u);
}

TEST_F(StoreProofTest, OfTwoProcessesThatClaimToBeOneRankTheSecondIsRefusedAndBothAreNamed) {
  const StoreServer server("127.0.0.1", 0, test_secret());
  const StoreIdentity who{StoreRole::kRank, 2, "job.1"};
  StoreClaim other = StoreClaim::of(who);
  other.pid = 4711;
  {
    const Fd first = proven_client(server.port(), other);
    // The server has taken the first one's proof once it answers it.
    ByteWriter set;
    append_frame_of_set(set);
    (void)write_some(first.get(), set.bytes());
    ASSERT_TRUE(poll_socket(first.get(), POLLIN, seconds(10)));
    StoreClient second("127.0.0.1", server.port(), test_secret(), seconds(10), who);
    const std::string own = std::to_string(::getpid());
    for (const std::string& said :
         {std::string(expect_throw<Error>([&] { second.set("key", text("2")); }).what()),
          std::string(expect_throw<PeerLost>([&] { (void)second.get("key", seconds(10)); }).what())}) {
      EXPECT_NE(said.find("two processes claim to be rank 2 of this job: process 4711 at 127.0.0.1 came first, and "
                          "process " +
                          own + " at 127.0.0.1 is refused"),
                std::string::npos)
          << said;
    }
    // Another rank, another job (an elastic job's next generation) and another role are served.
    for (const StoreIdentity& one : {StoreIdentity{StoreRole::kRank, 1, "job.1"},
                                     {StoreRole::kRank, 2, "job.2"},
                                     {StoreRole::kWorker, 2, "job.1"},
                                     {}}) {
      StoreClient client("127.0.0.1", server.port(), test_secret(), seconds(10), one);
      EXPECT_EQ(client.get("key", seconds(10)), text("value"));
    }
  }
  StoreClient heir("127.0.0.1", server.port(), test_secret(), seconds(10), who);
  EXPECT_EQ(heir.get("key", seconds(10)), text("value")) << "the first one has ended";
  StoreClient again("127.0.0.1", server.port(), test_secret(), seconds(10), who);
  EXPECT_EQ(again.get("key", seconds(10)), text("value")) << "one process may connect more than once";
}

TEST_F(StoreProofTest, ClientsWithoutAProofCostAFewPagesEach) {
  const StoreServer server("127.0.0.1", 0, test_secret());
  StoreClient client("127.0.0.1", server.port(), test_secret(), seconds(10));
  client.set("key", text("value"));
  std::vector<Fd> strangers;
  for (std::size_t i = 0; i < kMaxUnproven - 6; ++i) strangers.push_back(raw_client(server.port()));
  const std::size_t before = allocated_bytes();
  ByteWriter half;
  half.u32(kStoreMagic);
  half.raw(Nonce{});  // not yet all of the hello
  for (const Fd& fd : strangers) (void)write_some(fd.get(), half.bytes());
  client.set("key", text("another"));  // they came before it
  // Far from the 64 KiB of a whole buffer; allocators, and more so those of sanitizers, take more than is asked for.
  EXPECT_LT(allocated_bytes(), before + strangers.size() * 8 * kMaxUnprovenBytes + (1u << 20));
  for (const Fd& fd : strangers) EXPECT_FALSE(has_ended(fd.get())) << "it is waited for";
}

TEST_F(StoreProofTest, NoMoreIsReadOfAClientThanItsLimitUntilThatIsLifted) {
  FrameAssembler in(1 << 20, kMaxUnprovenBytes);
  EXPECT_EQ(in.space().size(), kMaxUnprovenBytes);
  in.filled(kMaxUnprovenBytes - 1);
  EXPECT_EQ(in.space().size(), 1u);
  in.filled(1);
  EXPECT_NE(
      std::string(expect_throw<Protocol>([&] { (void)in.space(); }).what()).find("more than 4096 bytes before its"),
      std::string::npos);
  ASSERT_TRUE(in.take_raw(96));
  EXPECT_EQ(in.space().size(), 96u);
  in.lift_limit(1 << 20);
  EXPECT_GT(in.space().size(), kMaxUnprovenBytes);
}

TEST_F(StoreProofTest, WhoDoesNotProveInTimeIsDroppedWhateverItHasSaid) {
  const StoreServer server("127.0.0.1", 0, test_secret());
  const std::int64_t begin_ns = now_ns();
  const Fd silent = raw_client(server.port());
  const Fd half = raw_client(server.port());
  ByteWriter hello;
  hello.u32(kStoreMagic);
  hello.raw(Nonce{});  // not yet all of the hello
  (void)write_some(half.get(), hello.bytes());
  const Fd unproven = raw_client(server.port());
  (void)say_hello(unproven.get(), {});
  for (const Fd* fd : {&silent, &half, &unproven}) {
    ASSERT_TRUE(poll_socket(fd->get(), POLLIN, seconds(120)));
    std::byte byte{};
    EXPECT_TRUE(read_some(fd->get(), {&byte, 1}).closed);
  }
  EXPECT_GE(now_ns() - begin_ns, kProofTimeNs) << "each has its time";
}

TEST_F(StoreProofTest, MemoryOfAFrameGrowsWithWhatHasComeAndGoesWithIt) {
  constexpr std::size_t kFrameBytes = 16 << 20;
  FrameAssembler in(1 << 30);
  ByteWriter length;
  length.u32(kFrameBytes);
  std::copy_n(length.bytes().begin(), 4, in.space().begin());
  in.filled(4);
  for (std::size_t come = 4; !in.next();) {
    const std::size_t room = in.space().size();
    ASSERT_LE(come + room, 2 * come + (1 << 20)) << "a length alone claims nothing";
    ASSERT_LE(come + room, kFrameBytes + (1 << 20)) << "nor more than the frame needs";
    const std::size_t piece = std::min({room, std::size_t{1 << 18}, kFrameBytes + 4 - come});
    in.filled(piece);
    come += piece;
  }
  EXPECT_LE(in.space().size(), std::size_t{1 << 20}) << "a large frame's memory goes with it";
}

}  // namespace
}  // namespace ringtune::testing_support
