// What the coordinator decides about the job itself: process sets, and that all have joined.
#include "base/check.h"
#include "runtime/engine.h"
#include "runtime/gpu/data_paths.h"

namespace ringtune {

void Engine::apply(const SetAction& action) {
  if (action.added) {
    sets_->add(action.id, action.members.ranks());
  } else {
    drain();  // what was declined in the set goes over its links
    sets_->remove(action.id);
    if (options_.data_paths != nullptr) options_.data_paths->removed(action.id);
  }
  finish_decided(action.name, action.id);
}

/// Ends an operation that is a decision about the job.
void Engine::finish_decided(const std::string& name, std::int64_t number) {
  const OperationPtr operation = tickets_.in_flight(ProcessSets::kGlobal, name);
  RINGTUNE_CHECK(operation != nullptr, "'", name, "' was decided but is not in flight");
  operation->number = number;
  in_flight_bytes_ -= operation->prepared->bytes;
  if (tracer_.recording() && operation->request().kind == CollectiveKind::kJoin) {
    tracer_.event("JOIN", "join", now_ns(),
                  "{\"last_rank\":" + std::to_string(tracer_.generation().track(static_cast<int>(number))) + "}");
  }
  tickets_.finish({&operation, 1}, nullptr);
}

}  // namespace ringtune
