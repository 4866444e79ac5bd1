// One line of a part or of a merged file, as ringtune writes them. Internal to merging/.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ringtune {

/// What a line may say. The order is that in which the recorder writes it, so that looking on from the last find finds.
enum class Field : std::uint8_t {
  kName,
  kCategory,
  kPhase,
  kScope,
  kProcess,
  kTrack,
  kMoment,
  kDuration,
  kIdentity,
  kLocalIdentity,
  kBinding,
  kArguments,
  kTensor,
  kList,
  kSubmitted,
  kCopied,
  kQueued,
  kBytes,
  kSpeed,
  kOperations,
  kAlgorithm,
  kDType,
  kWire,
  kProcessSet,
  kSchedule,
  kPeer,
  kDevice,
  kBatch,
  kStep,
  kKnobsVersion,
};
inline constexpr std::size_t kFieldCount = static_cast<std::size_t>(Field::kKnobsVersion) + 1;

[[nodiscard]] constexpr std::uint32_t bit(Field field) noexcept {
  return std::uint32_t{1} << static_cast<std::uint32_t>(field);
}
template <typename... Fields>
[[nodiscard]] constexpr std::uint32_t bits(Fields... fields) noexcept {
  return (bit(fields) | ...);
}

/// Borrows the line. `numbers` hold whole numbers, and times in nanoseconds; `texts` what stood in the line: strings
/// with their escapes and without quotes, numbers as they are, lists without brackets.
struct EventLine {
  std::uint32_t seen = 0;
  std::array<std::int64_t, kFieldCount> numbers;
  std::array<std::string_view, kFieldCount> texts;

  [[nodiscard]] bool has(Field field) const noexcept { return (seen & bit(field)) != 0; }
  [[nodiscard]] std::int64_t number(Field field, std::int64_t otherwise) const noexcept {
    return has(field) ? numbers[static_cast<std::size_t>(field)] : otherwise;
  }
  [[nodiscard]] std::string_view text(Field field) const noexcept {
    return has(field) ? texts[static_cast<std::size_t>(field)] : std::string_view{};
  }
};

/// Moments and durations beyond this are nonsense (`LARGEST_US` of ringtune/timeline/reading/columns.py).
inline constexpr std::int64_t kLargestNs = 2'200'000'000'000'000'000;

/// Reads a line without its comma. False when it says anything that is not listed above, says something twice, or in
/// another form: blanks, fractions of nanoseconds, exponents, fractions where whole numbers belong, numbers of more
/// than 18 digits. Strings are taken up to their end and not looked into.
[[nodiscard]] bool parse_event(std::string_view line, EventLine& out) noexcept;

/// Takes the next of comma-separated whole numbers off the list's front; false when there is none.
[[nodiscard]] bool take_number(std::string_view& list, std::int64_t& number) noexcept;

/// Takes a string with its quotes off the front; `text` is what stands between them.
[[nodiscard]] bool take_string(std::string_view& left, std::string_view& text) noexcept;

/// The key of a fact (Field::kAlgorithm to Field::kDevice) as it is written, for example `"step_schedule":`.
[[nodiscard]] std::string_view fact_key(Field field) noexcept;

}  // namespace ringtune
