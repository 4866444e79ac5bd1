#include "base/bytes.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"

namespace ringtune {
namespace {

TEST(BaseBytes, EveryTypeComesBack) {
  ByteWriter writer;
  writer.u8(255);
  writer.u32(0x01020304);
  writer.i32(-7);
  writer.u64(std::numeric_limits<std::uint64_t>::max());
  writer.i64(std::numeric_limits<std::int64_t>::min());
  writer.f64(-0.1);
  writer.string(std::string("a\0b", 3));
  writer.blob({});
  const Bytes bytes = writer.take();
  ByteReader reader(bytes);
  EXPECT_EQ(reader.u8(), 255);
  EXPECT_EQ(reader.u32(), 0x01020304U);
  EXPECT_EQ(reader.i32(), -7);
  EXPECT_EQ(reader.u64(), std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(reader.i64(), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(reader.f64(), -0.1);
  EXPECT_EQ(reader.string(), std::string("a\0b", 3));
  EXPECT_TRUE(reader.blob().empty());
  reader.expect_end();
}

TEST(BaseBytes, IsLittleEndianOnTheWire) {
  ByteWriter writer;
  writer.u32(0x01020304);
  EXPECT_EQ(writer.bytes(), (Bytes{std::byte{4}, std::byte{3}, std::byte{2}, std::byte{1}}));
}

// Every prefix of a message is refused, never read beyond.
class BaseBytesCut : public ::testing::TestWithParam<std::size_t> {};
TEST_P(BaseBytesCut, IsAProtocolError) {
  ByteWriter writer;
  writer.u64(1);
  writer.string("abc");
  const ByteView cut = ByteView(writer.bytes()).first(GetParam());
  ByteReader reader(cut);
  EXPECT_THROW(((void)reader.u64(), (void)reader.string()), Protocol);
}
INSTANTIATE_TEST_SUITE_P(Prefix, BaseBytesCut, ::testing::Range<std::size_t>(0, 15));

TEST(BaseBytes, ALengthThatLiesIsAProtocolError) {
  ByteWriter writer;
  writer.u32(0xffffffff);
  ByteReader reader(writer.bytes());
  EXPECT_THROW((void)reader.blob(), Protocol);
}

TEST(BaseBytes, BytesLeftOverAreAProtocolError) {
  ByteWriter writer;
  writer.u8(1);
  EXPECT_THROW(ByteReader(writer.bytes()).expect_end(), Protocol);
}

}  // namespace
}  // namespace ringtune
