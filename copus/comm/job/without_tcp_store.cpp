// Stands in for tcp_store.cpp in builds without libtorch.
#include "copus/base/error.h"
#include "copus/comm/job/tcp_store.h"

namespace copus {

class TcpStore::Implementation {};

TcpStore::TcpStore(const std::string&, int64_t, bool, double) {
  throw UserError(
      "this build has no libtorch, and without it ranks cannot be started by torchrun, srun or mpirun; let copus start "
      "them itself, or build with -DCOPUS_WITH_TORCH=ON");
}

TcpStore::~TcpStore() = default;
void TcpStore::set(const std::string&, const std::string&) {}
// NOLINTNEXTLINE(readability-convert-member-functions-to-static): it stands in for a member
std::optional<std::string> TcpStore::get(const std::string&, double) { return std::nullopt; }

}  // namespace copus
