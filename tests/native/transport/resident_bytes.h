// How much memory this process has in use.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <fstream>

namespace ringtune::testing_support {

inline std::size_t resident_bytes() {
  std::size_t all = 0;
  std::size_t resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace ringtune::testing_support
