// What a call site of compiled code asks for each time it is reached: collectives of one kind, a name for each tensor.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "control/request.h"

namespace ringtune::frameworks {

/// Read from text once, filled in with shapes each time:
///
///     KIND OP ROOT PROCESS_SET WIRE ENDS_STEP PRESCALE POSTSCALE
///     name of the first tensor
///     ...
///
/// Numbers are those of the binding (core/operations.py).
struct CallPlan {
  CollectiveKind kind = CollectiveKind::kAllreduce;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  std::uint32_t process_set = 0;
  int wire = -1;           // dtype that floating tensors travel as; -1: their own
  bool ends_step = false;  // a step of the training ends when it is done
  double prescale = 1.0;
  double postscale = 1.0;
  std::vector<std::string> names;
};

/// Throws InvalidArgument for a text that is none.
[[nodiscard]] CallPlan parse_call_plan(std::string_view text);

/// The request for tensor `index`.
[[nodiscard]] Request request_for(const CallPlan& plan, std::size_t index, DType dtype,
                                  std::vector<std::int64_t> shape);

}  // namespace ringtune::frameworks
