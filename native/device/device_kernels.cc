#include "device/device_kernels.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>

#include "base/check.h"

namespace ringtune {
namespace {

constexpr unsigned kBlockThreads = 256;          // as core/gpu/cuda/ringtune.cu says
constexpr std::size_t kReducedElements = 4096;   // likewise
constexpr unsigned kMostBlocks = 1U << 20;       // more go round
constexpr std::size_t kLargestChunk = 16 << 10;  // bytes: 256 threads, four words of 16 bytes each
constexpr std::size_t kSmallestChunk = 4 << 10;  // bytes
constexpr std::size_t kChunksPerProcessor = 8;   // where the batch is small: blocks that it runs at once
constexpr std::size_t kChunkOfDots = 16 << 10;   // elements, the same on every device: so is the order of additions

/// As the kernels read it.
struct Chunk {
  CudaAddress from;
  CudaAddress to;
  std::uint32_t count;
  std::uint32_t tensor;
};
static_assert(sizeof(Chunk) == 24);

std::string kernel_of(ReduceOp op, DType dtype) {
  const auto named = [&](const char* name) { return "reduce_" + std::string(name_of(dtype)) + "_" + name; };
  switch (op) {
    case ReduceOp::kSum:
      return named("sum");
    case ReduceOp::kMin:
      return named("min");
    case ReduceOp::kMax:
      return named("max");
    default:
      RINGTUNE_CHECK(op == ReduceOp::kProduct, name_of(op), " is no reduction of two numbers");
      return named("product");
  }
}

/// Bytes as they are, without a look at what they stand for.
bool is_plain(const DeviceCast& cast) noexcept { return cast.from == cast.to && cast.factor == 1.0; }

std::string kernel_of(const DeviceCast& cast) {
  if (is_plain(cast)) return "copy_bytes";
  if (is_floating(cast.from) && is_floating(cast.to)) {
    return "cast_" + std::string(name_of(cast.from)) + "_" + std::string(name_of(cast.to));
  }
  RINGTUNE_CHECK(cast.from == cast.to, "no cast from ", name_of(cast.from), " to ", name_of(cast.to));
  RINGTUNE_CHECK(cast.from != DType::kBool, "a bool cannot be scaled by ", cast.factor);
  return "scale_" + std::string(name_of(cast.from));
}

std::vector<Chunk> cut(std::span<const DeviceMove> moves, const DeviceCast& cast, std::size_t chunk_elements) {
  const std::size_t unit = is_plain(cast) ? size_of(cast.from) : 1;  // counted by copy_bytes
  std::vector<Chunk> chunks;
  for (std::size_t tensor = 0; tensor < moves.size(); ++tensor) {
    const DeviceMove& move = moves[tensor];
    for (std::size_t at = 0; at < move.count; at += chunk_elements) {
      chunks.push_back({move.from + at * size_of(cast.from), move.to + at * size_of(cast.to),
                        static_cast<std::uint32_t>(std::min(chunk_elements, move.count - at) * unit),
                        static_cast<std::uint32_t>(tensor)});
    }
  }
  return chunks;
}

/// Where each tensor's chunks begin, and where the last one's end.
std::vector<std::uint32_t> firsts_of(std::span<const Chunk> chunks, std::size_t tensors) {
  std::vector<std::uint32_t> first(tensors + 1, 0);
  for (const Chunk& chunk : chunks) ++first[chunk.tensor + 1];
  for (std::size_t i = 1; i <= tensors; ++i) first[i] += first[i - 1];
  return first;
}

/// Of a kernel that reduces so many elements.
unsigned blocks_of(std::size_t count) {
  const std::size_t turns = (count + kReducedElements - 1) / kReducedElements;
  return static_cast<unsigned>(std::min<std::size_t>(turns, kMostBlocks));
}

std::size_t processors_of(const CudaDevice& device) {
  int number = 0;
  int count = 0;
  device.check(device.api().device_get(&number, device.ordinal()), "cuDeviceGet");
  device.check(device.api().device_attribute(&count, kCudaMultiprocessors, number), "cuDeviceGetAttribute");
  return static_cast<std::size_t>(std::max(count, 1));
}

}  // namespace

DeviceKernels::DeviceKernels(const CudaDevice& device, std::span<const std::byte> cubin)
    : device_(device), module_(device, cubin), pinned_(device), processors_(processors_of(device)) {}

void DeviceKernels::move(BatchTable& table, std::span<const DeviceMove> moves, const DeviceCast& cast,
                         CudaStreamHandle stream) {
  const std::string kernel = kernel_of(cast);
  if (table.of_dots_ || cast != table.cast_ || !std::ranges::equal(moves, table.moves_)) {
    const std::size_t wider = std::max(size_of(cast.from), size_of(cast.to));
    std::size_t bytes = 0;
    for (const DeviceMove& each : moves) bytes += each.count * wider;
    const std::size_t even = std::bit_ceil(bytes / (processors_ * kChunksPerProcessor) + 1);
    table.of_dots_ = false;
    table.cast_ = cast;
    fill(table, moves, std::clamp(even, kSmallestChunk, kLargestChunk) / wider, stream);
  }
  if (table.chunks_ == 0) return;
  const LaunchShape shape{std::min(table.chunks_, kMostBlocks), kBlockThreads};
  if (is_plain(cast)) return module_.launch(kernel, shape, stream, table.memory_.address(), table.chunks_);
  module_.launch(kernel, shape, stream, table.memory_.address(), table.chunks_, cast.factor);
}

/// The chunks, and behind them where those of each tensor begin.
void DeviceKernels::fill(BatchTable& table, std::span<const DeviceMove> moves, std::size_t chunk_elements,
                         CudaStreamHandle stream) {
  table.moves_.clear();  // so that an error leaves a table that is made anew
  const std::vector<Chunk> chunks = cut(moves, table.cast_, chunk_elements);
  const std::vector<std::uint32_t> firsts = firsts_of(chunks, moves.size());
  const std::size_t chunk_bytes = chunks.size() * sizeof(Chunk);
  const std::size_t bytes = chunk_bytes + firsts.size() * sizeof(std::uint32_t);
  table.chunks_ = static_cast<unsigned>(chunks.size());
  if (!moves.empty()) {
    const CudaAddress memory = table.memory_.reserve(bytes);
    PinnedBlock& block = pinned_.take_idle(bytes);
    std::byte* const end = std::ranges::copy(std::as_bytes(std::span(chunks)), block.data).out;  // none: all are empty
    std::ranges::copy(std::as_bytes(std::span(firsts)), end);
    const int code = device_.api().copy_to_device(memory, block.data, bytes, stream);
    if (code == kCudaSuccess) block.last_use.record(stream);
    pinned_.give_back(block);
    device_.check(code, "cuMemcpyHtoDAsync");
  }
  table.moves_.assign(moves.begin(), moves.end());
}

void DeviceKernels::reduce(const Operands& what, DType dtype, ReduceOp op, CudaStreamHandle stream) {
  const std::string kernel = kernel_of(op, dtype);
  if (what.count == 0) return;
  module_.launch(kernel, {blocks_of(what.count), kBlockThreads}, stream, what);
}

void DeviceKernels::dot_products(BatchTable& table, std::span<const DeviceMove> pairs, DType dtype,
                                 CudaAddress products, CudaStreamHandle stream) {
  RINGTUNE_CHECK(is_floating(dtype), "Adasum of ", name_of(dtype));
  if (pairs.empty()) return;
  const DeviceCast cast{dtype, dtype, 0.0};  // counted in elements
  if (!table.of_dots_ || cast != table.cast_ || !std::ranges::equal(pairs, table.moves_)) {
    table.of_dots_ = true;
    table.cast_ = cast;
    fill(table, pairs, kChunkOfDots, stream);
  }
  const CudaAddress chunks = table.memory_.address();
  const CudaAddress parts = table.parts_.reserve(table.chunks_ * kProductsBytes);
  if (table.chunks_ != 0) {
    module_.launch("dots_" + std::string(name_of(dtype)), {table.chunks_, kBlockThreads}, stream, chunks, parts);
  }
  module_.launch("dots_total", {static_cast<unsigned>(pairs.size()), kBlockThreads}, stream, parts,
                 chunks + table.chunks_ * sizeof(Chunk), products);
}

void DeviceKernels::combine(const Operands& what, DType dtype, CudaAddress products, unsigned parts,
                            CudaStreamHandle stream) {
  RINGTUNE_CHECK(is_floating(dtype), "Adasum of ", name_of(dtype));
  if (what.count == 0) return;
  module_.launch("adasum_" + std::string(name_of(dtype)), {blocks_of(what.count), kBlockThreads}, stream, what,
                 products, parts);
}

}  // namespace ringtune
