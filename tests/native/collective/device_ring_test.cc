#include "collective/device_ring.h"

#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <memory>
#include <thread>

#include "base/error.h"
#include "collective/numbers.h"
#include "device/device_bytes.h"

namespace ringtune {
namespace {

using namespace testing_support;
using ringtune::testing_support::input_of;
using ringtune::testing_support::reduced_of;

constexpr std::size_t kBufferBytes = 64 << 10;

/// Ranks that share a GPU, all put in by one thread; the fake does nothing before a stream is waited for, and then only
/// what that stream needs of the others.
class Ranks {
 public:
  explicit Ranks(int size, std::size_t segment_bytes = 256, std::uint32_t start = 0) {
    for (int rank = 0; rank < size; ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      buffers_.emplace_back(Bytes(kBufferBytes, std::byte{0x77}));
      streams.push_back(std::make_unique<CudaStream>(device));
      tables_.push_back(std::make_unique<BatchTable>(device));
      done_.push_back(registered_.word(64 * at));
      done_.back().host->store(start);
    }
    for (int rank = 0; rank < size; ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      const auto before = static_cast<std::size_t>((rank - 1 + size) % size);
      const auto after = static_cast<std::size_t>((rank + 1) % size);
      const DeviceRingPlace place{
          rank, size, buffers_[at].address(), buffers_[before].address(), done_[at], done_[before], done_[after]};
      rings.push_back(std::make_unique<DeviceRing>(device, kernels_, place, streams[at]->handle(), segment_bytes));
    }
  }

  /// As the runtime does it: the tensor into the buffer, round, and back.
  void allreduce(std::size_t rank, const DeviceBytes& tensor, std::size_t count, DType dtype, ReduceOp op) {
    rings[rank]->take_buffer();
    copy(rank, tensor.address(), buffers_[rank].address(), count, dtype);
    rings[rank]->allreduce(count, dtype, op);
    copy(rank, buffers_[rank].address(), tensor.address(), count, dtype);
  }
  void copy(std::size_t rank, CudaAddress from, CudaAddress to, std::size_t count, DType dtype) {
    const DeviceMove move[] = {{from, to, count}};
    kernels_.move(*tables_[rank], move, {dtype, dtype}, streams[rank]->handle());
  }
  void abort(std::size_t rank) {
    rings[rank]->abort();
    rings[rank]->finish(Deadline::never());
  }
  [[nodiscard]] CudaAddress buffer(std::size_t rank) const { return buffers_[rank].address(); }
  [[nodiscard]] std::uint32_t count(std::size_t rank) const { return done_[rank].host->load(); }

  FakeGpu gpu;
  CudaDevice device{FakeGpu::driver(), 0};
  CudaDevice::Current current{device};
  std::vector<std::unique_ptr<CudaStream>> streams;
  std::vector<std::unique_ptr<DeviceRing>> rings;

 private:
  DeviceKernels kernels_{device, kFakeCubin};
  alignas(64) std::array<std::byte, 512> words_{};
  RegisteredMemory registered_{device, words_};
  std::deque<DeviceBytes> buffers_;
  std::vector<std::unique_ptr<BatchTable>> tables_;
  std::vector<StreamWord> done_;
};

class Sizes : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(DeviceRing, Sizes, ::testing::Range(1, 9));

TEST_P(Sizes, AllreducesInARowAreExactWhoeverIsLookedAtFirst) {
  const auto size = static_cast<std::size_t>(GetParam());
  struct Round {
    std::size_t count;
    DType dtype;
    ReduceOp op;
  };
  const Round rounds[] = {{1, DType::kFloat32, ReduceOp::kSum},      {5000, DType::kFloat32, ReduceOp::kSum},
                          {5000, DType::kBfloat16, ReduceOp::kMax},  {777, DType::kInt64, ReduceOp::kProduct},
                          {10'001, DType::kFloat16, ReduceOp::kSum}, {4096, DType::kBool, ReduceOp::kMin},
                          {10'001, DType::kFloat16, ReduceOp::kMin}};
  for (std::size_t first = 0; first < size; ++first) {
    Ranks ranks(GetParam());
    std::vector<std::deque<DeviceBytes>> tensors(size);
    for (std::size_t rank = 0; rank < size; ++rank) {
      for (const Round& round : rounds) {
        tensors[rank].emplace_back(input_of(static_cast<int>(rank), round.count, round.dtype, round.op));
        ranks.allreduce(rank, tensors[rank].back(), round.count, round.dtype, round.op);
      }
    }
    for (std::size_t k = 0; k < size; ++k) {
      const std::size_t rank = (first + k) % size;
      for (std::size_t i = 0; i < std::size(rounds); ++i) {
        const auto [count, dtype, op] = rounds[i];
        EXPECT_EQ(tensors[rank][i].after(*ranks.streams[rank]), reduced_of(GetParam(), count, dtype, op))
            << "rank " << rank << " of " << size << ", round " << i << ", looked at first: " << first;
      }
    }
  }
}

TEST_P(Sizes, AllRanksHaveTheSameBits) {
  const auto size = static_cast<std::size_t>(GetParam());
  for (const DType dtype : {DType::kFloat16, DType::kFloat32}) {
    Ranks ranks(GetParam(), 1024);
    std::deque<DeviceBytes> tensors;
    for (std::size_t rank = 0; rank < size; ++rank) {
      tensors.emplace_back(random_elements(dtype, 9001, static_cast<unsigned>(rank)));
      ranks.allreduce(rank, tensors.back(), 9001, dtype, ReduceOp::kSum);
    }
    const Bytes first = tensors[0].after(*ranks.streams[0]);
    for (std::size_t rank = 1; rank < size; ++rank) EXPECT_EQ(tensors[rank].after(*ranks.streams[rank]), first);
  }
}

TEST_P(Sizes, ABroadcastAndAnAllgatherAfterAnAllreduce) {
  const auto size = static_cast<std::size_t>(GetParam());
  Ranks ranks(GetParam());
  std::vector<std::size_t> blocks;
  Bytes gathered;
  for (std::size_t rank = 0; rank < size; ++rank) {
    blocks.push_back(rank * 333);
    gathered.insert(gathered.end(), blocks.back(), static_cast<std::byte>(rank + 1));
  }
  const std::size_t all = gathered.size();
  const int root = GetParam() / 2;
  std::deque<DeviceBytes> tensors, sent, received, blocks_of, results;
  std::size_t begin = 0;
  for (std::size_t rank = 0; rank < size; ++rank) {
    tensors.emplace_back(input_of(static_cast<int>(rank), 1000, DType::kFloat32, ReduceOp::kSum));
    ranks.allreduce(rank, tensors.back(), 1000, DType::kFloat32, ReduceOp::kSum);

    ranks.rings[rank]->take_buffer();
    sent.emplace_back(Bytes(3001, static_cast<std::byte>(rank + 40)));
    if (static_cast<int>(rank) == root)
      ranks.copy(rank, sent.back().address(), ranks.buffer(rank), 3001, DType::kUint8);
    ranks.rings[rank]->broadcast(3001, root);
    received.emplace_back(Bytes(3001));
    ranks.copy(rank, ranks.buffer(rank), received.back().address(), 3001, DType::kUint8);

    ranks.rings[rank]->take_buffer();
    blocks_of.emplace_back(Bytes(blocks[rank], static_cast<std::byte>(rank + 1)));
    ranks.copy(rank, blocks_of.back().address(), ranks.buffer(rank) + begin, blocks[rank], DType::kUint8);
    ranks.rings[rank]->allgather(blocks);
    results.emplace_back(Bytes(all));
    ranks.copy(rank, ranks.buffer(rank), results.back().address(), all, DType::kUint8);
    begin += blocks[rank];
  }
  for (std::size_t rank = size; rank-- > 0;) {
    EXPECT_EQ(results[rank].after(*ranks.streams[rank]), gathered);
    EXPECT_EQ(received[rank].now(), Bytes(3001, static_cast<std::byte>(root + 40)));
    EXPECT_EQ(tensors[rank].now(), reduced_of(GetParam(), 1000, DType::kFloat32, ReduceOp::kSum));
  }
}

TEST(DeviceRing, TheHostNeverWaits) {
  Ranks ranks(2);
  const DeviceBytes tensor(Bytes(4000));
  for (int i = 0; i < 50; ++i) ranks.allreduce(0, tensor, 1000, DType::kFloat32, ReduceOp::kSum);
  ranks.allreduce(1, tensor, 1000, DType::kFloat32, ReduceOp::kSum);
  EXPECT_EQ(ranks.count(0), 0U) << "the fake must do nothing before somebody waits";
  ranks.abort(0);  // its 49 others wait for a rank that never comes
  ranks.abort(1);
}

TEST(DeviceRing, ARankThatIsLateIsWaitedFor) {
  Ranks ranks(3);
  std::deque<DeviceBytes> tensors;
  for (int rank = 0; rank < 3; ++rank) tensors.emplace_back(input_of(rank, 2000, DType::kFloat32, ReduceOp::kSum));
  for (const std::size_t rank : {std::size_t{0}, std::size_t{2}}) {
    ranks.allreduce(rank, tensors[rank], 2000, DType::kFloat32, ReduceOp::kSum);
  }
  Bytes result;
  std::thread first([&] {
    const CudaDevice::Current current(ranks.device);
    result = tensors[0].after(*ranks.streams[0]);  // blocks for rank 1
  });
  ranks.allreduce(1, tensors[1], 2000, DType::kFloat32, ReduceOp::kSum);
  first.join();
  EXPECT_EQ(result, reduced_of(3, 2000, DType::kFloat32, ReduceOp::kSum));
  EXPECT_EQ(tensors[1].after(*ranks.streams[1]), result);
  EXPECT_EQ(tensors[2].after(*ranks.streams[2]), result);
}

TEST(DeviceRing, CountsMayWrapAround) {
  Ranks ranks(2, 64, ~std::uint32_t{0} - 20);
  std::deque<DeviceBytes> tensors;
  for (int rank = 0; rank < 2; ++rank) tensors.emplace_back(input_of(rank, 1000, DType::kFloat32, ReduceOp::kSum));
  for (std::size_t rank = 0; rank < 2; ++rank) {
    ranks.allreduce(rank, tensors[rank], 1000, DType::kFloat32, ReduceOp::kSum);
  }
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(tensors[rank].after(*ranks.streams[rank]), reduced_of(2, 1000, DType::kFloat32, ReduceOp::kSum));
    EXPECT_LT(ranks.count(rank), 1000U);
  }
}

TEST(DeviceRing, WhenARankIsLostTheOthersStreamsRunToTheirEnd) {
  Ranks ranks(4);
  std::deque<DeviceBytes> tensors;
  for (std::size_t rank = 0; rank < 4; ++rank) tensors.emplace_back(Bytes(8000, std::byte{1}));
  // Rank 1 never comes; of the others each has put in another number of collectives.
  for (const std::size_t rank : {std::size_t{0}, std::size_t{2}, std::size_t{3}}) {
    for (std::size_t i = 0; i <= rank; ++i) {
      ranks.allreduce(rank, tensors[rank], 2000, DType::kFloat32, ReduceOp::kSum);
    }
  }
  std::vector<std::thread> threads;
  for (const std::size_t rank : {std::size_t{3}, std::size_t{0}, std::size_t{2}}) {
    threads.emplace_back([&, rank] {
      const CudaDevice::Current current(ranks.device);
      ranks.abort(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& stream : ranks.streams) {
    EXPECT_EQ(FakeGpu::function<int(void*)>("cuStreamSynchronize")(stream->handle()), 0);
  }
}

TEST(DeviceRing, ACallOfTheDriverThatFailsIsTold) {
  Ranks ranks(2);
  const DeviceBytes tensor(Bytes(4000));
  FakeGpu::fail("cuStreamWaitValue32_v2", 0, 999);
  EXPECT_THROW(ranks.rings[0]->take_buffer(), DeviceError);
  FakeGpu::fail("cuMemcpyDtoDAsync_v2", 0, 999);
  EXPECT_THROW(ranks.allreduce(0, tensor, 1000, DType::kFloat32, ReduceOp::kSum), DeviceError);
  ranks.abort(0);
}

TEST(DeviceRing, TheBufferIsTakenBeforeEachCollective) {
  Ranks ranks(2);
  ranks.rings[0]->take_buffer();
  ranks.rings[0]->allreduce(10, DType::kFloat32, ReduceOp::kSum);
  EXPECT_THROW(ranks.rings[0]->allreduce(10, DType::kFloat32, ReduceOp::kSum), InvariantError);
  ranks.abort(0);
}

}  // namespace
}  // namespace ringtune
