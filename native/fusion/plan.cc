#include "fusion/plan.h"

#include <optional>
#include <tuple>

namespace ringtune {
namespace {

/// What must agree for two tensors to share a fusion buffer.
using FusionClass = std::tuple<DType, DType, ReduceOp, std::uint32_t, std::uint8_t, std::uint8_t>;

bool fusible(const ReadyTensor& tensor) noexcept { return fusible(tensor.kind, tensor.op); }

/// A tensor, or the members of one group that can share a buffer: planned as a whole.
struct Unit {
  std::vector<std::uint32_t> members;
  std::size_t bytes = 0;
  FusionClass fusion_class;
  bool can_fuse = false;
};

std::vector<Unit> gather_units(std::span<const ReadyTensor> ready) {
  std::vector<Unit> units;
  for (std::uint32_t i = 0; i < ready.size(); ++i) {
    const ReadyTensor& tensor = ready[i];
    const FusionClass fusion_class{tensor.dtype,       tensor.wire.value_or(tensor.dtype),
                                   wire_op(tensor.op), tensor.compartment,
                                   tensor.place,       tensor.data_path};
    Unit* unit = nullptr;
    if (fusible(tensor) && !tensor.group.empty()) {
      // Members of a group become ready together, so its unit is among the last ones.
      for (auto it = units.rbegin(); it != units.rend() && unit == nullptr; ++it) {
        if (ready[it->members.front()].group != tensor.group) break;
        if (it->can_fuse && it->fusion_class == fusion_class) unit = &*it;
      }
    }
    if (unit == nullptr) {
      units.push_back({{}, 0, fusion_class, fusible(tensor)});
      unit = &units.back();
    }
    unit->members.push_back(i);
    unit->bytes += fused_size(tensor.bytes);
  }
  return units;
}

/// A batch that may still take more.
struct OpenBatch {
  FusionClass fusion_class;
  std::size_t index;
  std::size_t bytes;
};

}  // namespace

std::vector<std::vector<std::uint32_t>> plan(std::span<const ReadyTensor> ready, std::size_t fusion_bytes) {
  std::vector<std::vector<std::uint32_t>> batches;
  std::vector<OpenBatch> open;  // one per class at most: looking ahead over tensors of other dtypes costs nothing
  for (Unit& unit : gather_units(ready)) {
    OpenBatch* target = nullptr;
    if (unit.can_fuse) {
      for (OpenBatch& batch : open) {
        if (batch.fusion_class == unit.fusion_class) target = &batch;
      }
    }
    if (target != nullptr && target->bytes + unit.bytes <= fusion_bytes) {
      auto& members = batches[target->index];
      members.insert(members.end(), unit.members.begin(), unit.members.end());
      target->bytes += unit.bytes;
      continue;
    }
    const OpenBatch fresh{unit.fusion_class, batches.size(), unit.bytes};
    batches.push_back(std::move(unit.members));
    if (!unit.can_fuse) continue;
    if (target != nullptr) {
      *target = fresh;
    } else {
      open.push_back(fresh);
    }
  }
  return batches;
}

}  // namespace ringtune
