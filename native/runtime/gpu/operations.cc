// A runtime's operations on tensors in GPUs' memory.
#include "runtime/runtime_impl.h"

namespace ringtune {

HostDataPath Runtime::Impl::host_data_path() {
  return {.submit = [this](Submission submission,
                           FinishListener& listener) { return submit(std::move(submission), &listener); },
          .release = [this](Ticket ticket) { tickets.release(ticket); },
          .begin_waiting = [this] { driver->begin_waiting(); },
          .end_waiting = [this] { driver->end_waiting(); },
          .recorded = [this](const Prepared& prepared) { return recorded_now(prepared); },
          .tracer = &tracer};
}

std::optional<Span> Runtime::Impl::recorded_now(const Prepared& prepared) {
  if (!tracer.recording()) return std::nullopt;
  Span span{now_ns(),
            0,
            prepared.bytes,
            trace_name(tracer, prepared),
            0,
            status.step(),
            static_cast<std::uint16_t>(status.knobs_version()),
            Stage::kWaitForData,
            static_cast<std::uint8_t>(prepared.request.kind)};
  span.process_set = static_cast<std::uint16_t>(prepared.request.process_set);
  span.dtype = static_cast<std::uint8_t>(prepared.request.dtype);
  if (prepared.request.wire) span.wire = static_cast<std::uint8_t>(*prepared.request.wire) & 0x7f;
  return span;
}

Ticket Runtime::Impl::submit(Submission submission, FinishListener* listener) {
  std::shared_ptr<const Prepared> prepared = tickets.known(submission.request.process_set, submission.request.name);
  if (prepared == nullptr || prepared->request != submission.request) {
    prepared = std::make_shared<const Prepared>(std::move(submission.request));
  }
  const std::size_t bytes = prepared->wire_bytes;
  const Ticket ticket =
      tickets.submit(std::move(prepared),
                     {submission.input, submission.output, submission.splits, listener, submission.room}, now_ns());
  driver->submitted(bytes, listener == nullptr);  // no caller drives the engine while it waits for a GPU
  return ticket;
}

Ticket Runtime::Impl::submit_on_device(Submission submission) {
  const ProcessSetTable::Members members = members_of(submission.request.process_set);
  return host_staged.submit(std::move(submission), *members, options.rank);
}

bool Runtime::Impl::wait_on_device(Ticket ticket, Deadline deadline) {
  DeviceOperation& operation = host_staged.find(ticket);
  if (operation.done()) return true;
  const std::shared_ptr<const Prepared> prepared = operation.prepared;
  const std::int64_t begin_ns = now_ns();
  const bool done = host_staged.attend(ticket, deadline);
  record_wait(*prepared, begin_ns, now_ns());
  return done;
}

bool Runtime::attend(Ticket ticket, Deadline deadline) {
  if (HostStagedPath::owns(ticket)) return own().host_staged.attend(ticket, deadline);
  return TicketTable::attend(*operation(ticket), deadline);
}

void Runtime::join_stream(Ticket ticket, CudaStreamHandle stream) { own().host_staged.join(ticket, stream); }

GatheredOnDevice Runtime::gathered_on_device(Ticket ticket) {
  const DeviceOperation& operation = own().host_staged.find(ticket);
  const CollectiveKind kind = operation.prepared->request.kind;
  if ((kind != CollectiveKind::kAllgather && kind != CollectiveKind::kAlltoall) || !operation.done()) {
    throw InvalidArgument("ticket " + std::to_string(ticket) + " is no finished allgather or alltoall");
  }
  return {operation.gathered_shape, operation.splits};
}

void Runtime::deliver(Ticket ticket, void* memory, CudaStreamHandle stream) {
  own().host_staged.deliver(ticket, static_cast<std::byte*>(memory), stream);
}

}  // namespace ringtune
