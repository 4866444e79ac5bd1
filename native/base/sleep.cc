#include "base/sleep.h"

#include <utility>

namespace ringtune {
namespace {

thread_local constinit SleepObserver* t_observer = nullptr;

}  // namespace

void observe_sleep(SleepObserver* observer) noexcept { t_observer = observer; }

void about_to_sleep() noexcept {
  if (SleepObserver* const observer = std::exchange(t_observer, nullptr)) observer->before_sleep();
}

}  // namespace ringtune
