#include "frameworks/call_plan.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace ringtune::frameworks {
namespace {

TEST(CallPlan, ReadsWhatACallSiteAsksFor) {
  const CallPlan plan = parse_call_plan("0 1 0 3 5 1 0.5 1e-3\nallreduce.a b\nallreduce.c");
  EXPECT_EQ(plan.kind, CollectiveKind::kAllreduce);
  EXPECT_EQ(plan.op, ReduceOp::kSum);
  EXPECT_EQ(plan.process_set, 3U);
  EXPECT_TRUE(plan.ends_step);
  EXPECT_EQ(plan.names, (std::vector<std::string>{"allreduce.a b", "allreduce.c"}));
  const Request request = request_for(plan, 1, DType::kFloat32, {2, 3});
  EXPECT_EQ(request.name, "allreduce.c");
  EXPECT_EQ(request.shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(request.wire, DType::kFloat16);
  EXPECT_EQ(request.prescale, 0.5);
  EXPECT_EQ(request.postscale, 0.001);
  EXPECT_EQ(request_for(plan, 0, DType::kInt32, {}).wire, std::nullopt) << "only floating tensors are cast";
  EXPECT_EQ(request_for(plan, 0, DType::kFloat16, {}).wire, std::nullopt) << "it is short already";
}

TEST(CallPlan, WhatIsNotReducedHasNoFactors) {
  const CallPlan plan = parse_call_plan("2 0 1 0 -1 0 3.0 4.0\nbroadcast.x");
  const Request request = request_for(plan, 0, DType::kComplex64, {1});
  EXPECT_EQ(request.kind, CollectiveKind::kBroadcast);
  EXPECT_EQ(request.root, 1);
  EXPECT_EQ(request.prescale, 1.0);
}

TEST(CallPlan, RefusesWhatIsNone) {
  for (const char* text : {"", "\n", "0", "0 1 0 0 -1 0 1.0 1.0", "0 1 0 0 -1 0 1.0\nx", "9 1 0 0 -1 0 1.0 1.0\nx",
                           "0 1 0 0 99 0 1.0 1.0\nx", "0 1 0 -1 -1 0 1.0 1.0\nx", "0 7 0 0 -1 0 1.0 1.0\nx",
                           "a 1 0 0 -1 0 1.0 1.0\nx", "0 1 0 0 -1 0 1.0 1.0 7\nx"}) {
    EXPECT_THROW((void)parse_call_plan(text), InvalidArgument) << text;
  }
}

}  // namespace
}  // namespace ringtune::frameworks
