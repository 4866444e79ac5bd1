#include "trace/span.h"

#include <array>
#include <cstddef>

namespace ringtune {

std::string_view name_of(Stage stage) {
  constexpr std::array<std::string_view, 20> kNames{
      "negotiate", "queue",         "copy_in",      "communicate",  "copy_out",       "wait",       "step",
      "range",     "cycle",         "other",        "kernel",       "await",          "piece",      "callback",
      "counter",   "wait_for_data", "device_queue", "copy_to_host", "copy_to_device", "device_wait"};
  const auto index = static_cast<std::size_t>(stage);
  return index < kNames.size() ? kNames[index] : "unknown";
}

std::string_view name_of(Piece piece) {
  constexpr std::array<std::string_view, 4> kNames{"PACK", "REDUCE", "SPREAD", "EXCHANGE"};
  const auto index = static_cast<std::size_t>(piece);
  return index < kNames.size() ? kNames[index] : "UNKNOWN";
}

std::string_view operation_name(std::uint8_t kind) noexcept {
  constexpr std::array<std::string_view, 14> kNames{"ALLREDUCE", "ALLGATHER", "BROADCAST", "BARRIER", "ALLTOALL",
                                                    "REDUCESCATTER", "JOIN", "ADD_PROCESS_SET", "REMOVE_PROCESS_SET",
                                                    // Of other libraries alone, recorded from outside.
                                                    "REDUCE", "GATHER", "SCATTER", "SEND", "RECV"};
  const std::size_t index = kind & 0x0f;
  return index < kNames.size() ? kNames[index] : std::string_view{};
}

std::string_view algorithm_name(std::uint8_t algorithm) noexcept {
  constexpr std::array<std::string_view, 7> kNames{
      "table", "ring", "flat", "recursive-doubling", "halving-doubling", "tree", "hierarchical"};
  if (algorithm == kSharedMemoryAlgorithm) return "shared-memory";
  if (algorithm == kNcclAlgorithm) return "nccl";
  if (algorithm == kDeviceRingAlgorithm) return "gpu-ring";
  return algorithm < kNames.size() ? kNames[algorithm] : std::string_view{};
}

}  // namespace ringtune
