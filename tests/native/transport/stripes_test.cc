#include "transport/stripes.h"

#include <gtest/gtest.h>

namespace ringtune {
namespace {

TEST(Stripes, OneSocketCarriesEverything) {
  constexpr Stripes stripes(1, 10);
  EXPECT_EQ(stripes.socket_of(12345), 0u);
  EXPECT_EQ(stripes.next_on(0, 12345), 12345u);
  EXPECT_EQ(stripes.run(5, 1'000'000), 999'995u);
}

TEST(Stripes, GoRound) {
  constexpr Stripes stripes(3, 10);
  EXPECT_EQ(stripes.socket_of(0), 0u);
  EXPECT_EQ(stripes.socket_of(19), 1u);
  EXPECT_EQ(stripes.socket_of(30), 0u);
  EXPECT_EQ(stripes.next_on(0, 3), 3u);
  EXPECT_EQ(stripes.next_on(2, 3), 20u);
  EXPECT_EQ(stripes.next_on(0, 15), 30u);
  EXPECT_EQ(stripes.next_on(0, 30), 30u);
  EXPECT_EQ(stripes.run(13, 100), 7u);
  EXPECT_EQ(stripes.run(13, 15), 2u);
}

// Every position belongs to exactly one socket, and walking a socket's runs visits exactly its positions.
TEST(Stripes, PartitionTheStream) {
  constexpr std::uint64_t kEnd = 977;
  for (std::size_t sockets = 1; sockets <= 5; ++sockets) {
    const Stripes stripes(sockets, 16);
    std::uint64_t visited = 0;
    for (std::size_t socket = 0; socket < sockets; ++socket) {
      for (std::uint64_t at = stripes.next_on(socket, 0); at < kEnd;) {
        const std::uint64_t run = stripes.run(at, kEnd);
        for (std::uint64_t i = at; i < at + run; ++i) ASSERT_EQ(stripes.socket_of(i), socket);
        visited += run;
        at = stripes.next_on(socket, at + run);
      }
    }
    EXPECT_EQ(visited, kEnd);
  }
}

}  // namespace
}  // namespace ringtune
