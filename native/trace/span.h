// What is recorded: a span of 48 bytes. The stages are the vocabulary of the timeline (timeline/README.md lists them).
#pragma once

#include <array>
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
  // 9 and 10 belong to traces of other tools.
  kAwait = 11,     // ready for a batch or for its data, and nothing to do until rank `peer` comes
  kPiece = 12,     // at full detail: one piece of a batch; its kind is a Piece
  kCallback = 13,  // a batch is done -> the threads that wait for its operations are woken
  kCounter = 14,   // a Count at one moment: of bytes and `batch_id` operations, or of bytes a second
  // By the clock of the GPU `peer`, brought to the host's:
  kWaitForData = 15,   // submitted -> the GPU has made the tensor what is to be reduced
  kDeviceQueue = 16,   // the tensor is there -> its copy to the host begins, or its batch from GPU to GPU
  kCopyToHost = 17,    // a tensor, or a part of it, into pinned memory
  kCopyToDevice = 18,  // and its result back
  kDeviceWait = 19,    // a caller's stream waited for a result: exposed communication
  // Only within rings, see trace/batch_slots.h.
  kCopiesIn = 0xfc,
  kCopiesOut = 0xfd,
  kBatch = 0xfe,
  kWords = 0xff,
};
inline constexpr std::array kStages{Stage::kNegotiate,    Stage::kQueue,       Stage::kCopyIn,      Stage::kCommunicate,
                                    Stage::kCopyOut,      Stage::kWait,        Stage::kStep,        Stage::kRange,
                                    Stage::kCycle,        Stage::kAwait,       Stage::kPiece,       Stage::kCallback,
                                    Stage::kCounter,      Stage::kWaitForData, Stage::kDeviceQueue, Stage::kCopyToHost,
                                    Stage::kCopyToDevice, Stage::kDeviceWait};
inline constexpr int kStageCount = static_cast<int>(kStages.size());
[[nodiscard]] std::string_view name_of(Stage stage);  // lower case, underscores: "copy_in"
/// Whether a span of the stage that has a `peer` means a GPU by it: always, or of a batch from GPU to GPU.
[[nodiscard]] constexpr bool is_of_device(Stage stage) noexcept {
  return (stage >= Stage::kWaitForData && stage <= Stage::kDeviceWait) || stage == Stage::kCopyIn ||
         stage == Stage::kCommunicate || stage == Stage::kCopyOut;
}

/// What a span of stage kPiece is about.
enum class Piece : std::uint8_t {
  kPack = 0,      // own data into a slot of shared memory
  kReduce = 1,    // a piece out of all slots
  kSpread = 2,    // what the others have reduced, into the outputs
  kExchange = 3,  // one step of a schedule over links: sent and received
};
[[nodiscard]] std::string_view name_of(Piece piece);  // upper case

/// What a span of stage kCounter counts.
enum class Count : std::uint8_t { kInFlight = 0, kBusBandwidth = 1 };

/// A recorded interval on the monotonic clock. Instants have begin == end.
struct Span {
  std::int64_t begin_ns;
  std::int64_t end_ns;
  std::uint64_t bytes;
  std::uint32_t name_id;   // Tracer::intern
  std::uint32_t batch_id;  // fused batch; 0 = none
  std::uint32_t step;
  std::uint16_t knobs_version;  // version of the knobs
  Stage stage;
  std::uint8_t kind;  // span_kind() of the operation, 255 = none
  std::uint16_t process_set = 0;
  std::uint8_t dtype = kNoDType;    // wire value
  std::uint8_t schedule : 1 = 0;    // 1: a batch of a schedule, agreed on without a message
  std::uint8_t wire : 7 = kNoWire;  // wire value of the dtype that travelled, where it was cast
  std::int32_t peer = -1;           // rank that was waited for, -1 = none; of a device's stages: its number
  static constexpr std::uint8_t kNoDType = 255;
  static constexpr std::uint8_t kNoWire = 127;
};
static_assert(sizeof(Span) == 48);

/// CollectiveKind (collective/kind.h) and Algorithm (collective/algorithm.h; 0 = unknown) in one byte of a span.
[[nodiscard]] constexpr std::uint8_t span_kind(std::uint8_t collective, std::uint8_t algorithm) noexcept {
  return static_cast<std::uint8_t>((collective & 0x0f) | (algorithm << 4));
}

/// "ALLREDUCE" for the CollectiveKind in a span's kind; empty when there is none of that number. This table and the
/// next live here because the timeline needs them below collective/.
[[nodiscard]] std::string_view operation_name(std::uint8_t kind) noexcept;

/// These stand for no Algorithm of collective/: the reduction through shared memory, NCCL, the ring between GPUs.
inline constexpr std::uint8_t kSharedMemoryAlgorithm = 15;
inline constexpr std::uint8_t kNcclAlgorithm = 14;
inline constexpr std::uint8_t kDeviceRingAlgorithm = 13;

/// "ring" for the wire value of an Algorithm; empty when there is none of that number.
[[nodiscard]] std::string_view algorithm_name(std::uint8_t algorithm) noexcept;

}  // namespace ringtune
