// float16 loops for processors that convert in hardware: a `Block` loads `kLanes` float16 values as a vector of float32
// and stores them back rounded to nearest even. Included like kernel_loops.h, after the target pragma.
#pragma once

#include "device/kernel_loops.h"

namespace ringtune::device {
namespace {

/// The vector is computed on by the operators of the compiler's vector extension, so Sum, Min ... serve here too.
template <typename Block, typename Op>
void reduce_blocks(std::byte* output, const std::byte* left, const std::byte* right, std::size_t count) {
  constexpr std::size_t kBytes = Block::kLanes * 2;
  const std::size_t whole = count / Block::kLanes * kBytes;
  for (std::size_t at = 0; at < whole; at += kBytes) {
    Block::store(output + at, Op::apply(Block::load(left + at), Block::load(right + at)));
  }
  const std::size_t rest = count * 2 - whole;
  if (rest == 0) return;
  std::byte a[kBytes]{};
  std::byte b[kBytes]{};
  __builtin_memcpy(a, left + whole, rest);
  __builtin_memcpy(b, right + whole, rest);
  Block::store(a, Op::apply(Block::load(a), Block::load(b)));
  __builtin_memcpy(output + whole, a, rest);
}

template <typename Block>
void scale_blocks(std::byte* output, const std::byte* input, std::size_t count, double factor) {
  constexpr std::size_t kBytes = Block::kLanes * 2;
  const float scale = static_cast<float>(factor);
  const std::size_t whole = count / Block::kLanes * kBytes;
  for (std::size_t at = 0; at < whole; at += kBytes) Block::store(output + at, Block::load(input + at) * scale);
  const std::size_t rest = count * 2 - whole;
  if (rest == 0) return;
  std::byte last[kBytes]{};
  __builtin_memcpy(last, input + whole, rest);
  Block::store(last, Block::load(last) * scale);
  __builtin_memcpy(output + whole, last, rest);
}

template <typename Block>
constexpr ReduceRow block_row() {
  return {nullptr,
          reduce_blocks<Block, Sum>,
          nullptr,
          reduce_blocks<Block, Min>,
          reduce_blocks<Block, Max>,
          reduce_blocks<Block, Product>};
}

}  // namespace
}  // namespace ringtune::device
