#include "trace/json.h"

#include <cstdint>
#include <string>

#include "trace/sink.h"

namespace ringtune {
namespace {

std::uint8_t byte_at(std::string_view text, std::size_t index) noexcept {
  return static_cast<std::uint8_t>(text[index]);
}

bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }

bool is_hex(char c) noexcept { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

/// Recursive descent over the text; each method eats its production and says whether it was there.
class Checker {
 public:
  explicit Checker(std::string_view text) noexcept : left_(text) {}

  bool object_alone() noexcept {
    skip_space();
    if (left_.empty() || left_.front() != '{' || !value(0)) return false;
    skip_space();
    return left_.empty();
  }

 private:
  bool eat(char c) noexcept {
    if (left_.empty() || left_.front() != c) return false;
    left_.remove_prefix(1);
    return true;
  }
  bool eat(std::string_view word) noexcept {
    if (!left_.starts_with(word)) return false;
    left_.remove_prefix(word.size());
    return true;
  }
  void skip_space() noexcept {
    while (!left_.empty() && std::string_view(" \t\r\n").find(left_.front()) != std::string_view::npos) {
      left_.remove_prefix(1);
    }
  }

  bool value(int depth) noexcept {
    constexpr int kMaxDepth = 64;
    if (left_.empty() || depth > kMaxDepth) return false;
    switch (left_.front()) {
      case '{':
        return members('{', '}', depth);
      case '[':
        return members('[', ']', depth);
      case '"':
        return string();
      case 't':
        return eat("true");
      case 'f':
        return eat("false");
      case 'n':
        return eat("null");
      default:
        return number();
    }
  }

  bool members(char open, char close, int depth) noexcept {
    if (!eat(open)) return false;
    skip_space();
    if (eat(close)) return true;
    do {
      skip_space();
      if (open == '{') {
        if (!string()) return false;
        skip_space();
        if (!eat(':')) return false;
        skip_space();
      }
      if (!value(depth + 1)) return false;
      skip_space();
    } while (eat(','));
    return eat(close);
  }

  bool string() noexcept {
    if (!eat('"')) return false;
    while (!left_.empty() && left_.front() != '"') {
      if (byte_at(left_, 0) < 0x20) return false;
      if (eat('\\')) {
        if (!escape()) return false;
        continue;
      }
      const std::size_t length = utf8_length(left_);
      if (length == 0) return false;
      left_.remove_prefix(length);
    }
    return eat('"');
  }

  bool escape() noexcept {
    if (left_.empty()) return false;
    if (!eat('u')) {
      const bool known = std::string_view("\"\\/bfnrt").find(left_.front()) != std::string_view::npos;
      left_.remove_prefix(1);
      return known;
    }
    for (int i = 0; i < 4; ++i) {
      if (left_.empty() || !is_hex(left_.front())) return false;
      left_.remove_prefix(1);
    }
    return true;
  }

  bool digits() noexcept {
    const std::size_t before = left_.size();
    while (!left_.empty() && is_digit(left_.front())) left_.remove_prefix(1);
    return left_.size() < before;
  }

  bool number() noexcept {
    eat('-');
    if (!eat('0') && !digits()) return false;
    if (eat('.') && !digits()) return false;
    if (eat('e') || eat('E')) {
      if (!eat('+')) eat('-');
      return digits();
    }
    return true;
  }

  std::string_view left_;
};

void append_escape(std::string& out, std::uint8_t c) {
  constexpr char kHex[] = "0123456789abcdef";
  switch (c) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    default:
      out += "\\u00";
      out += kHex[c >> 4];
      out += kHex[c & 15];
  }
}

}  // namespace

std::size_t utf8_length(std::string_view text) noexcept {
  if (text.empty()) return 0;
  const std::uint8_t lead = byte_at(text, 0);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  // The second byte carries the bounds: no overlong forms, no surrogates, nothing above U+10FFFF.
  const std::uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const std::uint8_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  if (byte_at(text, 1) < low || byte_at(text, 1) > high) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if ((byte_at(text, i) & 0xc0) != 0x80) return 0;
  }
  return length;
}

bool is_json_object(std::string_view text) noexcept { return Checker(text).object_alone(); }

std::string json_quote(std::string_view text) {
  std::string out = "\"";
  out.reserve(text.size() + 2);
  while (!text.empty()) {
    const std::uint8_t c = byte_at(text, 0);
    std::size_t length = utf8_length(text);
    if (length == 0) {
      out += "\xEF\xBF\xBD";  // U+FFFD for each byte that belongs to no character
      length = 1;
    } else if (c < 0x20 || c == '"' || c == '\\' || c == 0x7f) {
      append_escape(out, c);
    } else {
      out.append(text.substr(0, length));
    }
    text.remove_prefix(length);
  }
  out += '"';
  return out;
}

}  // namespace ringtune
