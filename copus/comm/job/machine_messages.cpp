#include "copus/comm/job/machine_messages.h"

#include <utility>

#include "copus/comm/job/packing.h"

namespace copus {

namespace {

// Each kind of message is written and read by two functions that stand together.
void write(Packer& to, const BeginJob& order) { to.add(order.seconds); }
void read(Unpacker& from, BeginJob& order) { order.seconds = from.real(); }

void write(Packer& to, const StartProcess& order) {
  for (const int64_t number : {order.number, order.rank, order.local_rank}) to.add(number);
  to.add(std::string_view(order.prefix));
}
void read(Unpacker& from, StartProcess& order) {
  for (int64_t* const number : {&order.number, &order.rank, &order.local_rank}) *number = from.number();
  order.prefix = from.text();
}

void write(Packer& to, const KillProcess& order) { to.add(order.number); }
void read(Unpacker& from, KillProcess& order) { order.number = from.number(); }

void write(Packer& to, const ContinueProcess& order) { to.add(order.number); }
void read(Unpacker& from, ContinueProcess& order) { order.number = from.number(); }

void write(Packer& to, const TellProcess& order) {
  to.add(order.number);
  to.add(static_cast<int64_t>(order.kind));
}
void read(Unpacker& from, TellProcess& order) {
  order.number = from.number();
  order.kind = static_cast<FromLauncher::Kind>(from.number());
  using Kind = FromLauncher::Kind;
  // Epochs go to ranks as orders of their own.
  if (order.kind != Kind::regroup && order.kind != Kind::go && order.kind != Kind::stop) from.refuse();
}

void write(Packer& to, const BeginEpoch& order) { to.add(order.epoch); }
void read(Unpacker& from, BeginEpoch& order) { order.epoch = from.epoch(); }

void write(Packer& to, const TellOfFailure& order) {
  to.add(order.epoch);
  to.add(order.failure);
}
void read(Unpacker& from, TellOfFailure& order) {
  order.epoch = from.number();
  order.failure = from.report();
}

void write(Packer& to, const PassSignal& order) { to.add(order.signal); }
void read(Unpacker& from, PassSignal& order) { order.signal = from.number(); }

void write(Packer& /*to*/, const EndJob& /*order*/) {}
void read(Unpacker& /*from*/, EndJob& /*order*/) {}

void write(Packer& to, const Conclude& order) { to.add(order.code); }
void read(Unpacker& from, Conclude& order) { order.code = from.number(); }

void write(Packer& to, const Arrived& news) {
  to.add(std::string_view(news.host));
  to.add(news.num_machines);
  to.add(news.ranks_per_machine);
}
void read(Unpacker& from, Arrived& news) {
  news.host = from.text();
  news.num_machines = from.number();
  news.ranks_per_machine = from.number();
}

void write(Packer& to, const Started& news) {
  to.add(news.number);
  to.add(news.pid);
}
void read(Unpacker& from, Started& news) {
  news.number = from.number();
  news.pid = from.number();
}

void write(Packer& to, const NotStarted& news) {
  to.add(news.number);
  to.add(std::string_view(news.why));
}
void read(Unpacker& from, NotStarted& news) {
  news.number = from.number();
  news.why = from.text();
}

void write(Packer& to, const Said& news) {
  to.add(news.number);
  to.add(std::string_view(packed(news.message)));
}
void read(Unpacker& from, Said& news) {
  news.number = from.number();
  if (auto message = from_rank(from.text())) {
    news.message = std::move(*message);
  } else {
    from.refuse();
  }
}

void write(Packer& to, const Ended& news) {
  to.add(news.number);
  to.add(news.status);
  to.add(std::string_view(news.held_back));
}
void read(Unpacker& from, Ended& news) {
  news.number = from.number();
  news.status = from.number();
  news.held_back = from.text();
}

void write(Packer& to, const Stopped& news) {
  to.add(news.number);
  to.add(static_cast<int64_t>(news.is_stopped));
}
void read(Unpacker& from, Stopped& news) {
  news.number = from.number();
  news.is_stopped = from.number() != 0;
}

void write(Packer& /*to*/, const Leaves& /*news*/) {}
void read(Unpacker& /*from*/, Leaves& /*news*/) {}

// Before a message stands which kind of its variant it is.
template <class Messages>
std::string packed_one_of(const Messages& message) {
  Packer packer;
  packer.add(static_cast<int64_t>(message.index()));
  std::visit([&](const auto& one) { write(packer, one); }, message);
  return packer.bytes();
}

template <size_t Kind, class Messages>
void read_if_it_is(int64_t kind, Unpacker unpacker, std::optional<Messages>* result) {
  if (kind != static_cast<int64_t>(Kind)) return;
  std::variant_alternative_t<Kind, Messages> message;
  read(unpacker, message);
  if (unpacker.is_whole()) *result = std::move(message);
}

template <class Messages, size_t... Kinds>
std::optional<Messages> one_of(std::string_view bytes, std::index_sequence<Kinds...> /*all*/) {
  Unpacker unpacker(bytes);
  const int64_t kind = unpacker.number();
  std::optional<Messages> result;
  (read_if_it_is<Kinds>(kind, unpacker, &result), ...);
  return result;
}

template <class Messages>
std::optional<Messages> one_of(std::string_view bytes) {
  return one_of<Messages>(bytes, std::make_index_sequence<std::variant_size_v<Messages>>());
}

}  // namespace

std::string packed(const Order& order) { return packed_one_of(order); }
std::string packed(const News& news) { return packed_one_of(news); }

std::optional<Order> order_from(std::string_view bytes) { return one_of<Order>(bytes); }
std::optional<News> news_from(std::string_view bytes) { return one_of<News>(bytes); }

}  // namespace copus
