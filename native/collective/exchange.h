// Bytes to and from any members of a mesh at once, each with a buffer of its own.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "collective/mesh.h"

namespace ringtune {

struct OutgoingParcel {
  int peer;  // position in the mesh
  std::span<const std::byte> bytes;
};

struct IncomingParcel {
  int peer;
  std::span<std::byte> bytes;
};

/// Everything goes on at once, so no order of the members can deadlock, whatever the links hold; at most one parcel to
/// and one from each peer. Nothing is sent that a peer does not expect: parcels agree in size on both sides. Blocks;
/// throws PeerLost, Timeout (no byte moved for the mesh's idle timeout; `what` is in the message), what Mesh::prepare
/// throws.
void exchange(Mesh& mesh, std::span<const OutgoingParcel> outgoing, std::span<const IncomingParcel> incoming,
              std::string_view what);

}  // namespace ringtune
