#include "copus/comm/timed/timed_world.h"

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/comm/messages/reduction_rounds.h"
#include "copus/comm/timed/virtual_clock.h"
#include "copus/performance/link_cost.h"

namespace copus {

namespace {

// While this object lives, the thread counts as communicating.
class Communicating {
 public:
  explicit Communicating(RankClock& clock) : clock_(clock) { clock_.begin_communication(); }
  ~Communicating() { clock_.end_communication(); }
  Communicating(const Communicating&) = delete;
  Communicating& operator=(const Communicating&) = delete;

 private:
  RankClock& clock_;
};

// A group with modelled times. With every operation, the members exchange the times at which they started it. From
// these times, each member computes when the operation is done; all members get the same result.
class TimedCommunicator final : public WrappedCommunicator {
 public:
  // Keeps references to the group and the clock.
  TimedCommunicator(Communicator& group, RankClock& clock, const ClusterDescription& cluster)
      : WrappedCommunicator(group),
        clock_(clock),
        link_(link_of(cluster, group.ranks())),
        messages_free_at_(group.ranks().size(), 0) {
    const int64_t own = ranks()[rank()];
    for (const int64_t other : ranks()) message_links_.push_back(link_of(cluster, std::array{own, other}));
  }

 private:
  // A collective under way, with the times of its members.
  class Collective final : public Work::State {
   public:
    Collective(TimedCommunicator& group, const Operation& operation)
        : group_(group), latest_(group.clock_.now()), seconds_(group.seconds_of(operation)) {}

    void start(const Operation& operation) {
      times_ = group_.group().start_all_reduce(&latest_, 1, DataType::float64, Reduction::maximum);
      data_ = group_.group().start(operation);
    }

    // Computes and returns the time at which the collective is done, if its link is busy until `free_at`.
    double settle(double free_at) {
      times_.wait();
      end_ = std::max(latest_, free_at) + seconds_;
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
    double latest_;  // latest start of all members, valid once times_ is done
    const double seconds_;
    Work times_, data_;
    std::optional<double> end_;
  };

  // A message under way. It is followed by a second message, which holds the time at which the first was sent.
  class SentMessage final : public Work::State {
   public:
    explicit SentMessage(RankClock& clock) : clock_(clock), sent_(clock.now()) {}

    void start(Communicator& group, const Operation& operation) {
      time_ = group.start_send(&sent_, 1, DataType::float64, operation.peer);
      data_ = group.start(operation);
    }

    void wait() override {
      const Communicating communicating(clock_);
      time_.wait();
      data_.wait();
    }

    bool done() override { return time_.done() && data_.done(); }

   private:
    RankClock& clock_;
    const double sent_;
    Work time_, data_;
  };

  Work do_start(const Operation& operation) override {
    if (operation.kind == OperationKind::receive) return run_in_wait(operation);
    if (operation.is_message()) return start_message(operation);
    auto collective = std::make_shared<Collective>(*this, operation);
    const Communicating communicating(clock_);
    unsettled_.push_back(collective);
    collective->start(operation);
    return Work(std::move(collective));
  }

  void do_run(const Operation& operation) override {
    switch (operation.kind) {
      case OperationKind::send:
        return start_message(operation).wait();
      case OperationKind::receive:
        return receive_message(operation);
      case OperationKind::exchange:
        return exchange_one_by_one(operation);
      default:
        return run_collective(operation);
    }
  }

  void run_collective(const Operation& operation) {
    double latest = clock_.now();
    const Communicating communicating(clock_);
    while (!unsettled_.empty()) settle_next();
    group().all_reduce(&latest, 1, DataType::float64, Reduction::maximum);
    // A barrier needs nothing more: the exchange of times is complete only when all members have arrived.
    if (operation.kind != OperationKind::barrier) group().run(operation);
    free_at_ = std::max(latest, free_at_) + seconds_of(operation);
    clock_.advance_to(free_at_);
  }

  Work start_message(const Operation& operation) {
    auto message = std::make_shared<SentMessage>(clock_);
    const Communicating communicating(clock_);
    while (!messages_.empty() && messages_.front()->done()) messages_.pop_front();
    messages_.push_back(message);
    message->start(group(), operation);
    return Work(std::move(message));
  }

  void receive_message(const Operation& operation) {
    const Communicating communicating(clock_);
    double sent = 0;
    group().receive(&sent, 1, DataType::float64, operation.peer);
    group().run(operation);
    double& arrival = messages_free_at_[operation.peer];
    arrival = std::max(sent, arrival) + send_seconds(message_links_[operation.peer], operation.bytes());
    clock_.advance_to(arrival);
  }

  // The seconds that a collective takes after all members have started it.
  double seconds_of(const Operation& collective) const {
    switch (collective.kind) {
      case OperationKind::all_reduce:
        return goes_by_rounds(collective) ? small_all_reduce_seconds(link_, size(), collective.bytes())
                                          : all_reduce_seconds(link_, size(), collective.bytes());
      case OperationKind::reduce_scatter:
        return reduce_scatter_seconds(link_, size(), collective.bytes());
      case OperationKind::all_gather:
        return all_gather_seconds(link_, size(), collective.bytes());
      case OperationKind::broadcast:
        return broadcast_seconds(link_, size(), collective.bytes());
      case OperationKind::barrier:
        return barrier_seconds(link_, size());
      case OperationKind::send:
      case OperationKind::receive:
      case OperationKind::exchange:
        break;  // messages use the time of another link
    }
    fail_check("a collective", __FILE__, __LINE__, to_string(collective.kind));
  }

  // Computes when the oldest unsettled collective is done.
  void settle_next() {
    free_at_ = unsettled_.front()->settle(free_at_);
    unsettled_.pop_front();
  }

  RankClock& clock_;
  const Link link_;                  // for collectives
  std::vector<Link> message_links_;  // by member

  double free_at_ = 0;                    // when the last settled collective is done
  std::vector<double> messages_free_at_;  // when the last message from each member is done
  // Collectives whose buffers the inner group may still read or write. They are kept until they are done, even if the
  // caller has destroyed its Work: after a failure, a rank does not wait for the operations that it has started.
  std::deque<std::shared_ptr<Collective>> unsettled_;
  std::deque<std::shared_ptr<SentMessage>> messages_;
};

class TimedWorld final : public WrappedWorld {
 public:
  // Uses the clock of `inner` if `clock` is null.
  TimedWorld(std::unique_ptr<World> inner, ClusterDescription cluster, std::shared_ptr<RankClock> clock)
      : WrappedWorld(std::move(inner), clock), cluster_(std::move(cluster)), own_clock_(std::move(clock)) {}

  RankClock& clock() override { return own_clock_ ? *own_clock_ : inner().clock(); }

 private:
  std::unique_ptr<Communicator> make_group(const std::vector<int64_t>& ranks, int64_t /*member*/) override {
    return std::make_unique<TimedCommunicator>(inner().group(ranks), clock(), cluster_);
  }

  const ClusterDescription cluster_;
  const std::shared_ptr<RankClock> own_clock_;
};

}  // namespace

std::unique_ptr<World> with_links(std::unique_ptr<World> world, const ClusterDescription& cluster, ClockKind clock) {
  COPUS_CHECK(clock == ClockKind::real || clock == ClockKind::modelled ||
              (cluster.within_node.bytes_per_second > 0 && cluster.between_nodes.bytes_per_second > 0));
  switch (clock) {
    case ClockKind::real:
    case ClockKind::modelled:
      return world;
    case ClockKind::wall:
      return std::make_unique<TimedWorld>(std::move(world), cluster, nullptr);
    case ClockKind::virtual_time:
      return std::make_unique<TimedWorld>(std::move(world), cluster,
                                          std::make_shared<VirtualClock>(cluster.flops_per_second));
  }
  fail_check("known clock", __FILE__, __LINE__, "");
}

}  // namespace copus
