#include "copus/comm/job/control_socket.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "copus/base/error.h"

namespace copus {

namespace {

// Numbers as they lie in memory, and texts after their length: both ends are the same program.
class Packer {
 public:
  void add(int64_t number) { bytes_.append(reinterpret_cast<const char*>(&number), sizeof number); }
  void add(std::string_view text) {
    add(std::ssize(text));
    bytes_ += text;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : bytes_(bytes) {}
  int64_t number() {
    int64_t number = 0;
    std::memcpy(&number, take(sizeof number).data(), sizeof number);
    return number;
  }
  std::string text() {
    const int64_t length = number();
    return std::string(take(length));
  }
  // Number of things that follow, each of one number at least.
  int64_t count() {
    const int64_t count = number();
    COPUS_CHECK(count >= 0 && count <= std::ssize(bytes_) / int64_t{sizeof count}, "a message of the launcher with ",
                count, " things in ", bytes_.size(), " bytes");
    return count;
  }

 private:
  std::string_view take(size_t count) {
    COPUS_CHECK(count <= bytes_.size(), "a message of the launcher that is cut off");
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }

  std::string_view bytes_;
};

union SpaceForDescriptor {
  cmsghdr header;  // for its alignment
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
  // The kernel tells that the other end is gone with messages unread before it gives what that end has sent.
  const auto is_interrupted = [] { return errno == EINTR || errno == ECONNRESET; };
  ssize_t length = 0;
  do {
    length = ::recv(socket->number(), nullptr, 0, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT);
  } while (length < 0 && is_interrupted());
  // A message may come between the look and the reading of it, which would then have no space for it.
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

bool send(const Descriptor& socket, FromRank message) {
  Packer packer;
  packer.add(static_cast<int64_t>(message));
  return send_bytes(socket, packer.bytes());
}

bool send(const Descriptor& socket, FromLauncher::Kind kind) {
  Packer packer;
  packer.add(static_cast<int64_t>(kind));
  return send_bytes(socket, packer.bytes());
}

bool send_epoch(const Descriptor& socket, const Epoch& epoch, int64_t rank, int segment) {
  Packer packer;
  packer.add(static_cast<int64_t>(FromLauncher::Kind::epoch));
  packer.add(epoch.number);
  packer.add(rank);
  packer.add(std::ssize(epoch.processes));
  for (const int64_t process : epoch.processes) packer.add(process);
  packer.add(std::ssize(epoch.lost));
  for (const auto& [process, report] : epoch.lost) {
    for (const int64_t number : {process, report.rank, report.pid}) packer.add(number);
    packer.add(report.place);
    packer.add(report.cause);
  }
  return send_bytes(socket, packer.bytes(), segment);
}

std::optional<FromRank> receive_from_rank(Descriptor* socket) {
  const auto message = receive_bytes(socket);
  if (!message) return std::nullopt;
  int64_t number = 0;
  if (message->first.size() != sizeof number) return FromRank::garbled;
  number = Unpacker(message->first).number();
  const bool is_known =
      number == static_cast<int64_t>(FromRank::ready) || number == static_cast<int64_t>(FromRank::wants_to_leave);
  return is_known ? static_cast<FromRank>(number) : FromRank::garbled;
}

std::optional<FromLauncher> receive_from_launcher(Descriptor* socket) {
  auto message = receive_bytes(socket);
  if (!message) return std::nullopt;
  Unpacker unpacker(message->first);
  FromLauncher result;
  const int64_t kind = unpacker.number();
  COPUS_CHECK(kind >= static_cast<int64_t>(FromLauncher::Kind::regroup) &&
                  kind <= static_cast<int64_t>(FromLauncher::Kind::stop),
              "a message of the launcher of the unknown kind ", kind);
  result.kind = static_cast<FromLauncher::Kind>(kind);
  if (result.kind != FromLauncher::Kind::epoch) return result;
  result.segment = std::move(message->second);
  result.epoch.number = unpacker.number();
  result.rank = unpacker.number();
  result.epoch.processes.resize(unpacker.count());
  for (int64_t& process : result.epoch.processes) process = unpacker.number();
  result.epoch.lost.resize(unpacker.count());
  for (auto& [process, report] : result.epoch.lost) {
    process = unpacker.number();
    report.rank = unpacker.number();
    report.pid = unpacker.number();
    report.place = unpacker.text();
    report.cause = unpacker.text();
    report.announced = true;
  }
  return result;
}

}  // namespace copus
