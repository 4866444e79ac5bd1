#include "fusion/knobs.h"

#include <string_view>
#include <type_traits>

#include "base/error.h"
#include "collective/algorithm.h"

namespace ringtune {
namespace {

constexpr bool algorithms_are_in_range() {
  bool all = false;
  const Knobs knobs;
  each_knob(knobs, [&](std::string_view name, const auto&, std::int64_t, std::int64_t high) {
    if (name == "algorithm") all = high == kAlgorithmCount - 1;
  });
  return all;
}
static_assert(algorithms_are_in_range());

/// What is wrong with a value; empty if nothing is.
std::string range_error(std::string_view name, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return {};
  const bool bounded = high != std::numeric_limits<std::int64_t>::max();
  return std::string(name) + " must be " +
         (bounded ? std::to_string(low) + " to " + std::to_string(high) : "at least " + std::to_string(low));
}

}  // namespace

void set_knob(Knobs& knobs, const std::string& name, std::int64_t value) {
  bool found = false;
  std::string names;
  each_knob(knobs, [&](std::string_view own, auto& knob, std::int64_t low, std::int64_t high) {
    names.append(names.empty() ? "" : ", ").append(own);
    if (own != name) return;
    if (const auto error = range_error(own, value, low, high); !error.empty()) throw InvalidArgument(error);
    knob = static_cast<std::remove_reference_t<decltype(knob)>>(value);
    found = true;
  });
  if (!found) throw InvalidArgument("unknown knob '" + name + "', expected one of " + names);
}

void check_knobs(const Knobs& knobs) {
  each_knob(knobs, [](std::string_view name, const auto& knob, std::int64_t low, std::int64_t high) {
    const auto error = range_error(name, static_cast<std::int64_t>(knob), low, high);
    if (!error.empty()) throw InvalidArgument(error);
  });
}

void write_knobs(ByteWriter& out, const Knobs& knobs) {
  each_knob(knobs, [&](std::string_view, const auto& knob, std::int64_t, std::int64_t) {
    out.i64(static_cast<std::int64_t>(knob));
  });
}

Knobs read_knobs(ByteReader& in) {
  Knobs knobs;
  each_knob(knobs, [&](std::string_view name, auto& knob, std::int64_t low, std::int64_t high) {
    const std::int64_t value = in.i64();
    if (const auto error = range_error(name, value, low, high); !error.empty()) throw Protocol("of a peer, " + error);
    knob = static_cast<std::remove_reference_t<decltype(knob)>>(value);
  });
  return knobs;
}

std::string json_members(const Knobs& knobs) {
  std::string text;
  each_knob(knobs, [&](std::string_view name, const auto& knob, std::int64_t, std::int64_t) {
    text.append(text.empty() ? "\"" : ",\"").append(name).append("\":").append(std::to_string(knob));
  });
  return text;
}

}  // namespace ringtune
