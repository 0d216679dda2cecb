#include "copus/comm/job/healing/machine_messages.h"

#include <tuple>
#include <type_traits>
#include <utility>

#include "copus/comm/job/member/packing.h"

namespace copus {

namespace {

// The fields of each kind of message, in the order in which they are sent. Kinds that are not listed have no fields.
template <class Message>
constexpr std::tuple<> fields{};
template <>
constexpr auto fields<BeginJob> = std::tuple(&BeginJob::seconds);
template <>
constexpr auto fields<StartProcess> =
    std::tuple(&StartProcess::number, &StartProcess::rank, &StartProcess::local_rank, &StartProcess::prefix);
template <>
constexpr auto fields<KillProcess> = std::tuple(&KillProcess::number);
template <>
constexpr auto fields<ContinueProcess> = std::tuple(&ContinueProcess::number);
template <>
constexpr auto fields<TellProcess> = std::tuple(&TellProcess::number, &TellProcess::kind);
template <>
constexpr auto fields<BeginEpoch> = std::tuple(&BeginEpoch::epoch);
template <>
constexpr auto fields<TellOfFailure> = std::tuple(&TellOfFailure::epoch, &TellOfFailure::failure);
template <>
constexpr auto fields<PassSignal> = std::tuple(&PassSignal::signal);
template <>
constexpr auto fields<Conclude> = std::tuple(&Conclude::code);
template <>
constexpr auto fields<Arrived> = std::tuple(&Arrived::host, &Arrived::num_machines, &Arrived::ranks_per_machine);
template <>
constexpr auto fields<Started> = std::tuple(&Started::number, &Started::pid);
template <>
constexpr auto fields<NotStarted> = std::tuple(&NotStarted::number, &NotStarted::why);
template <>
constexpr auto fields<Said> = std::tuple(&Said::number, &Said::message);
template <>
constexpr auto fields<Ended> = std::tuple(&Ended::number, &Ended::status, &Ended::held_back);
template <>
constexpr auto fields<Stopped> = std::tuple(&Stopped::number, &Stopped::is_stopped);

template <class Field>
void write(Packer& to, const Field& field) {
  if constexpr (std::is_same_v<Field, FromRank>) {
    to.add(std::string_view(packed(field)));
  } else if constexpr (std::is_same_v<Field, std::string>) {
    to.add(std::string_view(field));
  } else if constexpr (std::is_same_v<Field, bool> || std::is_enum_v<Field>) {
    to.add(static_cast<int64_t>(field));
  } else {
    to.add(field);
  }
}

void read(Unpacker& from, int64_t& field) { field = from.number(); }
void read(Unpacker& from, bool& field) { field = from.number() != 0; }
void read(Unpacker& from, double& field) { field = from.real(); }
void read(Unpacker& from, std::string& field) { field = from.text(); }
void read(Unpacker& from, FailureReport& field) { field = from.report(); }
void read(Unpacker& from, Epoch& field) { field = from.epoch(); }
// Epochs are sent to ranks by a separate order.
void read(Unpacker& from, FromLauncher::Kind& field) {
  using Kind = FromLauncher::Kind;
  field = static_cast<Kind>(from.number());
  if (field != Kind::regroup && field != Kind::go && field != Kind::stop) from.refuse();
}
void read(Unpacker& from, FromRank& field) {
  if (auto message = from_rank(from.text())) {
    field = std::move(*message);
  } else {
    from.refuse();
  }
}

// A message is preceded by the index of its kind in the variant.
template <class Messages>
std::string packed_one_of(const Messages& message) {
  Packer packer;
  packer.add(static_cast<int64_t>(message.index()));
  const auto write_all = [&]<class One>(const One& one) {
    std::apply([&](const auto... field) { (write(packer, one.*field), ...); }, fields<One>);
  };
  std::visit(write_all, message);
  return packer.bytes();
}

template <size_t Kind, class Messages>
void read_if_it_is(int64_t kind, Unpacker unpacker, std::optional<Messages>* result) {
  if (kind != static_cast<int64_t>(Kind)) return;
  using One = std::variant_alternative_t<Kind, Messages>;
  One message;
  std::apply([&](const auto... field) { (read(unpacker, message.*field), ...); }, fields<One>);
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
