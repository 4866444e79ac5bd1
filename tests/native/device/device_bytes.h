// Memory of the fake device, as bytes.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <random>
#include <vector>

#include "base/dtype.h"
#include "device/elements.h"
#include "device/fake_gpu.h"

namespace ringtune::testing_support {

using Bytes = std::vector<std::byte>;

/// Elements of any dtype with any bits, NaN and subnormals too, but for bools.
inline Bytes random_elements(DType dtype, std::size_t count, unsigned seed) {
  std::mt19937 engine(seed);
  Bytes bytes(count * size_of(dtype));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(engine() & (dtype == DType::kBool ? 1U : 255U));
  return bytes;
}

/// Index of the first element that is not the same; NaN equals NaN. -1: none.
inline std::ptrdiff_t first_difference(DType dtype, const Bytes& a, const Bytes& b) {
  const std::size_t unit = size_of(dtype);
  for (std::size_t at = 0; at < a.size(); at += unit) {
    if (std::memcmp(a.data() + at, b.data() + at, unit) == 0) continue;
    const double x = elements::as_double(dtype, a.data() + at);
    const double y = elements::as_double(dtype, b.data() + at);
    if (!(is_floating(dtype) && std::isnan(x) && std::isnan(y))) return static_cast<std::ptrdiff_t>(at / unit);
  }
  return -1;
}

/// An allocation of the current context, `offset` bytes of which are in front of `content`.
class DeviceBytes {
 public:
  explicit DeviceBytes(const Bytes& content, std::size_t offset = 0) : size_(content.size()) {
    base_ = FakeGpu::allocate(offset + size_ + 1);
    address_ = base_ + offset;
    FakeGpu::put(address_, content.data(), size_);
  }
  ~DeviceBytes() { FakeGpu::free(base_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  [[nodiscard]] CudaAddress address() const noexcept { return address_; }
  /// As it is now, without a wait for anybody.
  [[nodiscard]] Bytes now() const {
    Bytes content(size_);
    FakeGpu::get(content.data(), address_, size_);
    return content;
  }
  /// When the stream is done.
  [[nodiscard]] Bytes after(const CudaStream& stream) const {
    FakeGpu::synchronize(stream.handle());
    return now();
  }

 private:
  std::size_t size_;
  CudaAddress base_ = 0;
  CudaAddress address_ = 0;
};

/// What the fake takes for a cubin.
inline constexpr std::array<std::byte, 64> kFakeCubin{std::byte{0x7f}, std::byte{'E'}, std::byte{'L'}, std::byte{'F'}};

}  // namespace ringtune::testing_support
