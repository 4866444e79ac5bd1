// stream_convert_copy gives what convert_copy gives, and nothing around it.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/error.h"
#include "device/cpu_kernels.h"

namespace ringtune {
namespace {

constexpr std::size_t kAround = 128;

std::vector<std::byte> numbers(DType dtype, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i % 251) * 0.5F - 60.0F;
  std::vector<std::byte> bytes(count * size_of(dtype));
  convert_copy(bytes.data(), dtype, reinterpret_cast<const std::byte*>(values.data()), DType::kFloat32, count, 1.0);
  return bytes;
}

class StreamConvertCopy : public ::testing::TestWithParam<std::tuple<DType, DType, double>> {};
TEST_P(StreamConvertCopy, IsConvertCopy) {
  const auto [from, to, factor] = GetParam();
  for (const std::size_t count : {0, 1, 15, 16, 17, 64, 1000, 1024, 4096, 5003}) {
    const std::vector<std::byte> in = numbers(from, count + 1);
    for (const std::size_t skipped : {0, 1}) {  // of the input: it is aligned to its elements only
      for (const std::size_t offset : {0, 8, 24, 56, 64}) {
        std::vector<std::byte> expected(kAround * 2 + count * size_of(to), std::byte{0x5a});
        std::vector<std::byte> out = expected;
        const std::byte* const first = in.data() + skipped * size_of(from);
        convert_copy(expected.data() + offset, to, first, from, count, factor);
        stream_convert_copy(out.data() + offset, to, first, from, count, factor);
        ASSERT_TRUE(out == expected) << count << " elements at " << offset;
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(All, StreamConvertCopy,
                         ::testing::Combine(::testing::Values(DType::kFloat32, DType::kFloat16, DType::kBfloat16),
                                            ::testing::Values(DType::kFloat32, DType::kFloat16, DType::kBfloat16,
                                                              DType::kFloat64),
                                            ::testing::Values(1.0, 0.25)));

TEST(StreamConvertCopy, KeepsIntegersAsTheyAre) {
  std::vector<std::int64_t> in(777);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = (std::int64_t{1} << 60) + static_cast<std::int64_t>(i);
  std::vector<std::int64_t> out(in.size());
  stream_convert_copy(reinterpret_cast<std::byte*>(out.data()), DType::kInt64,
                      reinterpret_cast<const std::byte*>(in.data()), DType::kInt64, in.size(), 1.0);
  EXPECT_EQ(out, in);
}

TEST(StreamConvertCopy, RefusesWhatConvertCopyRefuses) {
  std::vector<std::byte> bytes(64);
  EXPECT_THROW(stream_convert_copy(bytes.data(), DType::kFloat32, bytes.data(), DType::kInt32, 4, 1.0), InvariantError);
}

}  // namespace
}  // namespace ringtune
