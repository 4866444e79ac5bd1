// What every algorithm promises, over every kind of link.
#include "collective/allreduce.h"

#include <gtest/gtest.h>

#include <mutex>
#include <tuple>

#include "../transport/fabrics.h"
#include "base/error.h"
#include "numbers.h"
#include "ranks.h"

namespace ringtune::testing_support {
namespace {

using enum Algorithm;

std::vector<int> everyone(int size) {
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(rank);
  return ranks;
}

/// Runs `body` on every rank of a joined world with its mesh.
template <typename Body>
void run_mesh(Joined& world, int size, std::int64_t idle_timeout_ns, Body body) {
  on_threads(size, [&](int rank) {
    Mesh mesh(world[static_cast<std::size_t>(rank)], everyone(size),
              {.connect_timeout_ns = kIdle, .idle_timeout_ns = idle_timeout_ns});
    body(mesh);
  });
}

std::string words(Algorithm algorithm) {
  std::string name(name_of(algorithm));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

class AlgorithmContract : public ::testing::TestWithParam<std::tuple<Algorithm, std::string, int>> {
 protected:
  void expect_exact(Mesh& mesh, std::size_t count, DType dtype, ReduceOp op) {
    Buffer data = input_of(mesh.rank(), count, dtype, op);
    allreduce({.mesh = &mesh}, data, dtype, op, {.algorithm = std::get<0>(GetParam())});
    EXPECT_TRUE(data == reduced_of(mesh.size(), count, dtype, op)) << "rank " << mesh.rank() << ", count " << count;
  }
};

TEST_P(AlgorithmContract, IsExact) {
  const auto [algorithm, kind, size] = GetParam();
  Joined world = join(kind, size, 64 << 10);
  run_mesh(world, size, kIdle, [&](Mesh& mesh) {
    for (const std::size_t count : {0, 1, 3, 257, 100'003}) {
      expect_exact(mesh, count, DType::kFloat32, ReduceOp::kSum);
    }
    for (const DType dtype : {DType::kUint8, DType::kInt64, DType::kFloat16, DType::kBfloat16, DType::kBool}) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
        expect_exact(mesh, 1003, dtype, op);
      }
    }
  });
}

TEST_P(AlgorithmContract, RoundedSumsAreBitEqualOnAllRanks) {
  const auto [algorithm, kind, size] = GetParam();
  Joined world = join(kind, size, 64 << 10);
  std::mutex mutex;
  std::vector<Buffer> results;
  run_mesh(world, size, kIdle, [&, algorithm = algorithm](Mesh& mesh) {
    std::vector<float> values(50'000);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = 1.0F / static_cast<float>(i * 9 + static_cast<std::size_t>(mesh.rank()) + 1);
    }
    const auto bytes = std::as_writable_bytes(std::span(values));
    allreduce({.mesh = &mesh}, bytes, DType::kFloat32, ReduceOp::kSum, {.algorithm = algorithm});
    const std::lock_guard lock(mutex);
    results.emplace_back(bytes.begin(), bytes.end());
  });
  for (const Buffer& result : results) EXPECT_TRUE(result == results.front());
}

INSTANTIATE_TEST_SUITE_P(All, AlgorithmContract,
                         ::testing::Combine(::testing::Values(kFlat, kRecursiveDoubling, kHalvingDoubling, kTree),
                                            ::testing::Values("inproc", "shm", "tcp", "tcp4"), ::testing::Range(2, 10)),
                         [](const auto& it) {
                           return words(std::get<0>(it.param)) + "_" + std::get<1>(it.param) + "_" +
                                  std::to_string(std::get<2>(it.param));
                         });

class AlgorithmFaults : public ::testing::TestWithParam<Algorithm> {};

TEST_P(AlgorithmFaults, ATimeoutNamesThePeerThatIsSilent) {
  Joined world = join("tcp4", 2);
  run_mesh(world, 2, 50'000'000, [&](Mesh& mesh) {
    mesh.prepare(std::vector<int>{1 - mesh.rank()});
    if (mesh.rank() == 1) return;  // never enters
    Buffer data(1 << 20);
    const Timeout error = expect_throw<Timeout>(
        [&] { allreduce({.mesh = &mesh}, data, DType::kFloat32, ReduceOp::kSum, {.algorithm = GetParam()}); });
    EXPECT_NE(std::string(error.what()).find("rank 1 to"), std::string::npos) << error.what();
  });
}

TEST_P(AlgorithmFaults, APeerThatGoesEndsTheWait) {
  Joined world = join("tcp4", 3);
  run_mesh(world, 3, 0, [&](Mesh& mesh) {
    mesh.prepare(mesh.rank() == 0 ? std::vector{1, 2} : mesh.rank() == 1 ? std::vector{0, 2} : std::vector{0, 1});
    const auto own = static_cast<std::size_t>(mesh.rank());
    if (mesh.rank() == 1) {
      world.fabrics[own].reset();  // closes its sockets, as the kernel does for a process that died
      return;
    }
    Buffer data(4 << 20);
    EXPECT_THROW(allreduce({.mesh = &mesh}, data, DType::kFloat32, ReduceOp::kSum, {.algorithm = GetParam()}),
                 PeerLost);
    world.fabrics[own].reset();  // so that a rank that waits for this one ends too
  });
}

INSTANTIATE_TEST_SUITE_P(Algorithms, AlgorithmFaults,
                         ::testing::Values(kFlat, kRecursiveDoubling, kHalvingDoubling, kTree),
                         [](const auto& it) { return words(it.param); });

}  // namespace
}  // namespace ringtune::testing_support
