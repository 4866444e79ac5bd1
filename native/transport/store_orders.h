// What other threads ask of the thread that serves a store.
#pragma once

#include <functional>
#include <mutex>
#include <vector>

#include "transport/store_waiting.h"
#include "transport/thread.h"

namespace ringtune {

/// Given by any thread; the server's looks when the signal is raised.
struct Orders {
  StopSignal signal;
  std::mutex mutex;  // guards what follows
  bool stop = false;
  std::vector<Refusal> refusals;  // that the server has not seen yet

  void give(const std::function<void()>& change) {
    {
      const std::lock_guard lock(mutex);
      change();
    }
    signal.raise();
  }
};

}  // namespace ringtune
