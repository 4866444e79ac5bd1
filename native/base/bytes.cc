#include "base/bytes.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "base/error.h"

namespace ringtune {
namespace {

// The wire is little-endian; all supported processors are too, so a memcpy is the encoding.
static_assert(std::endian::native == std::endian::little, "the wire format needs byte swaps on this processor");

template <typename T>
void append(Bytes& bytes, T value) {
  const std::size_t at = bytes.size();
  bytes.resize(at + sizeof(T));
  std::memcpy(bytes.data() + at, &value, sizeof(T));
}

void append_raw(Bytes& bytes, const void* data, std::size_t count) {
  RINGTUNE_CHECK_LE(count, std::size_t{std::numeric_limits<std::uint32_t>::max()}, "a blob has a u32 length");
  append(bytes, static_cast<std::uint32_t>(count));
  if (count == 0) return;  // data may be null
  const std::size_t at = bytes.size();
  bytes.resize(at + count);
  std::memcpy(bytes.data() + at, data, count);
}

template <typename T>
T load(ByteView view) noexcept {
  T value;
  std::memcpy(&value, view.data(), sizeof(T));
  return value;
}

}  // namespace

void ByteWriter::u8(std::uint8_t value) { append(bytes_, value); }
void ByteWriter::u32(std::uint32_t value) { append(bytes_, value); }
void ByteWriter::i32(std::int32_t value) { append(bytes_, value); }
void ByteWriter::u64(std::uint64_t value) { append(bytes_, value); }
void ByteWriter::i64(std::int64_t value) { append(bytes_, value); }
void ByteWriter::f64(double value) { append(bytes_, value); }
void ByteWriter::string(std::string_view value) { append_raw(bytes_, value.data(), value.size()); }
void ByteWriter::blob(ByteView value) { append_raw(bytes_, value.data(), value.size()); }
void ByteWriter::raw(ByteView value) { bytes_.insert(bytes_.end(), value.begin(), value.end()); }

ByteView ByteReader::take(std::size_t count) {
  if (count > view_.size()) {
    throw Protocol("message from a peer is cut short: needs " + std::to_string(count) + " more bytes, has " +
                   std::to_string(view_.size()) + "; do all ranks run the same version of ringtune?");
  }
  const ByteView taken = view_.first(count);
  view_ = view_.subspan(count);
  return taken;
}

std::uint8_t ByteReader::u8() { return load<std::uint8_t>(take(sizeof(std::uint8_t))); }
std::uint32_t ByteReader::u32() { return load<std::uint32_t>(take(sizeof(std::uint32_t))); }
std::int32_t ByteReader::i32() { return load<std::int32_t>(take(sizeof(std::int32_t))); }
std::uint64_t ByteReader::u64() { return load<std::uint64_t>(take(sizeof(std::uint64_t))); }
std::int64_t ByteReader::i64() { return load<std::int64_t>(take(sizeof(std::int64_t))); }
double ByteReader::f64() { return load<double>(take(sizeof(double))); }

std::string ByteReader::string() {
  const ByteView view = blob();
  return std::string(reinterpret_cast<const char*>(view.data()), view.size());
}

ByteView ByteReader::blob() { return take(u32()); }
void ByteReader::raw(std::span<std::byte> into) { std::ranges::copy(take(into.size()), into.begin()); }

void ByteReader::expect_end() const {
  if (view_.empty()) return;
  throw Protocol("message from a peer has " + std::to_string(view_.size()) +
                 " bytes too many; do all ranks run the same version of ringtune?");
}

}  // namespace ringtune
