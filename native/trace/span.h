// What is recorded: a span of 40 bytes. The stages are the vocabulary of the timeline (timeline/README.md lists them).
#pragma once

#include <cstdint>
#include <string_view>

namespace ringtune {

enum class Stage : std::uint8_t {
  kNegotiate = 0,    // submit -> all ranks agreed (the Execute message was read)
  kQueue = 1,        // agreed -> its batch starts
  kCopyIn = 2,       // into the fusion buffer
  kCommunicate = 3,  // the collective itself, one span per batch
  kCopyOut = 4,      // out of the fusion buffer
  kWait = 5,         // a caller blocked in synchronize: exposed communication
  kStep = 6,         // end_step -> end_step
  kRange = 7,        // named by the user or by a framework hook
  kCycle = 8,        // instant: one cycle of the runtime
};
inline constexpr int kStageCount = 9;
[[nodiscard]] std::string_view name_of(Stage stage);  // lower case, underscores: "copy_in"

/// A recorded interval on the monotonic clock. Instants have begin == end.
struct Span {
  std::int64_t begin_ns;
  std::int64_t end_ns;
  std::uint64_t bytes;
  std::uint32_t name_id;   // Tracer::intern
  std::uint32_t batch_id;  // fused batch; 0 = none
  std::uint32_t step;
  std::uint16_t epoch;  // version of the knobs
  Stage stage;
  std::uint8_t kind;  // span_kind() of the operation, 255 = none
};
static_assert(sizeof(Span) == 40);

/// CollectiveKind (collective/kind.h) and Algorithm (collective/algorithm.h; 0 = not told) in one byte of a span.
[[nodiscard]] constexpr std::uint8_t span_kind(std::uint8_t collective, std::uint8_t algorithm) noexcept {
  return static_cast<std::uint8_t>((collective & 0x0f) | (algorithm << 4));
}

/// "ALLREDUCE" for the CollectiveKind in a span's kind; empty when there is none of that number. This table and the
/// next live here because the timeline needs them below collective/.
[[nodiscard]] std::string_view operation_name(std::uint8_t kind) noexcept;

/// "ring" for the wire value of an Algorithm; empty when there is none of that number.
[[nodiscard]] std::string_view algorithm_name(std::uint8_t algorithm) noexcept;

}  // namespace ringtune
