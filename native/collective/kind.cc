#include "collective/kind.h"

#include "base/check.h"
#include "trace/span.h"

namespace ringtune {

std::string_view name_of(CollectiveKind kind) {
  const std::string_view name = operation_name(static_cast<std::uint8_t>(kind));
  RINGTUNE_CHECK(!name.empty(), "no collective of number ", static_cast<int>(kind));
  return name;
}

}  // namespace ringtune
