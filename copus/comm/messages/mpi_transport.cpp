#include "copus/comm/messages/mpi_transport.h"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace copus {

namespace {

using Clock = std::chrono::steady_clock;

// MPI counts bytes in an int, so longer messages are sent in pieces.
constexpr int64_t longest_piece = int64_t{1} << 30;
// Every MPI library sends messages of this size immediately, whether or not the receiver is ready. At most
// most_buffered_sends of them may be under way before a send has to wait.
constexpr int64_t eager_bytes = 4000;
constexpr size_t most_buffered_sends = 64;
// A wait polls, because a blocking MPI call would notice neither failures nor the deadline. At first the wait only
// yields to other threads, so that short messages are fast. Later it sleeps, so that ranks on the same core make
// progress.
constexpr auto polls_without_sleep = std::chrono::microseconds(500);
constexpr auto sleep_between_polls = std::chrono::microseconds(50);

}  // namespace

class MpiTransport::MpiMessages final : public Messages {
 public:
  MpiMessages(MpiTransport& transport, int tag) : transport_(transport), tag_(tag) {}
  MpiMessages(const MpiMessages&) = delete;
  MpiMessages& operator=(const MpiMessages&) = delete;

  // After a failure the buffers will be freed, so messages that have not begun to arrive must not be written into them.
  ~MpiMessages() override {
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] != MPI_REQUEST_NULL && peers_[i].is_source) MPI_Cancel(&requests_[i]);
    }
  }

  void send(const void* data, int64_t bytes, int64_t to) override {
    const auto* address = static_cast<const std::byte*>(data);
    for (int64_t done = 0; done < bytes; done += longest_piece) {
      MPI_Isend(address + done, piece(bytes - done), MPI_BYTE, add_peer(to, false), tag_, MPI_COMM_WORLD,
                add_request());
    }
  }

  void receive(void* data, int64_t bytes, int64_t from) override {
    auto* address = static_cast<std::byte*>(data);
    for (int64_t done = 0; done < bytes; done += longest_piece) {
      MPI_Irecv(address + done, piece(bytes - done), MPI_BYTE, add_peer(from, true), tag_, MPI_COMM_WORLD,
                add_request());
    }
  }

  void finish() override {
    const WaitingForOthers waiting(transport_.health());
    const auto started = Clock::now();
    while (!all_done()) {
      const auto waited = Clock::now() - started;
      if (std::chrono::duration<double>(waited).count() > transport_.wait_seconds()) give_up();
      if (waited < polls_without_sleep) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(sleep_between_polls);
      }
    }
    requests_.clear();
    peers_.clear();
  }

 private:
  struct Peer {
    int64_t member;
    bool is_source;
  };

  static int piece(int64_t bytes) { return static_cast<int>(std::min(bytes, longest_piece)); }

  int add_peer(int64_t member, bool is_source) {
    peers_.push_back({member, is_source});
    return static_cast<int>(transport_.world_rank(member));
  }

  MPI_Request* add_request() {
    requests_.push_back(MPI_REQUEST_NULL);
    return &requests_.back();
  }

  // Checks health first: after a failure another thread may have given up its buffers, so they must not be touched.
  bool all_done() {
    transport_.health().check();
    int done = 0;
    MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE);
    return done != 0;
  }

  [[noreturn]] void give_up() {
    size_t missing = 0;
    for (size_t i = requests_.size(); i-- > 0;) {
      int done = 0;
      MPI_Request_get_status(requests_[i], &done, MPI_STATUS_IGNORE);
      if (done == 0) missing = i;
    }
    transport_.blame(transport_.world_rank(peers_[missing].member), transport_.kept_waiting());
  }

  MpiTransport& transport_;
  const int tag_;
  std::vector<MPI_Request> requests_;
  std::vector<Peer> peers_;
};

struct MpiTransport::BufferedSend {
  std::vector<std::byte> content;
  MPI_Request request = MPI_REQUEST_NULL;
};

MpiTransport::MpiTransport(std::vector<int64_t> ranks, int64_t rank, int first_tag, MpiHealth& health,
                           double wait_seconds)
    : MessageTransport(std::move(ranks), rank, health, wait_seconds), first_tag_(first_tag) {}

MpiTransport::~MpiTransport() = default;

std::unique_ptr<MessageTransport::Messages> MpiTransport::start(Channel channel) {
  return std::make_unique<MpiMessages>(*this, tag_of(channel));
}

bool MpiTransport::try_send(const void* data, int64_t bytes, int64_t to) {
  if (bytes > eager_bytes) return false;
  health().check();
  const std::lock_guard lock(buffered_mutex_);
  std::erase_if(buffered_, [](BufferedSend& sent) {
    int done = 0;
    MPI_Test(&sent.request, &done, MPI_STATUS_IGNORE);
    return done != 0;
  });
  if (buffered_.size() == most_buffered_sends) return false;
  if (bytes == 0) return true;
  const auto* content = static_cast<const std::byte*>(data);
  BufferedSend& sent = buffered_.emplace_back();
  sent.content.assign(content, content + bytes);
  MPI_Isend(sent.content.data(), static_cast<int>(bytes), MPI_BYTE, static_cast<int>(world_rank(to)),
            tag_of(Channel::message), MPI_COMM_WORLD, &sent.request);
  return true;
}

}  // namespace copus
