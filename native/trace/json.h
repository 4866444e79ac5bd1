// What JSON text is made of. json_quote stands in sink.h.
#pragma once

#include <cstddef>
#include <string_view>

namespace ringtune {

/// Length of the valid UTF-8 sequence at the begin of `text` (1 to 4), 0 when it is none: overlong forms, surrogates
/// and values above U+10FFFF count as invalid.
[[nodiscard]] std::size_t utf8_length(std::string_view text) noexcept;

}  // namespace ringtune
