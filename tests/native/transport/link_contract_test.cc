// What every kind of link promises. A new transport joins by one more name at the end of the file.
#include <cstring>
#include <numeric>
#include <random>

#include "base/error.h"
#include "fabrics.h"

namespace ringtune::testing_support {
namespace {

class LinkContract : public LeakChecked, public ::testing::WithParamInterface<std::string> {
 protected:
  [[nodiscard]] Joined joined(std::size_t ring_bytes = 1 << 20, int size = 2) const {
    return join(GetParam(), size, ring_bytes);
  }
};

std::byte pattern(std::uint64_t position) { return static_cast<std::byte>((position * 0x9E3779B97F4A7C15ull) >> 56); }

Bytes patterned(std::uint64_t begin, std::size_t count) {
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = pattern(begin + i);
  return bytes;
}

TEST_P(LinkContract, TellsItsPeerAndKind) {
  Joined world = joined();
  const Pair pair = connect_pair(world);
  EXPECT_EQ(pair.a->peer(), 1);
  EXPECT_EQ(pair.b->peer(), 0);
  const std::string kind = GetParam() == "tcp4" ? "tcp" : GetParam();
  EXPECT_EQ(pair.a->kind(), kind);
  EXPECT_EQ(world[0].viable(1), kind);
  EXPECT_EQ(world[1].hosts().size(), 2u);
}

TEST_P(LinkContract, KeepsTheOrderOfOddPieces) {
  Joined world = joined(8192);
  const Pair pair = connect_pair(world);
  constexpr std::size_t kTotal = 1'000'003;
  std::thread sender([&] {
    std::mt19937 random(7);
    for (std::size_t at = 0; at < kTotal;) {
      const std::size_t count = std::min<std::size_t>(random() % 5000, kTotal - at);
      send_all(*pair.a, world[0].waker(), patterned(at, count), seconds(20));
      at += count;
    }
  });
  std::mt19937 random(11);
  for (std::size_t at = 0; at < kTotal;) {
    Bytes bytes(std::min<std::size_t>(random() % 7000, kTotal - at));
    recv_all(*pair.b, world[1].waker(), bytes, seconds(20));
    ASSERT_EQ(bytes, patterned(at, bytes.size())) << "at byte " << at;
    at += bytes.size();
  }
  sender.join();
}

TEST_P(LinkContract, AcceptsAPrefixWhenFullAndGoesOnAfterwards) {
  Joined world = joined(4096);
  const Pair pair = connect_pair(world);
  const Bytes block = patterned(0, 3000);
  std::size_t accepted = 0;
  while (const std::size_t sent = pair.a->try_send(ByteView(block).subspan(accepted % block.size()))) accepted += sent;
  ASSERT_GE(accepted, 4096u);
  for (std::size_t at = 0; at < accepted;) {
    Bytes bytes(std::min(block.size() - at % block.size(), accepted - at));
    recv_all(*pair.b, world[1].waker(), bytes, seconds(20));
    ASSERT_EQ(std::memcmp(bytes.data(), block.data() + at % block.size(), bytes.size()), 0) << "at byte " << at;
    at += bytes.size();
  }
  EXPECT_TRUE(pair.b->peek().empty());
  send_all(*pair.a, world[0].waker(), block, seconds(20));
}

/// Sends and receives at once from one thread, as the collectives do. Returns the sum of the received bytes.
std::uint64_t exchange(Link& link, Waker& waker, const Bytes& out, std::size_t expected) {
  std::uint64_t sum = 0;
  for (std::size_t sent = 0, received = 0; sent < out.size() || received < expected;) {
    const std::uint32_t ticket = waker.prepare();
    const std::size_t now = link.try_send(ByteView(out).subspan(sent));
    sent += now;
    const std::span<const std::byte> view = link.peek();
    for (const std::byte byte : view) sum += std::to_integer<std::uint64_t>(byte);
    link.consume(view.size());
    received += view.size();
    if (now == 0 && view.empty()) waker.wait(ticket, seconds(20));
  }
  return sum;
}

TEST_P(LinkContract, CarriesSixtyFourMebibytesBothWaysAtOnce) {
  Joined world = joined();
  const Pair pair = connect_pair(world);
  const Bytes a = patterned(1, 64 << 20);
  const Bytes b = patterned(2, 64 << 20);
  const auto sum = [](const Bytes& bytes) {
    return std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0},
                           [](std::uint64_t total, std::byte byte) { return total + std::to_integer<unsigned>(byte); });
  };
  std::uint64_t at_b = 0;
  std::thread other([&] { at_b = exchange(*pair.b, world[1].waker(), b, a.size()); });
  const std::uint64_t at_a = exchange(*pair.a, world[0].waker(), a, b.size());
  other.join();
  EXPECT_EQ(at_a, sum(b));
  EXPECT_EQ(at_b, sum(a));
}

// What is looked at, what is received to its place and what is peeked at in full take turns in one stream.
TEST_P(LinkContract, ReceivesIntoPlaceAndByViewInTurns) {
  Joined world = joined(16 << 10);
  const Pair pair = connect_pair(world);
  constexpr std::size_t kTotal = 3'000'017;
  std::thread sender([&] { send_all(*pair.a, world[0].waker(), patterned(0, kTotal), seconds(20)); });
  std::mt19937 random(3);
  Waker& waker = world[1].waker();
  for (std::size_t at = 0; at < kTotal;) {
    const std::size_t count = std::min<std::size_t>(random() % 300'000, kTotal - at);
    Bytes bytes(count);
    const bool by_view = random() % 2 == 0;
    for (std::size_t have = 0; have < count;) {
      const std::uint32_t ticket = waker.prepare();
      std::size_t now = 0;
      if (by_view) {
        const std::span<const std::byte> view = random() % 8 == 0 ? pair.b->peek() : pair.b->peek_some(count - have);
        now = std::min(view.size(), count - have);
        std::memcpy(bytes.data() + have, view.data(), now);
        pair.b->consume(now);
      } else {
        now = pair.b->try_receive(std::span(bytes).subspan(have));
      }
      have += now;
      if (now == 0) waker.wait(ticket, seconds(20));
    }
    ASSERT_EQ(bytes, patterned(at, count)) << "at byte " << at;
    at += count;
  }
  sender.join();
}

TEST_P(LinkContract, ShowsNoMoreThanIsWanted) {
  Joined world = joined();
  const Pair pair = connect_pair(world);
  send_all(*pair.a, world[0].waker(), patterned(0, 1000), seconds(20));
  for (std::size_t at = 0; at < 1000;) {
    const std::uint32_t ticket = world[1].waker().prepare();
    const std::span<const std::byte> view = pair.b->peek_some(7);
    ASSERT_LE(view.size(), 7u);
    ASSERT_EQ(std::memcmp(view.data(), patterned(at, 7).data(), view.size()), 0);
    pair.b->consume(view.size());
    at += view.size();
    if (view.empty()) world[1].waker().wait(ticket, seconds(20));
  }
  EXPECT_TRUE(pair.b->peek().empty());
}

TEST_P(LinkContract, ShowsAPartialElementTogetherWithItsRest) {
  Joined world = joined(4096);
  const Pair pair = connect_pair(world);
  const Bytes sent = patterned(0, 40'000);
  std::thread sender([&] { send_all(*pair.a, world[0].waker(), sent, seconds(20)); });
  constexpr std::size_t kElement = Link::kPeekMinimum;
  for (std::size_t at = 0; at < sent.size();) {
    const std::uint32_t ticket = world[1].waker().prepare();
    const std::span<const std::byte> view = pair.b->peek();
    const std::size_t whole = view.size() / kElement * kElement;
    ASSERT_EQ(std::memcmp(view.data(), sent.data() + at, view.size()), 0);
    pair.b->consume(whole);
    at += whole;
    if (whole == 0) world[1].waker().wait(ticket, seconds(20));
  }
  sender.join();
}

TEST_P(LinkContract, DoesNotMixChannels) {
  Joined world = joined();
  const Pair one = connect_pair(world, "one");
  const Pair two = connect_pair(world, "two");
  send_all(*two.a, world[0].waker(), patterned(2, 100), seconds(20));
  send_all(*one.a, world[0].waker(), patterned(1, 100), seconds(20));
  Bytes bytes(100);
  recv_all(*one.b, world[1].waker(), bytes, seconds(20));
  EXPECT_EQ(bytes, patterned(1, 100));
  recv_all(*two.b, world[1].waker(), bytes, seconds(20));
  EXPECT_EQ(bytes, patterned(2, 100));
  EXPECT_THROW((void)world[0].connect(1, "one", seconds(20)), InvalidArgument);
  EXPECT_THROW((void)world[0].connect(0, "self", seconds(20)), InvalidArgument);
  EXPECT_THROW((void)world[0].connect(2, "nobody", seconds(20)), InvalidArgument);
}

TEST_P(LinkContract, ConnectsWhoeverComesFirst) {
  Joined world = joined(4096, 3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      Fabric& fabric = world[static_cast<std::size_t>(rank)];
      // Rank 1 may come to rank 0 long before that is done with rank 2.
      const std::vector<int> order = rank == 0 ? std::vector{2, 1} : rank == 1 ? std::vector{0, 2} : std::vector{0, 1};
      for (const int peer : order) {
        Link& link = fabric.connect(peer, "mesh", seconds(20));
        send_all(link, fabric.waker(), Bytes(1, static_cast<std::byte>(rank)), seconds(20));
        Bytes byte(1);
        recv_all(link, fabric.waker(), byte, seconds(20));
        EXPECT_EQ(std::to_integer<int>(byte[0]), peer);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(LinkContract, ZeroBytesAreNothing) {
  Joined world = joined();
  const Pair pair = connect_pair(world);
  EXPECT_EQ(pair.a->try_send({}), 0u);
  EXPECT_TRUE(pair.b->peek().empty());
  pair.b->consume(0);
  send_all(*pair.a, world[0].waker(), {}, milliseconds(0));
  recv_all(*pair.b, world[1].waker(), {}, milliseconds(0));
}

TEST_P(LinkContract, ATimeoutNamesThePeer) {
  Joined world = joined();
  const Pair pair = connect_pair(world);
  Bytes bytes(1);
  const Timeout error = expect_throw<Timeout>([&] { recv_all(*pair.a, world[0].waker(), bytes, milliseconds(20)); });
  EXPECT_NE(std::string(error.what()).find("rank 1"), std::string::npos) << error.what();
}

TEST_P(LinkContract, AConnectTimeoutNamesPeerAndChannel) {
  Joined world = joined();
  for (const int rank : {0, 1}) {  // the accepting and the dialling side
    const Timeout error = expect_throw<Timeout>(
        [&] { (void)world[static_cast<std::size_t>(rank)].connect(1 - rank, "late", milliseconds(30)); });
    EXPECT_NE(std::string(error.what()).find("rank " + std::to_string(1 - rank)), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("late"), std::string::npos) << error.what();
  }
  (void)connect_pair(world, "late");  // both gave up; together they succeed
}

TEST_P(LinkContract, AbortFromAnotherThreadWakesAWaiter) {
  for (int round = 0; round < 20; ++round) {
    Joined world = joined(4096);
    const Pair pair = connect_pair(world);
    std::thread killer([&] { world[0].abort("the cable was cut"); });
    Bytes bytes(1);
    const PeerLost error =
        expect_throw<PeerLost>([&] { recv_all(*pair.a, world[0].waker(), bytes, Deadline::never()); });
    killer.join();
    EXPECT_EQ(error.rank(), 1);
    EXPECT_STREQ(error.what(), "the cable was cut");
    EXPECT_THROW((void)pair.a->try_send(bytes), PeerLost);
    EXPECT_THROW(pair.a->consume(0), PeerLost);
    EXPECT_THROW((void)world[0].connect(1, "later", seconds(1)), PeerLost);
  }
}

TEST_P(LinkContract, AbortEndsAConnect) {
  Joined world = joined();
  for (const std::size_t rank : {0u, 1u}) {
    std::thread killer([&] { world[rank].abort("enough"); });
    EXPECT_THROW((void)world[rank].connect(1 - static_cast<int>(rank), "never", Deadline::never()), PeerLost);
    killer.join();
  }
}

TEST_P(LinkContract, APeerThatClosesIsLostAfterItsLastByte) {
  Joined world = joined();
  const Pair pair = connect_pair(world);
  send_all(*pair.b, world[1].waker(), patterned(0, 5000), seconds(20));
  world.fabrics[1].reset();
  EXPECT_EQ(pair.a->try_send({}), 0u);  // whoever only reads any more is not disturbed
  Bytes bytes(5000);
  recv_all(*pair.a, world[0].waker(), bytes, seconds(20));
  EXPECT_EQ(bytes, patterned(0, 5000));
  const PeerLost error = expect_throw<PeerLost>([&] { recv_all(*pair.a, world[0].waker(), bytes, Deadline::never()); });
  EXPECT_EQ(error.rank(), 1);
  EXPECT_NE(std::string(error.what()).find("rank 1"), std::string::npos) << error.what();
  EXPECT_THROW(send_all(*pair.a, world[0].waker(), Bytes(64 << 20), Deadline::never()), PeerLost);
}

TEST_P(LinkContract, AStreamCutWithinAnElementDoesNotHangItsReader) {
  Joined world = joined();
  const Pair pair = connect_pair(world);
  send_all(*pair.b, world[1].waker(), patterned(0, 3), seconds(20));
  world.fabrics[1].reset();
  EXPECT_THROW(
      while (true) {
        const std::uint32_t ticket = world[0].waker().prepare();
        if (pair.a->peek().size() >= 8) break;
        world[0].waker().wait(ticket, Deadline::never());
      },
      PeerLost);
}

TEST_P(LinkContract, FramesArriveWhole) {
  Joined world = joined(4096);
  const Pair pair = connect_pair(world);
  const std::vector<std::size_t> sizes{0, 1, 4096, 100'000, 3, 0};
  std::thread sender([&] {
    FrameWriter writer;
    for (const std::size_t size : sizes) writer.push(patterned(size, size));
    while (true) {
      const std::uint32_t ticket = world[0].waker().prepare();
      if (writer.poll(*pair.a)) break;
      world[0].waker().wait(ticket, seconds(20));
    }
    EXPECT_TRUE(writer.empty());
  });
  FrameReader reader;
  for (const std::size_t size : sizes) {
    while (true) {
      const std::uint32_t ticket = world[1].waker().prepare();
      if (reader.poll(*pair.b)) break;
      world[1].waker().wait(ticket, seconds(20));
    }
    ASSERT_EQ(Bytes(reader.frame().begin(), reader.frame().end()), patterned(size, size));
  }
  EXPECT_FALSE(reader.poll(*pair.b));
  sender.join();
}

TEST_P(LinkContract, AFrameBeyondTheLimitIsRefused) {
  Joined world = joined();
  const Pair pair = connect_pair(world);
  send_all(*pair.a, world[0].waker(), Bytes(4, std::byte{0xff}), seconds(20));
  FrameReader reader;
  EXPECT_THROW(while (!reader.poll(*pair.b)) world[1].waker().wait(world[1].waker().prepare(), milliseconds(10)),
               Protocol);
}

TEST_P(LinkContract, WaitingCostsNoProcessorTimeEvenBesideUnreadBytes) {
  Joined world = joined();
  const Pair busy = connect_pair(world, "unread");
  const Pair idle = connect_pair(world, "idle");
  send_all(*busy.b, world[1].waker(), patterned(0, 100'000), seconds(20));
  Bytes bytes(1);
  const std::int64_t before = thread_cpu_ns();
  EXPECT_THROW(recv_all(*idle.a, world[0].waker(), bytes, milliseconds(300)), Timeout);
  EXPECT_LT(thread_cpu_ns() - before, 15'000'000) << "of 300 ms";
}

INSTANTIATE_TEST_SUITE_P(Kinds, LinkContract, ::testing::Values("inproc", "shm", "tcp", "tcp4"),
                         [](const auto& kind) { return kind.param; });

}  // namespace
}  // namespace ringtune::testing_support
