// Functions of a library that was opened by dlopen.
#pragma once

#include <dlfcn.h>

#include <string>

namespace ringtune {

/// Finds a function of the library; one that it lacks is null, and its name is added to `missing`.
template <typename Function>
void load(void* library, const char* name, Function& function, std::string& missing) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) missing += missing.empty() ? name : std::string(", ") + name;
}

}  // namespace ringtune
