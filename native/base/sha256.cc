#include "base/sha256.h"

#include <algorithm>
#include <bit>
#include <span>

namespace ringtune {
namespace {

constexpr std::array<std::uint32_t, 64> kRound{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::uint32_t big_endian(const std::byte* bytes) noexcept {
  std::uint32_t word = 0;
  for (int i = 0; i < 4; ++i) word = word << 8 | std::to_integer<std::uint32_t>(bytes[i]);
  return word;
}

template <typename Word>
void put_big_endian(std::byte* bytes, Word word) noexcept {
  for (std::size_t i = sizeof(Word); i-- > 0; word >>= 8) bytes[i] = static_cast<std::byte>(word & 0xff);
}

}  // namespace

Sha256& Sha256::add(ByteView bytes) noexcept {
  while (!bytes.empty()) {
    const std::size_t at = bytes_ % block_.size();
    const std::size_t count = std::min(bytes.size(), block_.size() - at);
    std::copy_n(bytes.begin(), count, block_.begin() + static_cast<std::ptrdiff_t>(at));
    bytes_ += count;
    bytes = bytes.subspan(count);
    if (at + count == block_.size()) take_block(block_.data());
  }
  return *this;
}

Digest Sha256::finish() noexcept {
  std::array<std::byte, 8> bits;
  put_big_endian(bits.data(), bytes_ * 8);
  const std::array<std::byte, 64> padding{std::byte{0x80}};
  const std::size_t at = bytes_ % block_.size();
  add(std::span(padding).first((at < 56 ? 56 : 120) - at));
  add(bits);
  Digest digest;
  for (std::size_t i = 0; i < state_.size(); ++i) put_big_endian(digest.data() + 4 * i, state_[i]);
  return digest;
}

void Sha256::take_block(const std::byte* block) noexcept {
  std::array<std::uint32_t, 64> w;
  for (std::size_t i = 0; i < 16; ++i) w[i] = big_endian(block + 4 * i);
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const std::uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const std::uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
    const std::uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const std::uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + t2;
  }
  const std::array<std::uint32_t, 8> mixed{a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < state_.size(); ++i) state_[i] += mixed[i];
}

Digest hmac_sha256(ByteView key, ByteView message) noexcept {
  std::array<std::byte, 64> padded{};
  if (key.size() > padded.size()) {
    std::ranges::copy(Sha256().add(key).finish(), padded.begin());
  } else {
    std::ranges::copy(key, padded.begin());
  }
  const auto masked = [&](std::byte mask) {
    std::array<std::byte, 64> block = padded;
    for (std::byte& byte : block) byte ^= mask;
    return block;
  };
  const Digest inner = Sha256().add(masked(std::byte{0x36})).add(message).finish();
  return Sha256().add(masked(std::byte{0x5c})).add(inner).finish();
}

bool same_digest(ByteView a, ByteView b) noexcept {
  if (a.size() != b.size()) return false;
  std::byte difference{0};
  for (std::size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
  return difference == std::byte{0};
}

}  // namespace ringtune
