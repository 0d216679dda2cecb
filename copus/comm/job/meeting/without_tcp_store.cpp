// Replaces tcp_store.cpp in builds without libtorch.
#include "copus/base/error.h"
#include "copus/comm/job/meeting/tcp_store.h"

namespace copus {

class TcpStore::Implementation {};

std::unique_ptr<TcpStore> TcpStore::open(const MeetingAddress& /*address*/) {
  throw UserError(
      "this program has no libtorch, and without it ranks cannot be started by torchrun, srun or mpirun; let copus "
      "start them itself, or build with -DCOPUS_WITH_TORCH=ON");
}

TcpStore::TcpStore(std::unique_ptr<Implementation> implementation) : implementation_(std::move(implementation)) {}
TcpStore::~TcpStore() = default;
void TcpStore::set(const std::string&, const std::string&) {}
// NOLINTBEGIN(readability-convert-member-functions-to-static): they replace members
std::optional<std::string> TcpStore::get(const std::string&, double) { return std::nullopt; }
bool TcpStore::is_first(const std::string&) { return true; }
// NOLINTEND(readability-convert-member-functions-to-static)

}  // namespace copus
