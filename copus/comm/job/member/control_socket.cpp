#include "copus/comm/job/member/control_socket.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "copus/base/error.h"
#include "copus/comm/job/member/packing.h"

namespace copus {

namespace {

union SpaceForDescriptor {
  cmsghdr header;  // only aligns the union
  char bytes[CMSG_SPACE(sizeof(int))];
};

bool send_bytes(const Descriptor& socket, const std::string& bytes, int descriptor = -1) {
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  SpaceForDescriptor space{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (descriptor >= 0) {
    message.msg_control = space.bytes;
    message.msg_controllen = sizeof space.bytes;
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  }
  while (true) {
    if (::sendmsg(socket.number(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return true;
    if (errno != EINTR) return false;
  }
}

// The bytes of the next message, and the descriptor that came with it.
std::optional<std::pair<std::string, Descriptor>> receive_bytes(Descriptor* socket) {
  if (!socket->is_open()) return std::nullopt;
  // If the other end closed while it had unread messages, the kernel reports ECONNRESET once, before it delivers the
  // messages that the other end had sent. Therefore the read is repeated.
  const auto is_interrupted = [] { return errno == EINTR || errno == ECONNRESET; };
  ssize_t length = 0;
  do {
    length = ::recv(socket->number(), nullptr, 0, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT);
  } while (length < 0 && is_interrupted());
  // If there is no message yet, this must return before the read: a message that arrives in between would be truncated,
  // because the buffer has the size of the peeked message.
  if (length < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::nullopt;
  std::string bytes(std::max<ssize_t>(length, 1), '\0');
  iovec part{bytes.data(), bytes.size()};
  SpaceForDescriptor space{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = space.bytes;
  message.msg_controllen = sizeof space.bytes;
  ssize_t count = 0;
  do {
    count = ::recvmsg(socket->number(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (count < 0 && is_interrupted());
  if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::nullopt;
  if (count <= 0) {
    *socket = Descriptor();
    return std::nullopt;
  }
  Descriptor descriptor;
  if (const cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    int number = -1;
    std::memcpy(&number, CMSG_DATA(header), sizeof number);
    descriptor = Descriptor(number);
  }
  bytes.resize(count);
  return std::pair(std::move(bytes), std::move(descriptor));
}

}  // namespace

std::pair<Descriptor, Descriptor> control_sockets() {
  std::array<int, 2> ends{-1, -1};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw InternalError(concat("could not make a socket: ", std::strerror(errno)));
  }
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

bool send(const Descriptor& socket, const FromRank& message, int descriptor) {
  return send_bytes(socket, packed(message), descriptor);
}

bool send(const Descriptor& socket, FromLauncher::Kind kind) {
  Packer packer;
  packer.add(static_cast<int64_t>(kind));
  return send_bytes(socket, packer.bytes());
}

bool send_epoch(const Descriptor& socket, const Epoch& epoch, int64_t rank, int segment, int64_t job_started,
                const std::vector<KeptArena>& kept) {
  Packer packer;
  packer.add(static_cast<int64_t>(FromLauncher::Kind::epoch));
  packer.add(epoch);
  packer.add(rank);
  packer.add(job_started);
  packer.add(std::ssize(kept));
  for (const KeptArena& arena : kept) {
    packer.add(arena.owner);
    packer.add(arena.pid);
    packer.add(arena.number);
  }
  return send_bytes(socket, packer.bytes(), segment);
}

bool send(const Descriptor& socket, const FromLifeline& message) {
  Packer packer;
  packer.add(message.epoch);
  packer.add(message.failure.value_or(FailureReport{}));
  return send_bytes(socket, packer.bytes());
}

std::string packed(const FromRank& message) {
  Packer packer;
  packer.add(static_cast<int64_t>(message.kind));
  packer.add(std::string_view(message.note));
  packer.add(message.expected_step_seconds);
  packer.add(static_cast<int64_t>(message.failure.has_value()));
  if (message.failure) packer.add(*message.failure);
  return packer.bytes();
}

std::optional<FromRank> from_rank(std::string_view bytes) {
  Unpacker unpacker(bytes);
  FromRank message;
  message.kind = static_cast<FromRank::Kind>(unpacker.number());
  message.note = unpacker.text();
  message.expected_step_seconds = unpacker.real();
  if (unpacker.number() != 0) message.failure = unpacker.report();
  const bool is_known = message.kind >= FromRank::Kind::ready && message.kind <= FromRank::Kind::garbled;
  if (!is_known || !unpacker.is_whole()) return std::nullopt;
  return message;
}

std::optional<FromRank> receive_from_rank(Descriptor* socket, Descriptor* arena) {
  auto bytes = receive_bytes(socket);
  if (!bytes) return std::nullopt;
  if (arena != nullptr) *arena = std::move(bytes->second);
  return from_rank(bytes->first).value_or(FromRank{.kind = FromRank::Kind::garbled});
}

std::optional<FromLauncher> receive_from_launcher(Descriptor* socket) {
  auto message = receive_bytes(socket);
  if (!message) return std::nullopt;
  Unpacker unpacker(message->first);
  FromLauncher result;
  result.kind = static_cast<FromLauncher::Kind>(unpacker.number());
  if (result.kind == FromLauncher::Kind::epoch) {
    result.segment = std::move(message->second);
    result.epoch = unpacker.epoch();
    result.rank = unpacker.number();
    result.job_started = unpacker.number();
    const int64_t kept = unpacker.number();
    for (int64_t i = 0; i < kept && !unpacker.is_cut_off(); ++i) {
      KeptArena& arena = result.kept.emplace_back();
      arena.owner = unpacker.number();
      arena.pid = unpacker.number();
      arena.number = unpacker.number();
    }
  }
  const bool is_known = result.kind >= FromLauncher::Kind::regroup && result.kind <= FromLauncher::Kind::stop;
  COPUS_CHECK(is_known && unpacker.is_whole(), "what came from the launcher is no message");
  return result;
}

std::optional<FromLifeline> receive_from_lifeline(Descriptor* socket) {
  const auto bytes = receive_bytes(socket);
  if (!bytes) return std::nullopt;
  Unpacker unpacker(bytes->first);
  FromLifeline message{unpacker.number(), unpacker.report()};
  COPUS_CHECK(unpacker.is_whole(), "a sign of the launcher that is cut off");
  if (message.epoch < 0) message.failure.reset();
  return message;
}

}  // namespace copus
