#include "transport/store_waiting.h"

#include "base/error.h"

namespace ringtune {

WaitingGet read_get(std::uint64_t connection, std::uint32_t request, StoreOp op, ByteReader& fields) {
  WaitingGet get{.connection = connection, .request = request, .all = op == StoreOp::kGetAll, .keys = {}};
  const std::uint32_t count = get.all ? fields.u32() : 1;
  if (count > fields.remaining()) throw Protocol("a get of more keys than its message holds");
  for (std::uint32_t i = 0; i < count; ++i) get.keys.push_back(fields.string());
  fields.expect_end();
  return get;
}

Refusal read_refusal(ByteReader& fields) {
  Refusal refusal;
  refusal.reason = fields.string();
  refusal.begins = fields.string();
  refusal.ends = fields.string();
  fields.expect_end();
  check_sentence(refusal.reason.size() + refusal.begins.size() + refusal.ends.size());
  return refusal;
}

std::optional<Bytes> table_of(const std::vector<std::string>& keys, const StoreValues& values) {
  ByteWriter table;
  for (const std::string& key : keys) {
    const Bytes* found = values.find(key);
    const ByteView value = found == nullptr ? ByteView() : ByteView(*found);
    table.u8(found == nullptr ? 0 : 1);
    if (table.bytes().size() + value.size() > kMaxAnswerBytes) return std::nullopt;
    table.blob(value);
  }
  return table.take();
}

}  // namespace ringtune
