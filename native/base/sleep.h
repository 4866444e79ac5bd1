// Who wants to know that a thread goes to sleep.
#pragma once

namespace ringtune {

/// Told once, on the thread that is about to sleep, before it does. A caller that holds what others need (the
/// interpreter's lock) keeps it while a wait only spins, and lets it go here.
class SleepObserver {
 public:
  virtual void before_sleep() noexcept = 0;

 protected:
  ~SleepObserver() = default;
};

/// Sets the observer of this thread's next sleep; null = none. Borrowed. Any thread, for itself; does not block.
void observe_sleep(SleepObserver* observer) noexcept;

/// Every wait of the runtime calls this before it blocks or yields. May block as the observer does.
void about_to_sleep() noexcept;

}  // namespace ringtune
