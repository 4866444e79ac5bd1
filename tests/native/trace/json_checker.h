// Checks whole JSON texts (RFC 8259), strictly.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "trace/json.h"

namespace ringtune::testing_support {

inline bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }

inline bool is_hex(char c) noexcept { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

/// Recursive descent over the text; each method eats its production and says whether it was there.
class JsonChecker {
 public:
  explicit JsonChecker(std::string_view text) noexcept : left_(text) {}

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
      if (static_cast<std::uint8_t>(left_.front()) < 0x20) return false;
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

/// True when `text` is one JSON object and nothing else, nested at most 64 deep.
inline bool is_json_object(std::string_view text) noexcept { return JsonChecker(text).object_alone(); }

/// True when the text is one JSON array.
inline bool is_json_array(const std::string& text) { return is_json_object("{\"array\":" + text + "}"); }

}  // namespace ringtune::testing_support
