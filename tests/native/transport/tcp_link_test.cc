// What the contract of links does not see: the sockets of a striped link one by one.
#include "transport/tcp_link.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "fabrics.h"
#include "transport/shared_waker.h"

namespace ringtune::testing_support {
namespace {

constexpr std::size_t kStripe = TcpLink::kStripeBytes;

/// A link over `count` sockets whose other ends the test holds.
class StripedLink : public LeakChecked {
 protected:
  void open(int count) {
    TcpLinkParts parts{.sockets = {}, .peer = 1, .peer_name = "rank 1", .waker = &waker_, .buffer_bytes = 4 * kStripe};
    for (int i = 0; i < count; ++i) {
      int ends[2];
      ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
      parts.sockets.emplace_back(ends[0]);
      far_.emplace_back(ends[1]);
    }
    link_ = std::make_unique<TcpLink>(std::move(parts));
  }
  void write(std::size_t socket, const Bytes& bytes) {
    ASSERT_EQ(write_some(far_[socket].get(), bytes).bytes, bytes.size());
  }
  void TearDown() override {
    link_.reset();
    far_.clear();
  }

  SharedWaker waker_{WakerReach::kProcess, 0};
  std::vector<Fd> far_;
  std::unique_ptr<TcpLink> link_;
};

TEST_F(StripedLink, AStripeThatComesEarlyWaitsForItsTurn) {
  open(2);
  write(1, Bytes(100, std::byte{2}));
  Bytes into(kStripe + 100);
  EXPECT_EQ(link_->try_receive(into), 0u);
  write(0, Bytes(kStripe, std::byte{1}));
  EXPECT_EQ(link_->try_receive(into), kStripe + 100);
  EXPECT_EQ(into[kStripe - 1], std::byte{1});
  EXPECT_EQ(into[kStripe], std::byte{2});
}

TEST_F(StripedLink, BytesThatWereSeenMoveToTheirPlaceInOrder) {
  open(2);
  write(1, Bytes(100, std::byte{2}));
  write(0, Bytes(kStripe, std::byte{1}));
  EXPECT_EQ(link_->peek().size(), kStripe + 100);
  Bytes into(kStripe + 200);
  EXPECT_EQ(link_->try_receive(into), kStripe + 100);
  write(1, Bytes(100, std::byte{3}));
  EXPECT_EQ(link_->try_receive(std::span(into).subspan(kStripe + 100)), 100u);
  EXPECT_EQ(into[kStripe - 1], std::byte{1});
  EXPECT_EQ(into[kStripe + 99], std::byte{2});
  EXPECT_EQ(into[kStripe + 100], std::byte{3});
}

TEST_F(StripedLink, AFullSocketDoesNotHoldUpTheOther) {
  open(2);
  const Bytes bytes(64 * kStripe);
  const std::size_t accepted = link_->try_send(bytes);
  ASSERT_LT(accepted, bytes.size());
  // Only the second socket is read by the peer; what it carries goes on, the accepted prefix does not.
  Bytes sink(64 * kStripe);
  std::size_t second = read_some(far_[1].get(), sink).bytes;
  EXPECT_EQ(link_->try_send(std::span(bytes).subspan(accepted)), 0u);
  second += read_some(far_[1].get(), sink).bytes;
  EXPECT_GT(second, accepted / 2);
}

TEST_F(StripedLink, OneBrokenSocketBreaksTheLinkForItsReader) {
  open(4);
  far_[1].reset();
  write(0, Bytes(kStripe, std::byte{1}));
  write(2, Bytes(kStripe, std::byte{3}));
  Bytes into(3 * kStripe);
  EXPECT_EQ(link_->try_receive(into), kStripe);  // what was whole before the gap is still there
  const PeerLost error = expect_throw<PeerLost>([&] { (void)link_->try_receive(std::span(into).subspan(kStripe)); });
  EXPECT_EQ(error.rank(), 1);
  EXPECT_NE(std::string(error.what()).find("rank 1 is lost: socket 2 of 4"), std::string::npos) << error.what();
}

TEST_F(StripedLink, OneBrokenSocketBreaksTheLinkForItsSender) {
  open(4);
  far_[3].reset();
  const PeerLost error = expect_throw<PeerLost>([&] { (void)link_->try_send(Bytes(4 * kStripe)); });
  EXPECT_NE(std::string(error.what()).find("socket 4 of 4"), std::string::npos) << error.what();
}

TEST_F(StripedLink, ABrokenSocketEndsASleep) {
  open(4);
  const std::uint32_t ticket = waker_.prepare();
  std::thread breaker([&] { far_[0].reset(); });
  waker_.wait(ticket, seconds(20));
  breaker.join();
  Bytes into(1);
  EXPECT_THROW((void)link_->try_receive(into), PeerLost);
}

TEST(Connect, ASocketThatMeetsItselfFoundNobody) {
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in here{};
  here.sin_family = AF_INET;
  here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&here), sizeof(here)), 0);
  const std::uint16_t port = local_port(fd.get());
  here.sin_port = htons(port);
  const int begun = ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&here), sizeof(here));
  ASSERT_TRUE(begun == 0 || errno == EINPROGRESS);
  ASSERT_TRUE(poll_socket(fd.get(), POLLOUT, seconds(20)));
  EXPECT_EQ(connect_error(fd.get()), ECONNREFUSED);
  fd.reset();
  EXPECT_TRUE(listen_tcp("127.0.0.1", port)) << "the port is free for whoever is to listen there";
}

}  // namespace
}  // namespace ringtune::testing_support
