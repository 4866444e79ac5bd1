// What the links of the negotiation cost: one socket at each end, however many the data has.
#include "runtime/control_plane.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "transport/fabrics.h"

namespace ringtune {
namespace {

using testing_support::connect_pair;
using testing_support::Footprint;
using testing_support::join;
using testing_support::Joined;
using testing_support::seconds;

TEST(ControlPlane, ALinkHasOneSocketThoughDataLinksHaveFour) {
  constexpr int kRanks = 3;  // rank 0 has two children
  Joined job = join("tcp4", kRanks);
  std::size_t before = Footprint::now().descriptors;
  (void)connect_pair(job);
  EXPECT_EQ(Footprint::now().descriptors - before, 2u * 4u);
  before = Footprint::now().descriptors;
  std::vector<std::unique_ptr<ControlPlane>> planes(kRanks);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back(
        [&, rank] { planes[rank] = std::make_unique<ControlPlane>(job[rank], kDefaultFanOut, seconds(20)); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Footprint::now().descriptors - before, 2u * 2u) << "two links, one socket at each end";
}

}  // namespace
}  // namespace ringtune
