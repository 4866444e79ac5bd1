// Rounds of shared_exchange.h with random content, which every member checks byte by byte, to the guards around its
// output.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "collective/shared_exchange.h"
#include "numbers.h"

namespace ringtune::testing_support {

using Sizes = std::vector<std::size_t>;
using Table = std::vector<Sizes>;  // by who gives, then by who gets

inline std::size_t sum_of(const Sizes& sizes) { return std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}); }

inline Buffer random_bytes(std::size_t bytes, std::uint64_t seed) {
  Buffer buffer(bytes);
  std::mt19937_64 random(seed);
  for (std::size_t at = 0; at < bytes; at += sizeof(std::uint64_t)) {
    const std::uint64_t word = random();
    std::memcpy(buffer.data() + at, &word, std::min(sizeof word, bytes - at));
  }
  return buffer;
}

/// What a member gives to another one, or to all (0).
inline Buffer send_layout_of(std::uint64_t token, std::size_t from, std::size_t to, std::size_t bytes) {
  return random_bytes(bytes, token << 16 | from << 8 | to);
}

inline void append(Buffer& buffer, const Buffer& more) { buffer.insert(buffer.end(), more.begin(), more.end()); }

/// Memory without alignment; none at all for no bytes, as an empty tensor has.
class Output {
 public:
  explicit Output(const Buffer& before) : held_(before.size() + 2 * kGuard, kFill) {
    std::copy(before.begin(), before.end(), held_.begin() + std::ptrdiff_t{kGuard});
  }
  static Buffer blank(std::size_t bytes) { return Buffer(bytes, kFill); }

  [[nodiscard]] std::byte* data() noexcept { return held_.size() > 2 * kGuard ? held_.data() + kGuard : nullptr; }
  [[nodiscard]] bool holds(const Buffer& expected) const {
    if (held_.size() != expected.size() + 2 * kGuard) return false;
    if (!expected.empty() && std::memcmp(held_.data() + kGuard, expected.data(), expected.size()) != 0) return false;
    const auto is_fill = [](std::byte byte) { return byte == kFill; };
    return std::all_of(held_.begin(), held_.begin() + std::ptrdiff_t{kGuard}, is_fill) &&
           std::all_of(held_.end() - std::ptrdiff_t{kGuard}, held_.end(), is_fill);
  }

 private:
  static constexpr std::size_t kGuard = 61;
  static constexpr std::byte kFill{0xe7};
  Buffer held_;
};

struct Turn {
  std::uint64_t token;
  bool runs = true;  // nobody is against it
};

/// `blocks`: bytes of each member's. In place: the own one lies in the output already.
inline void expect_gathered(ShmGroup& shm_group, Turn turn, const Sizes& blocks, bool in_place = false) {
  const auto own = static_cast<std::size_t>(shm_group.position());
  const auto place = std::accumulate(blocks.begin(), blocks.begin() + shm_group.position(), std::ptrdiff_t{0});
  Buffer all;
  all.reserve(sum_of(blocks));
  for (std::size_t member = 0; member < blocks.size(); ++member) {
    append(all, send_layout_of(turn.token, member, 0, blocks[member]));
  }
  const auto begin = all.begin() + place;
  const Buffer input(begin, begin + static_cast<std::ptrdiff_t>(blocks[own]));  // ends where its memory ends
  Buffer before = Output::blank(all.size());
  if (in_place) std::copy(input.begin(), input.end(), before.begin() + place);
  Output output(before);
  SharedGather gather(shm_group, turn.token, blocks, in_place && !input.empty() ? output.data() + place : input.data());
  gather.deliver_to(output.data());
  ASSERT_EQ(await_agreement(gather), turn.runs);
  if (turn.runs) gather.finish();
  EXPECT_TRUE(output.holds(turn.runs ? all : before))
      << ::testing::PrintToString(blocks) << (in_place ? " in place" : "");
}

inline void expect_exchanged(ShmGroup& shm_group, Turn turn, const Table& table) {
  const auto own = static_cast<std::size_t>(shm_group.position());
  Buffer input;
  Buffer all;
  Sizes received;
  for (std::size_t member = 0; member < table.size(); ++member) {
    append(input, send_layout_of(turn.token, own, member, table[own][member]));
    append(all, send_layout_of(turn.token, member, own, table[member][own]));
    received.push_back(table[member][own]);
  }
  const Buffer exact(input);  // ends where its memory ends
  const Buffer before = Output::blank(all.size());
  Output output(before);
  SharedAlltoall exchange(shm_group, turn.token, table[own], exact.data());
  ASSERT_EQ(await_agreement(exchange), turn.runs);
  exchange.deliver_to(output.data());
  if (turn.runs) {
    EXPECT_EQ(exchange.received(), received);
    exchange.finish();
  }
  EXPECT_TRUE(output.holds(turn.runs ? all : before)) << ::testing::PrintToString(table);
}

struct Reduction {
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
};

/// `parts`: elements of each member's. Factors that leave small integers. In place: the output is the own part of the
/// input.
inline void expect_scattered(ShmGroup& shm_group, Turn turn, const Sizes& parts, const Reduction& reduction,
                             bool in_place = false) {
  const auto& [dtype, op, prescale, postscale] = reduction;
  const std::size_t element = size_of(dtype);
  const auto own = static_cast<std::size_t>(shm_group.position());
  const std::size_t first = std::accumulate(parts.begin(), parts.begin() + shm_group.position(), std::size_t{0});
  Buffer reduced(parts[own] * element);
  for (std::size_t i = 0; i < parts[own]; ++i) {
    const double number = reduced_number(shm_group.size(), first + i, dtype, op) * prescale * postscale;
    put_number(reduced.data() + i * element, dtype, static_cast<int>(number));
  }
  const auto place = static_cast<std::ptrdiff_t>(first * element);
  const Buffer given = input_of(shm_group.position(), sum_of(parts), dtype, op);
  Buffer input(given);
  const Buffer before = Output::blank(reduced.size());
  Output output(before);
  SharedReducescatter scatter(shm_group, turn.token, {parts, dtype, op, prescale, postscale}, input.data());
  scatter.deliver_to(in_place ? input.data() + place : output.data());
  ASSERT_EQ(await_agreement(scatter), turn.runs);
  if (turn.runs) scatter.finish();
  EXPECT_TRUE(output.holds(turn.runs && !in_place ? reduced : before)) << ::testing::PrintToString(parts);
  Buffer left(given);
  if (turn.runs && in_place) std::copy(reduced.begin(), reduced.end(), left.begin() + place);
  EXPECT_TRUE(input == left) << ::testing::PrintToString(parts) << (in_place ? " in place" : "");
}

/// Rows as even as they can be: the first members get one more.
inline Sizes split(std::size_t rows, int members) {
  const auto count = static_cast<std::size_t>(members);
  Sizes parts(count, rows / count);
  for (std::size_t member = 0; member < rows % count; ++member) ++parts[member];
  return parts;
}

}  // namespace ringtune::testing_support
