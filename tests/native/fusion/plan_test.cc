#include "fusion/plan.h"

#include <gtest/gtest.h>

namespace ringtune {
namespace {

using Batches = std::vector<std::vector<std::uint32_t>>;

ReadyTensor tensor(std::size_t bytes, DType dtype = DType::kFloat32, ReduceOp op = ReduceOp::kSum) {
  return {CollectiveKind::kAllreduce, dtype, op, bytes, ""};
}
ReadyTensor member(std::size_t bytes, const std::string& group, DType dtype = DType::kFloat32) {
  return {CollectiveKind::kAllreduce, dtype, ReduceOp::kSum, bytes, group};
}
ReadyTensor travelling(std::size_t bytes, DType wire, DType dtype = DType::kFloat32) {
  return {CollectiveKind::kAllreduce, dtype, ReduceOp::kSum, bytes, "", 0, wire};
}
ReadyTensor placed(std::size_t bytes, std::uint8_t place) {
  return {CollectiveKind::kAllreduce, DType::kFloat32, ReduceOp::kSum, bytes, "", 0, {}, place};
}
ReadyTensor other(CollectiveKind kind) { return {kind, DType::kFloat32, ReduceOp::kSum, 64, ""}; }

struct PlanCase {
  const char* name;
  std::vector<ReadyTensor> ready;
  std::size_t fusion_bytes;
  Batches expected;
};

void PrintTo(const PlanCase& c, std::ostream* out) { *out << c.name; }

class FusionPlan : public testing::TestWithParam<PlanCase> {};

TEST_P(FusionPlan, GivesTheBatches) { EXPECT_EQ(plan(GetParam().ready, GetParam().fusion_bytes), GetParam().expected); }

INSTANTIATE_TEST_SUITE_P(
    Table, FusionPlan,
    testing::Values(
        PlanCase{"nothing", {}, 1024, {}}, PlanCase{"all_fit", {tensor(64), tensor(128), tensor(64)}, 256, {{0, 1, 2}}},
        PlanCase{"one_byte_too_many", {tensor(64), tensor(129), tensor(64)}, 256, {{0, 1}, {2}}},
        PlanCase{"padding_counts", {tensor(1), tensor(1)}, 127, {{0}, {1}}},
        PlanCase{"zero_switches_fusion_off", {tensor(4), tensor(4)}, 0, {{0}, {1}}},
        PlanCase{"empty_tensors_fuse_even_then", {tensor(0), tensor(0)}, 0, {{0, 1}}},
        PlanCase{"larger_than_the_buffer_goes_alone", {tensor(64), tensor(4096), tensor(64)}, 256, {{0}, {1}, {2}}},
        PlanCase{"dtypes_do_not_mix_but_are_looked_ahead",
                 {tensor(64), tensor(64, DType::kFloat64), tensor(64), tensor(64, DType::kFloat64)},
                 256,
                 {{0, 2}, {1, 3}}},
        PlanCase{
            "average_is_sum_on_the_wire", {tensor(64, DType::kFloat32, ReduceOp::kAverage), tensor(64)}, 256, {{0, 1}}},
        PlanCase{"only_equal_types_on_the_wire_and_in_memory_mix",
                 {travelling(64, DType::kFloat16), tensor(64), travelling(64, DType::kFloat16),
                  travelling(64, DType::kBfloat16), travelling(64, DType::kFloat32),
                  travelling(64, DType::kFloat16, DType::kFloat64)},
                 256,
                 {{0, 2}, {1, 4}, {3}, {5}}},
        PlanCase{"memory_of_different_devices_does_not_mix",
                 {placed(64, 0), placed(64, 1), placed(64, 2), placed(64, 1), placed(64, 0)},
                 512,
                 {{0, 4}, {1, 3}, {2}}},
        PlanCase{"min_is_not", {tensor(64, DType::kFloat32, ReduceOp::kMin), tensor(64)}, 256, {{0}, {1}}},
        PlanCase{"adasum_never_fuses",
                 {tensor(64, DType::kFloat32, ReduceOp::kAdasum), tensor(64, DType::kFloat32, ReduceOp::kAdasum)},
                 256,
                 {{0}, {1}}},
        PlanCase{"other_collectives_go_alone_and_do_not_close_a_batch",
                 {tensor(64), other(CollectiveKind::kBroadcast), other(CollectiveKind::kAllgather), tensor(64)},
                 256,
                 {{0, 3}, {1}, {2}}},
        PlanCase{"a_group_stays_together", {tensor(192), member(64, "g"), member(64, "g")}, 256, {{0}, {1, 2}}},
        PlanCase{"a_group_larger_than_the_buffer_too", {member(256, "g"), member(64, "g")}, 256, {{0, 1}}},
        PlanCase{"a_group_takes_company", {member(64, "g"), member(64, "g"), tensor(64)}, 256, {{0, 1, 2}}},
        PlanCase{"a_group_of_two_dtypes_needs_two_batches",
                 {member(64, "g"), member(64, "g", DType::kInt32), member(64, "g")},
                 256,
                 {{0, 2}, {1}}},
        PlanCase{"two_groups_share_a_batch_when_they_fit", {member(64, "a"), member(64, "b")}, 256, {{0, 1}}}),
    [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace ringtune
