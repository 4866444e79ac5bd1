#include "merging/event_line.h"

#include <algorithm>
#include <cstring>
#include <span>

namespace ringtune {
namespace {

enum class Kind : std::uint8_t { kText, kWhole, kTime, kList, kArguments, kLocal };

struct Member {
  std::string_view key;  // as it stands in the line
  Field field;
  Kind kind;
};

constexpr std::array kMembers{
    Member{"\"name\":", Field::kName, Kind::kText},    Member{"\"cat\":", Field::kCategory, Kind::kText},
    Member{"\"ph\":", Field::kPhase, Kind::kText},     Member{"\"s\":", Field::kScope, Kind::kText},
    Member{"\"id\":", Field::kIdentity, Kind::kWhole}, Member{"\"pid\":", Field::kProcess, Kind::kWhole},
    Member{"\"tid\":", Field::kTrack, Kind::kWhole},   Member{"\"ts\":", Field::kMoment, Kind::kTime},
    Member{"\"dur\":", Field::kDuration, Kind::kTime}, Member{"\"id2\":", Field::kLocalIdentity, Kind::kLocal},
    Member{"\"bp\":", Field::kBinding, Kind::kText},   Member{"\"args\":", Field::kArguments, Kind::kArguments},
};

constexpr std::array kArguments{
    Member{"\"tensor\":", Field::kTensor, Kind::kText},
    Member{"\"tensors\":", Field::kList, Kind::kWhole},
    Member{"\"submitted\":", Field::kSubmitted, Kind::kList},
    Member{"\"copied\":", Field::kCopied, Kind::kList},
    Member{"\"queued_ns\":", Field::kQueued, Kind::kWhole},
    Member{"\"bytes\":", Field::kBytes, Kind::kWhole},
    Member{"\"bytes_per_s\":", Field::kSpeed, Kind::kWhole},
    Member{"\"operations\":", Field::kOperations, Kind::kWhole},
    Member{"\"algorithm\":", Field::kAlgorithm, Kind::kText},
    Member{"\"dtype\":", Field::kDType, Kind::kText},
    Member{"\"wire\":", Field::kWire, Kind::kText},
    Member{"\"process_set\":", Field::kProcessSet, Kind::kWhole},
    Member{"\"step_schedule\":", Field::kSchedule, Kind::kWhole},
    Member{"\"peer\":", Field::kPeer, Kind::kWhole},
    Member{"\"device\":", Field::kDevice, Kind::kWhole},
    Member{"\"batch\":", Field::kBatch, Kind::kWhole},
    Member{"\"step\":", Field::kStep, Kind::kWhole},
    Member{"\"knobs_version\":", Field::kKnobsVersion, Kind::kWhole},
    // Files of earlier versions have these keys. They stand last because `fact_key` returns the first key of a field.
    Member{"\"plan\":", Field::kSchedule, Kind::kWhole},
    Member{"\"epoch\":", Field::kKnobsVersion, Kind::kWhole},
};

constexpr bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }

bool eat(std::string_view& left, char c) noexcept {
  if (left.empty() || left.front() != c) return false;
  left.remove_prefix(1);
  return true;
}

template <typename Word>
bool same_word(const char* a, const char* b) noexcept {
  Word first;
  Word second;
  std::memcpy(&first, a, sizeof(Word));
  std::memcpy(&second, b, sizeof(Word));
  return first == second;
}

/// For words of 4 to 16 bytes, as keys are: two compares, which may overlap, instead of a call.
bool eat(std::string_view& left, std::string_view word) noexcept {
  const std::size_t size = word.size();
  if (left.size() < size) return false;
  const char* const a = left.data();
  const char* const b = word.data();
  const bool same = size < 8 ? same_word<std::uint32_t>(a, b) && same_word<std::uint32_t>(a + size - 4, b + size - 4)
                             : same_word<std::uint64_t>(a, b) && same_word<std::uint64_t>(a + size - 8, b + size - 8);
  if (same) left.remove_prefix(size);
  return same;
}

constexpr bool fits_eat(std::string_view word) noexcept { return word.size() >= 4 && word.size() <= 16; }
static_assert(std::ranges::all_of(kMembers, fits_eat, &Member::key));
static_assert(std::ranges::all_of(kArguments, fits_eat, &Member::key));

/// Digits as JSON wants them: at least one, no zero in front, and no more than `most`.
bool take_digits(std::string_view& left, std::size_t most, std::int64_t& value) noexcept {
  std::size_t count = 0;
  std::int64_t sum = 0;
  while (count < left.size() && is_digit(left[count])) {
    if (count == most) return false;
    sum = sum * 10 + (left[count] - '0');
    ++count;
  }
  if (count == 0 || (count > 1 && left.front() == '0')) return false;
  left.remove_prefix(count);
  value = sum;
  return true;
}

bool take_whole(std::string_view& left, std::int64_t& value) noexcept {
  constexpr std::size_t kMostDigits = 18;
  const bool negative = eat(left, '-');
  if (!take_digits(left, kMostDigits, value)) return false;
  if (negative) value = -value;
  return left.empty() || (left.front() != '.' && left.front() != 'e' && left.front() != 'E');
}

/// Microseconds with up to three decimals.
bool take_time(std::string_view& left, std::int64_t& ns) noexcept {
  constexpr std::size_t kMostDigits = 16;
  const bool negative = eat(left, '-');
  if (!take_digits(left, kMostDigits, ns) || ns > kLargestNs / 1000) return false;
  ns *= 1000;
  if (eat(left, '.')) {
    std::int64_t unit = 100;
    if (left.empty() || !is_digit(left.front())) return false;
    for (; !left.empty() && is_digit(left.front()); unit /= 10) {
      if (unit == 0) return false;
      ns += (left.front() - '0') * unit;
      left.remove_prefix(1);
    }
  }
  if (negative) ns = -ns;
  return left.empty() || (left.front() != 'e' && left.front() != 'E');
}

bool take_list(std::string_view& left, std::string_view& inside) noexcept {
  if (!eat(left, '[')) return false;
  const std::size_t end = left.find(']');
  if (end == std::string_view::npos) return false;
  inside = left.substr(0, end);
  left.remove_prefix(end + 1);
  return true;
}

bool take_members(std::string_view& left, std::span<const Member> known, EventLine& out) noexcept;

bool take_value(std::string_view& left, const Member& member, EventLine& out) noexcept {
  const auto at = static_cast<std::size_t>(member.field);
  const std::string_view before = left;
  switch (member.kind) {
    case Kind::kText:
      return take_string(left, out.texts[at]);
    case Kind::kWhole:
      if (!take_whole(left, out.numbers[at])) return false;
      out.texts[at] = before.substr(0, before.size() - left.size());
      return true;
    case Kind::kTime:
      return take_time(left, out.numbers[at]);
    case Kind::kList:
      return take_list(left, out.texts[at]);
    case Kind::kArguments:
      return take_members(left, kArguments, out);
    case Kind::kLocal:
      return eat(left, "{\"local\":") && take_whole(left, out.numbers[at]) && eat(left, '}');
  }
  return false;
}

bool take_members(std::string_view& left, std::span<const Member> known, EventLine& out) noexcept {
  if (!eat(left, '{')) return false;
  if (eat(left, '}')) return true;
  std::size_t next = 0;
  do {
    std::size_t tries = 0;
    for (; !eat(left, known[next].key); next = next + 1 == known.size() ? 0 : next + 1) {
      if (++tries == known.size()) return false;
    }
    const Member& member = known[next];
    if (out.has(member.field) || !take_value(left, member, out)) return false;
    out.seen |= bit(member.field);
    next = next + 1 == known.size() ? 0 : next + 1;
  } while (eat(left, ','));
  return eat(left, '}');
}

}  // namespace

bool parse_event(std::string_view line, EventLine& out) noexcept {
  out.seen = 0;
  return take_members(line, kMembers, out) && line.empty();
}

bool take_number(std::string_view& list, std::int64_t& number) noexcept {
  if (!take_whole(list, number)) return false;
  return list.empty() || (eat(list, ',') && !list.empty());
}

bool take_string(std::string_view& left, std::string_view& text) noexcept {
  if (!eat(left, '"')) return false;
  for (std::size_t from = 0;;) {
    const std::size_t quote = left.find('"', from);
    if (quote == std::string_view::npos) return false;
    std::size_t escapes = 0;
    while (escapes < quote && left[quote - escapes - 1] == '\\') ++escapes;
    if (escapes % 2 == 0) {
      text = left.substr(0, quote);
      left.remove_prefix(quote + 1);
      return true;
    }
    from = quote + 1;
  }
}

std::string_view fact_key(Field field) noexcept {
  for (const Member& member : kArguments) {
    if (member.field == field) return member.key;
  }
  return {};
}

}  // namespace ringtune
