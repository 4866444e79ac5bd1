#include "frameworks/tensorflow_api.h"

#include <dlfcn.h>

namespace ringtune::frameworks::tf {
namespace {

Api loaded;

}  // namespace

const Api& api() noexcept { return loaded; }

std::string load_api() {
  // Python has loaded it for itself: it is found by its name, not by looking for a symbol everywhere.
  void* const library = ::dlopen("libtensorflow_framework.so.2", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return "libtensorflow_framework.so.2 is not loaded";
  std::string missing;
#define RINGTUNE_TENSORFLOW_FIND(NAME, RESULT, ARGUMENTS)                             \
  loaded.NAME = reinterpret_cast<RESULT(*) ARGUMENTS>(::dlsym(library, "TF_" #NAME)); \
  if (loaded.NAME == nullptr && missing.empty()) missing = "its library has no function TF_" #NAME;
  RINGTUNE_TENSORFLOW_FUNCTIONS(RINGTUNE_TENSORFLOW_FIND)
#undef RINGTUNE_TENSORFLOW_FIND
  return missing;
}

}  // namespace ringtune::frameworks::tf
