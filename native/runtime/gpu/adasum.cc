#include "runtime/gpu/adasum.h"

#include <algorithm>
#include <array>
#include <vector>

#include "collective/adasum.h"
#include "fusion/plan.h"
#include "runtime/batch_path.h"

namespace ringtune {
namespace {

constexpr std::size_t kLargestGathered = 64 << 10;  // bytes of a tensor

/// Whether the tensor goes to all members as a whole. That holds too where some member would get no element.
bool is_gathered(const Operation& operation, int ranks) noexcept {
  return operation.prepared->bytes <= kLargestGathered || operation.prepared->count < static_cast<std::size_t>(ranks);
}

/// One tensor that is being reduced.
class Adasum {
 public:
  Adasum(const Operation& operation, const AdasumPlace& place, const AdasumCalls& calls)
      : place_(place),
        calls_(calls),
        dtype_(operation.request().dtype),
        item_(size_of(dtype_)),
        bytes_(operation.prepared->bytes) {}

  /// `to` is `from` or does not overlap it. Launches nothing where neither the move nor the factor changes a byte.
  void move(CudaAddress from, CudaAddress to, double factor) const {
    if (from == to && factor == 1.0) return;
    const ScaledMove move{{from, to, bytes_ / item_}, factor};
    place_.packer.move({&move, 1}, dtype_, dtype_, place_.stream);
  }

  /// Reduces in place, by halves.
  void by_halves(CudaAddress data) const {
    const std::vector<AdasumLevel> levels = adasum_levels(bytes_, item_, place_.rank, place_.ranks);
    const auto part = [&](const ChunkRange& range) { return DeviceRange{data + range.begin, range.size}; };
    const CudaAddress arrived = place_.scratch;
    const CudaAddress products = arrived + fused_size(std::max(levels.front().kept.size, levels.front().given.size));
    const auto products_of = [&](int member) {
      return products + static_cast<std::size_t>(member) * DeviceKernels::kProductsBytes;
    };
    for (const AdasumLevel& level : levels) {
      const DeviceRange own = part(level.kept);
      calls_.swap(level.peer, part(level.given), {arrived, own.bytes});
      const DeviceMove pair{level.lower ? own.begin : arrived, level.lower ? arrived : own.begin, own.bytes / item_};
      const CudaAddress mine = products_of(place_.rank);
      place_.packer.dot_products({&pair, 1}, dtype_, mine, place_.stream);
      calls_.gather({mine, DeviceKernels::kProductsBytes}, products);
      combine(own.begin, pair, products_of(level.first_holder), level.holders);
    }
    for (auto level = levels.rbegin(); level != levels.rend(); ++level) {
      calls_.swap(level->peer, part(level->kept), part(level->given));
    }
  }

  /// Reduces `data` as a whole; the result is at the begin of the scratch memory.
  void by_gathering(CudaAddress data) const {
    const auto ranks = static_cast<std::size_t>(place_.ranks);
    const CudaAddress products = place_.scratch + fused_size(ranks * bytes_);
    calls_.gather({data, bytes_}, place_.scratch);
    std::vector<DeviceMove> pairs;
    for (std::size_t distance = 1; distance < ranks; distance *= 2) {
      pairs.clear();
      for (std::size_t first = 0; first < ranks; first += 2 * distance) {
        const CudaAddress a = place_.scratch + first * bytes_;
        pairs.push_back({a, a + distance * bytes_, bytes_ / item_});
      }
      place_.packer.dot_products(pairs, dtype_, products, place_.stream);
      for (std::size_t i = 0; i < pairs.size(); ++i) {
        combine(pairs[i].from, pairs[i], products + i * DeviceKernels::kProductsBytes, 1);
      }
    }
  }

 private:
  void combine(CudaAddress out, const DeviceMove& pair, CudaAddress products, int parts) const {
    place_.packer.kernels().combine({out, pair.from, pair.to, pair.count}, dtype_, products,
                                    static_cast<unsigned>(parts), place_.stream);
  }

  const AdasumPlace& place_;
  const AdasumCalls& calls_;
  DType dtype_;
  std::size_t item_;
  std::size_t bytes_;
};

}  // namespace

std::size_t adasum_scratch_bytes(const Operation& operation, int ranks) {
  const std::size_t bytes = operation.prepared->bytes;
  const auto members = static_cast<std::size_t>(ranks);
  if (is_gathered(operation, ranks)) {
    return fused_size(members * bytes) + members / 2 * DeviceKernels::kProductsBytes;
  }
  const AdasumLevel first = adasum_levels(bytes, size_of(operation.request().dtype), 0, 2).front();
  return fused_size(std::max(first.kept.size, first.given.size)) + members * DeviceKernels::kProductsBytes;
}

void put_adasum(const Operation& operation, const AdasumPlace& place, const AdasumCalls& calls,
                const BatchTimes& times) {
  if (operation.prepared->count == 0) return times.piece(Stage::kCommunicate, place.stream).end();
  const Adasum adasum(operation, place, calls);
  const Request& request = operation.request();
  const CudaAddress input = address_of(operation.input);
  const CudaAddress output = address_of(operation.output);
  const auto timed = [&](Stage stage, const auto& act) {
    TimedCopy piece = times.piece(stage, place.stream);
    act();
    piece.end();
  };
  const bool whole = is_gathered(operation, place.ranks);
  const bool moves = !whole || request.prescale != 1.0;
  if (moves) timed(Stage::kCopyIn, [&] { adasum.move(input, output, request.prescale); });
  timed(Stage::kCommunicate, [&] { whole ? adasum.by_gathering(moves ? output : input) : adasum.by_halves(output); });
  timed(Stage::kCopyOut, [&] { adasum.move(whole ? place.scratch : output, output, request.postscale); });
}

}  // namespace ringtune
