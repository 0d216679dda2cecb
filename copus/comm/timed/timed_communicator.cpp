#include "copus/comm/timed/timed_communicator.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "copus/performance/link_cost.h"

namespace copus {

namespace {

// The time within is communication.
class Communicating {
 public:
  explicit Communicating(RankClock& clock) : clock_(clock) { clock_.begin_communication(); }
  ~Communicating() { clock_.end_communication(); }
  Communicating(const Communicating&) = delete;
  Communicating& operator=(const Communicating&) = delete;

 private:
  RankClock& clock_;
};

int64_t sum_of(std::span<const int64_t> counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

}  // namespace

// A collective under way, and the times of its members.
class TimedCommunicator::Collective : public Work::State {
 public:
  Collective(TimedCommunicator& group, double posted, double cost) : group_(group), latest_(posted), cost_(cost) {}

  void start(const std::function<Work()>& start_data) {
    times_ = group_.group_.start_all_reduce(&latest_, 1, DataType::float64, Reduction::maximum);
    data_ = start_data();
  }

  // When it is done, on a link that is busy until `free_at`.
  double settle(double free_at) {
    times_.wait();
    end_ = std::max(latest_, free_at) + cost_;
    return *end_;
  }

  void wait() override {
    const Communicating communicating(group_.clock_);
    while (!end_) group_.settle_next();
    data_.wait();
    group_.clock_.advance_to(*end_);
  }

  bool done() override {
    if (!times_.done() || !data_.done()) return false;
    const Communicating communicating(group_.clock_);
    while (!end_) group_.settle_next();
    return *end_ <= group_.clock_.now();
  }

 private:
  TimedCommunicator& group_;
  double latest_;  // of all members, once times_ is done
  const double cost_;
  Work times_;
  Work data_;
  std::optional<double> end_;
};

// A message that is being sent, after the time at which it was.
class TimedCommunicator::Message : public Work::State {
 public:
  Message(RankClock& clock, double sent) : clock_(clock), sent_(sent) {}

  void start(Communicator& group, const void* data, int64_t count, DataType type, int64_t to) {
    header_ = group.start_send(&sent_, 1, DataType::float64, to);
    data_ = group.start_send(data, count, type, to);
  }

  void wait() override {
    const Communicating communicating(clock_);
    header_.wait();
    data_.wait();
  }

  bool done() override { return header_.done() && data_.done(); }

 private:
  RankClock& clock_;
  const double sent_;
  Work header_;
  Work data_;
};

TimedCommunicator::TimedCommunicator(Communicator& group, RankClock& clock, const ClusterDescription& cluster)
    : Communicator(group.ranks(), group.rank()),
      group_(group),
      clock_(clock),
      link_(link_of(cluster, group.ranks())),
      messages_free_at_(group.ranks().size(), 0) {
  const int64_t own = ranks()[rank()];
  for (const int64_t other : ranks()) message_links_.push_back(link_of(cluster, std::array{own, other}));
}

double TimedCommunicator::cost_of_all_reduce(int64_t count, DataType type) const {
  return all_reduce_seconds(link_, size(), count * size_of(type));
}

double TimedCommunicator::cost_of_reduce_scatter(std::span<const int64_t> counts, DataType type) const {
  return reduce_scatter_seconds(link_, size(), sum_of(counts) * size_of(type));
}

double TimedCommunicator::cost_of_all_gather(std::span<const int64_t> counts, DataType type) const {
  return all_gather_seconds(link_, size(), sum_of(counts) * size_of(type));
}

double TimedCommunicator::cost_of_broadcast(int64_t count, DataType type) const {
  return broadcast_seconds(link_, size(), count * size_of(type));
}

void TimedCommunicator::settle_next() {
  free_at_ = unsettled_.front()->settle(free_at_);
  unsettled_.pop_front();
}

Work TimedCommunicator::start_collective(double cost, const std::function<Work()>& start) {
  auto collective = std::make_shared<Collective>(*this, clock_.now(), cost);
  const Communicating communicating(clock_);
  unsettled_.push_back(collective);
  collective->start(start);
  return Work(std::move(collective));
}

void TimedCommunicator::run_collective(double cost, const std::function<void()>& run) {
  double latest = clock_.now();
  const Communicating communicating(clock_);
  while (!unsettled_.empty()) settle_next();
  group_.all_reduce(&latest, 1, DataType::float64, Reduction::maximum);
  run();
  free_at_ = std::max(latest, free_at_) + cost;
  clock_.advance_to(free_at_);
}

Work TimedCommunicator::start_all_reduce(void* data, int64_t count, DataType type, Reduction reduction) {
  return start_collective(cost_of_all_reduce(count, type),
                          [&] { return group_.start_all_reduce(data, count, type, reduction); });
}

Work TimedCommunicator::start_reduce_scatter(void* input, void* output, std::span<const int64_t> counts, DataType type,
                                             Reduction reduction) {
  return start_collective(cost_of_reduce_scatter(counts, type),
                          [&] { return group_.start_reduce_scatter(input, output, counts, type, reduction); });
}

Work TimedCommunicator::start_all_gather(const void* input, void* output, std::span<const int64_t> counts,
                                         DataType type) {
  return start_collective(cost_of_all_gather(counts, type),
                          [&] { return group_.start_all_gather(input, output, counts, type); });
}

Work TimedCommunicator::start_broadcast(void* data, int64_t count, DataType type, int64_t root) {
  return start_collective(cost_of_broadcast(count, type),
                          [&] { return group_.start_broadcast(data, count, type, root); });
}

void TimedCommunicator::all_reduce(void* data, int64_t count, DataType type, Reduction reduction) {
  run_collective(cost_of_all_reduce(count, type), [&] { group_.all_reduce(data, count, type, reduction); });
}

void TimedCommunicator::reduce_scatter(void* input, void* output, std::span<const int64_t> counts, DataType type) {
  run_collective(cost_of_reduce_scatter(counts, type), [&] { group_.reduce_scatter(input, output, counts, type); });
}

void TimedCommunicator::all_gather(const void* input, void* output, std::span<const int64_t> counts, DataType type) {
  run_collective(cost_of_all_gather(counts, type), [&] { group_.all_gather(input, output, counts, type); });
}

void TimedCommunicator::broadcast(void* data, int64_t count, DataType type, int64_t root) {
  run_collective(cost_of_broadcast(count, type), [&] { group_.broadcast(data, count, type, root); });
}

// Nobody knows the last member's time before all have come.
void TimedCommunicator::barrier() {
  run_collective(barrier_seconds(link_, size()), [] {});
}

Work TimedCommunicator::start_send(const void* data, int64_t count, DataType type, int64_t to) {
  auto message = std::make_shared<Message>(clock_, clock_.now());
  const Communicating communicating(clock_);
  while (!messages_.empty() && messages_.front()->done()) messages_.pop_front();
  messages_.push_back(message);
  message->start(group_, data, count, type, to);
  return Work(std::move(message));
}

void TimedCommunicator::receive(void* data, int64_t count, DataType type, int64_t from) {
  const Communicating communicating(clock_);
  double sent = 0;
  group_.receive(&sent, 1, DataType::float64, from);
  group_.receive(data, count, type, from);
  double& arrival = messages_free_at_[from];
  arrival = std::max(sent, arrival) + send_seconds(message_links_[from], count * size_of(type));
  clock_.advance_to(arrival);
}

}  // namespace copus
