// The ring between real processes, each with a fake driver of its own: memory opened by its name, words in shared
// memory.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <new>
#include <thread>

#include "base/error.h"
#include "collective/device_ring.h"
#include "collective/numbers.h"
#include "device/device_bytes.h"

namespace ringtune {
namespace {

using namespace testing_support;

constexpr int kSize = 3;
constexpr std::size_t kCount = 5000;

/// What all processes share.
struct Page {
  std::array<std::byte, 1024> words{};  // 64 bytes for each rank
  std::array<CudaIpcHandle, kSize> handles{};
  std::atomic<int> arrived{0};

  /// The `n`-th time that all come here.
  void meet(int n) {
    ++arrived;
    while (arrived < n * kSize) std::this_thread::yield();
  }
};

Page* shared_page() {
  void* const memory = ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : new (memory) Page;
}

/// The exit code of a child that does this.
int exit_code_of(pid_t child) {
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

template <typename Act>
pid_t in_a_child(Act act) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  int code = 99;
  try {
    code = act();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "child: %s\n", error.what());
  }
  ::_exit(code);
}

/// 0 when the sums are right.
int run_rank(Page& page, int rank) {
  const FakeGpu gpu;
  const CudaDevice device(FakeGpu::driver(), 0);
  const CudaDevice::Current current(device);
  const CudaStream stream(device);
  DeviceKernels kernels(device, kFakeCubin);
  DeviceMemory own(device);
  const auto at = static_cast<std::size_t>(rank);
  const std::size_t before = (at + kSize - 1) % kSize;
  own.reserve(kCount * 4);
  std::string refusal;
  page.handles[at] = export_memory(device, own.address(), refusal).value();
  page.meet(1);
  const PeerMemory previous(device, page.handles[before]);
  const RegisteredMemory words(device, page.words);
  DeviceRing ring(device, kernels,
                  {rank, kSize, own.address(), previous.address(), words.word(64 * at), words.word(64 * before),
                   words.word(64 * ((at + 1) % kSize))},
                  stream.handle(), 1024);
  page.meet(2);
  const DeviceBytes tensor(testing_support::input_of(rank, kCount, DType::kFloat32, ReduceOp::kSum));
  BatchTable in(device), out(device);
  const DeviceMove pack[] = {{tensor.address(), own.address(), kCount}};
  const DeviceMove unpack[] = {{own.address(), tensor.address(), kCount}};
  ring.take_buffer();
  kernels.move(in, pack, {DType::kFloat32, DType::kFloat32}, stream.handle());
  ring.allreduce(kCount, DType::kFloat32, ReduceOp::kSum);
  kernels.move(out, unpack, {DType::kFloat32, DType::kFloat32}, stream.handle());
  const bool right =
      tensor.after(stream) == testing_support::reduced_of(kSize, kCount, DType::kFloat32, ReduceOp::kSum);
  ring.take_buffer();  // the next rank reads here: this process stays until that is done
  (void)tensor.after(stream);
  page.meet(3);
  return right ? 0 : 1;
}

TEST(DeviceRingProcesses, SumsOfRanksThatShareAGpu) {
  const FakeGpu gpu;
  Page* const page = shared_page();
  ASSERT_NE(page, nullptr);
  std::vector<pid_t> children;
  for (int rank = 0; rank < kSize; ++rank) {
    children.push_back(in_a_child([&] { return run_rank(*page, rank); }));
  }
  for (const pid_t child : children) EXPECT_EQ(exit_code_of(child), 0);
  ::munmap(page, sizeof(Page));
}

TEST(PeerMemory, IsThatOfTheOtherProcess) {
  const FakeGpu gpu;
  const CudaDevice device(FakeGpu::driver(), 0);
  const CudaDevice::Current current(device);
  const DeviceBytes memory(Bytes(5000, std::byte{4}));
  std::string refusal;
  const auto handle = export_memory(device, memory.address(), refusal);
  ASSERT_TRUE(handle.has_value()) << refusal;
  const pid_t child = in_a_child([&] {
    const FakeGpu other;
    const CudaDevice here(FakeGpu::driver(), 0);
    const CudaDevice::Current context(here);
    const PeerMemory peer(here, *handle);
    Bytes seen(5000);
    FakeGpu::function<int(void*, CudaAddress, std::size_t)>("cuMemcpyDtoH_v2")(seen.data(), peer.address(), 5000);
    const Bytes written(5000, std::byte{5});
    FakeGpu::function<int(CudaAddress, const void*, std::size_t)>("cuMemcpyHtoD_v2")(peer.address(), written.data(),
                                                                                     5000);
    return seen == Bytes(5000, std::byte{4}) ? 0 : 1;
  });
  EXPECT_EQ(exit_code_of(child), 0);
  EXPECT_EQ(memory.now(), Bytes(5000, std::byte{5}));
}

TEST(PeerMemory, WhatCannotBeSharedSaysWhy) {
  const FakeGpu gpu;
  const CudaDevice device(FakeGpu::driver(), 0);
  const CudaDevice::Current current(device);
  const DeviceBytes memory(Bytes(100));
  std::string refusal;
  const auto handle = export_memory(device, memory.address(), refusal);
  EXPECT_THROW((void)PeerMemory(device, handle.value()), DeviceError) << "a process does not open its own memory";
  FakeGpu::fail("cuIpcGetMemHandle", 0, 801);
  EXPECT_FALSE(export_memory(device, memory.address(), refusal).has_value());
  EXPECT_NE(refusal.find("cuIpcGetMemHandle failed"), std::string::npos) << refusal;
}

TEST(StreamWords, AStreamGoesOnWhenTheHostWritesTheWord) {
  const FakeGpu gpu;
  const CudaDevice device(FakeGpu::driver(), 0);
  const CudaDevice::Current current(device);
  EXPECT_EQ(stream_word_refusal(device), "");
  const CudaStream stream(device);
  CudaEvent passed(device);
  alignas(4) std::array<std::byte, 64> memory{};
  const RegisteredMemory registered(device, memory);
  const StreamWord word = registered.word(60);
  EXPECT_THROW((void)registered.word(61), InvariantError);
  wait_for_word(device, stream.handle(), word, 2);
  passed.record(stream.handle());
  word.host->store(1);
  EXPECT_FALSE(passed.reached());
  std::thread host([&] { word.host->store(3); });
  passed.synchronize();
  host.join();
  EXPECT_TRUE(passed.reached());
}

}  // namespace
}  // namespace ringtune
