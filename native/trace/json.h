// Checks of JSON text that others hand in. json_quote stands in sink.h.
#pragma once

#include <string_view>

namespace ringtune {

/// True when `text` is one JSON object (RFC 8259) and nothing else, nested at most 64 deep. Any thread; never throws.
[[nodiscard]] bool is_json_object(std::string_view text) noexcept;

/// Length of the valid UTF-8 sequence at the begin of `text` (1 to 4), 0 when it is none: overlong forms, surrogates
/// and values above U+10FFFF count as invalid.
[[nodiscard]] std::size_t utf8_length(std::string_view text) noexcept;

}  // namespace ringtune
