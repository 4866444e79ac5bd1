// fetch_copy copies, in every instruction set, at any address and length, and touches nothing around it.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "device/cpu_kernels.h"
#include "device/kernel_table.h"

namespace ringtune {
namespace {

constexpr std::size_t kFetchAround = 128;
constexpr std::byte kUntouched{0x5a};

std::vector<std::byte> numbered(std::size_t bytes) {
  std::vector<std::byte> result(bytes);
  for (std::size_t i = 0; i < bytes; ++i) result[i] = static_cast<std::byte>(i % 251);
  return result;
}

class FetchCopy : public ::testing::TestWithParam<const char*> {};
TEST_P(FetchCopy, CopiesAndTouchesNothingAround) {
  const device::KernelTable* const table = device::kernels_of(GetParam());
  if (table == nullptr) GTEST_SKIP() << "this processor has no " << GetParam();
  for (const std::size_t bytes : {0, 1, 63, 64, 65, 255, 256, 257, 511, 2048, 4096 + 12, 100'000}) {
    for (const std::size_t skipped : {0, 1, 16}) {
      for (const std::size_t offset : {0, 4, 16, 63}) {
        const std::vector<std::byte> in = numbered(bytes + skipped);
        std::vector<std::byte> expected(2 * kFetchAround + bytes, kUntouched);
        std::vector<std::byte> out = expected;
        if (bytes > 0) std::memcpy(expected.data() + offset, in.data() + skipped, bytes);
        table->fetch(out.data() + offset, in.data() + skipped, bytes);
        ASSERT_TRUE(out == expected) << bytes << " bytes from " << skipped << " to " << offset;
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Isa, FetchCopy, ::testing::Values("portable", "avx2", "avx512"),
                         [](const ::testing::TestParamInfo<const char*>& isa) { return std::string(isa.param); });

TEST(FetchCopyDispatch, TakesTheBestTable) {
  const std::vector<std::byte> in = numbered(1000);
  std::vector<std::byte> out(in.size());
  fetch_copy(out.data(), in.data(), in.size());
  EXPECT_TRUE(out == in);
}

}  // namespace
}  // namespace ringtune
