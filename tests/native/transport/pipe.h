// A pipe of the system with an owner.
#pragma once

#include <unistd.h>

#include <stdexcept>

#include "base/fd.h"

namespace ringtune::testing_support {

struct Pipe {
  Pipe() {
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("pipe");
    read.reset(ends[0]);
    write.reset(ends[1]);
  }
  Fd read;
  Fd write;
};

}  // namespace ringtune::testing_support
