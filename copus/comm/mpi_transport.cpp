#include "copus/comm/mpi_transport.h"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>

#include "copus/base/error.h"
#include "copus/comm/reduce_elements.h"

namespace copus {

namespace {

using Clock = std::chrono::steady_clock;

// MPI counts bytes in an int, so longer messages travel in pieces.
constexpr int64_t longest_piece = int64_t{1} << 30;
// An all-reduce up to this size gathers everything: one exchange instead of two.
constexpr int64_t small_bytes = 16 << 10;
// A reduction takes this much of a part at a time, which bounds its memory at this times the number of ranks.
constexpr int64_t window_bytes = 1 << 20;
// What every MPI library sends at once, whether or not the receiver is there; and how many such messages may be under
// way before a send has to wait.
constexpr int64_t eager_bytes = 4000;
constexpr size_t most_buffered_sends = 64;
// A wait polls, because a blocking MPI call would see neither failures nor the deadline. At first it only gives way to
// other threads, for the sake of short messages; later it sleeps, for the sake of ranks that share its core.
constexpr auto polls_without_sleep = std::chrono::microseconds(500);
constexpr auto sleep_between_polls = std::chrono::microseconds(50);

enum TagOffset { collective_tag, barrier_tag, message_tag };

std::vector<int64_t> even_counts(int64_t count, int64_t parts) {
  std::vector<int64_t> counts(static_cast<size_t>(parts), count / parts);
  for (int64_t i = 0; i < count % parts; ++i) ++counts[static_cast<size_t>(i)];
  return counts;
}

std::vector<int64_t> offsets_of(std::span<const int64_t> counts) {
  std::vector<int64_t> offsets(counts.size(), 0);
  std::exclusive_scan(counts.begin(), counts.end(), offsets.begin(), int64_t{0});
  return offsets;
}

}  // namespace

// The messages of one operation that are under way.
class MpiTransport::Messages {
 public:
  Messages(const MpiTransport& transport, TagOffset tag) : transport_(transport), tag_(transport.first_tag_ + tag) {}
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  // After a failure the buffers are about to go: what has not begun to arrive must not be written into them.
  ~Messages() {
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] != MPI_REQUEST_NULL && peers_[i].is_source) MPI_Cancel(&requests_[i]);
    }
  }

  void send(const void* data, int64_t bytes, int64_t to) {
    const auto* address = static_cast<const std::byte*>(data);
    for (int64_t done = 0; done < bytes; done += longest_piece) {
      MPI_Isend(address + done, piece(bytes - done), MPI_BYTE, add_peer(to, false), tag_, MPI_COMM_WORLD,
                add_request());
    }
  }

  void receive(void* data, int64_t bytes, int64_t from) {
    auto* address = static_cast<std::byte*>(data);
    for (int64_t done = 0; done < bytes; done += longest_piece) {
      MPI_Irecv(address + done, piece(bytes - done), MPI_BYTE, add_peer(from, true), tag_, MPI_COMM_WORLD,
                add_request());
    }
  }

  // A message without content.
  void send_signal(int64_t to) {
    MPI_Isend(nullptr, 0, MPI_BYTE, add_peer(to, false), tag_, MPI_COMM_WORLD, add_request());
  }
  void receive_signal(int64_t from) {
    MPI_Irecv(nullptr, 0, MPI_BYTE, add_peer(from, true), tag_, MPI_COMM_WORLD, add_request());
  }

  // Returns once all of them are done; then others may be started.
  void finish() {
    const Waiting waiting(transport_.health_);
    const auto started = Clock::now();
    while (!all_done()) {
      const auto waited = Clock::now() - started;
      if (std::chrono::duration<double>(waited).count() > transport_.wait_seconds_) give_up();
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
  // A rank that waits for others is not the one that stalls.
  class Waiting {
   public:
    explicit Waiting(Health& health) : health_(health) { health_.begin_wait(); }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;
    ~Waiting() { health_.end_wait(); }

   private:
    Health& health_;
  };

  struct Peer {
    int world_rank;
    bool is_source;
  };

  static int piece(int64_t bytes) { return static_cast<int>(std::min(bytes, longest_piece)); }

  int add_peer(int64_t member, bool is_source) {
    peers_.push_back({static_cast<int>(transport_.ranks_[static_cast<size_t>(member)]), is_source});
    return peers_.back().world_rank;
  }

  MPI_Request* add_request() {
    requests_.push_back(MPI_REQUEST_NULL);
    return &requests_.back();
  }

  // Health comes first: after a failure nothing may touch buffers that another thread may have given up.
  bool all_done() {
    transport_.health_.check();
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
    const int rank = peers_[missing].world_rank;
    const FailureReport report{rank, transport_.health_.place_of(rank),
                               concat("kept rank ", transport_.ranks_[static_cast<size_t>(transport_.rank_)],
                                      " waiting for ", transport_.wait_seconds_, " s")};
    transport_.health_.report(report);
    transport_.health_.check();
    throw RankFailure(report);
  }

  const MpiTransport& transport_;
  int tag_;
  std::vector<MPI_Request> requests_;
  std::vector<Peer> peers_;
};

struct MpiTransport::BufferedSend {
  std::vector<std::byte> content;
  MPI_Request request = MPI_REQUEST_NULL;
};

MpiTransport::MpiTransport(std::vector<int64_t> ranks, int64_t rank, int first_tag, MpiHealth& health,
                           double wait_seconds)
    : ranks_(std::move(ranks)), rank_(rank), first_tag_(first_tag), health_(health), wait_seconds_(wait_seconds) {}

MpiTransport::~MpiTransport() = default;

void MpiTransport::all_reduce(void* data, int64_t count, DataType type, Reduction reduction) {
  const int64_t element_bytes = size_of(type);
  std::byte* const bytes = static_cast<std::byte*>(data);
  if (count * element_bytes > small_bytes) {
    const std::vector<int64_t> counts = even_counts(count, size());
    std::byte* mine = bytes + offsets_of(counts)[static_cast<size_t>(rank_)] * element_bytes;
    reduce_parts(bytes, mine, counts, type, reduction);
    gather_parts(mine, bytes, counts, element_bytes);
    return;
  }
  const int64_t vector_bytes = count * element_bytes;
  received_.resize(static_cast<size_t>(vector_bytes * size()));
  gather_parts(data, received_.data(), std::vector<int64_t>(static_cast<size_t>(size()), count), element_bytes);
  std::vector<const std::byte*> sources;
  for (int64_t member = 0; member < size(); ++member) sources.push_back(received_.data() + member * vector_bytes);
  reduce_elements(sources, {&bytes, 1}, count, type, reduction);
}

void MpiTransport::reduce_scatter(void* input, void* output, std::span<const int64_t> counts, DataType type,
                                  Reduction reduction) {
  reduce_parts(static_cast<const std::byte*>(input), static_cast<std::byte*>(output), counts, type, reduction);
}

// Every member sends each of the others that one's part and sums its own. Leaves `input` as it is, but where `output`
// is the member's own part of it.
void MpiTransport::reduce_parts(const std::byte* input, std::byte* output, std::span<const int64_t> counts,
                                DataType type, Reduction reduction) {
  const int64_t element_bytes = size_of(type);
  const int64_t window = window_bytes / element_bytes;
  const int64_t longest = *std::max_element(counts.begin(), counts.end());
  const std::vector<int64_t> offsets = offsets_of(counts);
  const int64_t my_count = counts[static_cast<size_t>(rank_)];
  const std::byte* my_input = input + offsets[static_cast<size_t>(rank_)] * element_bytes;
  const int64_t slot_bytes = std::min(window, my_count) * element_bytes;
  received_.resize(static_cast<size_t>(slot_bytes * size()));
  Messages messages(*this, collective_tag);
  std::vector<const std::byte*> sources(static_cast<size_t>(size()));
  for (int64_t begin = 0; begin < longest; begin += window) {
    const auto length = [&](int64_t part_count) { return std::clamp<int64_t>(part_count - begin, 0, window); };
    const int64_t my_length = length(my_count);
    // Each begins with its successor, so that not all send to the same member first.
    for (int64_t step = 1; step < size(); ++step) {
      const int64_t from = (rank_ + size() - step) % size();
      const int64_t to = (rank_ + step) % size();
      std::byte* slot = received_.data() + from * slot_bytes;
      sources[static_cast<size_t>(from)] = slot;
      messages.receive(slot, my_length * element_bytes, from);
      messages.send(input + (offsets[static_cast<size_t>(to)] + begin) * element_bytes,
                    length(counts[static_cast<size_t>(to)]) * element_bytes, to);
    }
    messages.finish();
    if (my_length == 0) continue;
    sources[static_cast<size_t>(rank_)] = my_input + begin * element_bytes;
    std::byte* const sum = output + begin * element_bytes;
    reduce_elements(sources, {&sum, 1}, my_length, type, reduction);
  }
}

void MpiTransport::all_gather(const void* input, void* output, std::span<const int64_t> counts, DataType type) {
  gather_parts(input, static_cast<std::byte*>(output), counts, size_of(type));
}

void MpiTransport::gather_parts(const void* input, std::byte* output, std::span<const int64_t> counts,
                                int64_t element_bytes) {
  const std::vector<int64_t> offsets = offsets_of(counts);
  const auto part = [&](int64_t member) { return output + offsets[static_cast<size_t>(member)] * element_bytes; };
  const auto bytes = [&](int64_t member) { return counts[static_cast<size_t>(member)] * element_bytes; };
  Messages messages(*this, collective_tag);
  for (int64_t step = 1; step < size(); ++step) {
    const int64_t from = (rank_ + size() - step) % size();
    messages.receive(part(from), bytes(from), from);
    messages.send(input, bytes(rank_), (rank_ + step) % size());
  }
  if (input != part(rank_) && bytes(rank_) > 0) std::memcpy(part(rank_), input, static_cast<size_t>(bytes(rank_)));
  messages.finish();
}

// A binomial tree: in the round with `distance` d, the first d members after the root have the data and pass it to the
// d that follow.
void MpiTransport::broadcast(void* data, int64_t count, DataType type, int64_t root) {
  const int64_t bytes = count * size_of(type);
  const int64_t place = (rank_ + size() - root) % size();
  Messages messages(*this, collective_tag);
  for (int64_t distance = 1; distance < size(); distance *= 2) {
    if (place < distance && place + distance < size()) {
      messages.send(data, bytes, (rank_ + distance) % size());
    } else if (place >= distance && place < 2 * distance) {
      messages.receive(data, bytes, (rank_ + size() - distance) % size());
      messages.finish();
    }
  }
  messages.finish();
}

// Hensgen, Finkel and Manber's dissemination barrier: after the round with distance d each member has heard of the 2 d
// before it.
void MpiTransport::barrier() {
  Messages messages(*this, barrier_tag);
  for (int64_t distance = 1; distance < size(); distance *= 2) {
    messages.receive_signal((rank_ + size() - distance) % size());
    messages.send_signal((rank_ + distance) % size());
    messages.finish();
  }
}

void MpiTransport::send(const void* data, int64_t bytes, int64_t to) {
  Messages messages(*this, message_tag);
  messages.send(data, bytes, to);
  messages.finish();
}

void MpiTransport::receive(void* data, int64_t bytes, int64_t from) {
  Messages messages(*this, message_tag);
  messages.receive(data, bytes, from);
  messages.finish();
}

bool MpiTransport::try_send(const void* data, int64_t bytes, int64_t to) {
  if (bytes > eager_bytes) return false;
  health_.check();
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
  MPI_Isend(sent.content.data(), static_cast<int>(bytes), MPI_BYTE, static_cast<int>(ranks_[static_cast<size_t>(to)]),
            first_tag_ + message_tag, MPI_COMM_WORLD, &sent.request);
  return true;
}

}  // namespace copus
