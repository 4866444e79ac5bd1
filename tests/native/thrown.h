// What an error says.
#pragma once

#include <functional>
#include <string>

namespace ringtune::testing_support {

/// The message of what `act` throws; a sentence where that is nothing. Other errors go on.
template <typename Thrown>
std::string message_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Thrown& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace ringtune::testing_support
