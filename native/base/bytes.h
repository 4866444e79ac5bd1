// The wire format: little-endian fixed-width integers, strings and blobs with a u32 length. A reader that runs past the
// end throws Protocol; it never reads out of bounds whatever the peer sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ringtune {

using Bytes = std::vector<std::byte>;
using ByteView = std::span<const std::byte>;

class ByteWriter {
 public:
  void u8(std::uint8_t value);
  void u32(std::uint32_t value);
  void i32(std::int32_t value);
  void u64(std::uint64_t value);
  void i64(std::int64_t value);
  void f64(double value);
  void string(std::string_view value);
  void blob(ByteView value);
  void raw(ByteView value);  // without a length
  [[nodiscard]] const Bytes& bytes() const noexcept { return bytes_; }
  [[nodiscard]] Bytes take() noexcept { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

/// Borrows the view; all methods throw Protocol past the end.
class ByteReader {
 public:
  explicit ByteReader(ByteView view) noexcept : view_(view) {}
  std::uint8_t u8();
  std::uint32_t u32();
  std::int32_t i32();
  std::uint64_t u64();
  std::int64_t i64();
  double f64();
  std::string string();
  ByteView blob();
  void raw(std::span<std::byte> into);  // as many as there is room for
  [[nodiscard]] std::size_t remaining() const noexcept { return view_.size(); }
  void expect_end() const;  // throws Protocol when bytes are left

 private:
  ByteView take(std::size_t count);
  ByteView view_;
};

}  // namespace ringtune
