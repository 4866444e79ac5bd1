// Gradients that a rank may not have, or have as a sparse tensor, in a simulated job.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "control/simulation.h"

namespace ringtune::testing_support {

/// What a rank submits that has this of a gradient: without a dense one it is empty.
inline Request gradient(Contribution contribution, const std::string& name = "g",
                        std::vector<std::int64_t> shape = {4}) {
  Request request =
      allreduce(name, contribution == Contribution::kDense ? std::move(shape) : std::vector<std::int64_t>{0});
  request.contribution = contribution;
  return request;
}

inline Request member(Request request, std::uint32_t size) {
  request.group = "group";
  request.group_size = size;
  return request;
}

/// What becomes of tensors: the kind of failure, none of those that ran.
using Outcomes = std::map<std::string, std::optional<FailureKind>>;
inline Outcomes outcomes(const std::vector<Action>& actions) {
  Outcomes found;
  for (const Action& action : actions) {
    if (const auto* failed = std::get_if<FailAction>(&action)) {
      EXPECT_TRUE(found.emplace(failed->name, failed->kind).second) << failed->name << " ended twice";
    } else if (const auto* batch = std::get_if<ExecuteAction>(&action)) {
      for (const std::string& name : batch->names) {
        EXPECT_TRUE(found.emplace(name, std::nullopt).second) << name << " ended twice";
      }
    }
  }
  return found;
}

}  // namespace ringtune::testing_support
