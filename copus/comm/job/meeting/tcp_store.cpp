#include "copus/comm/job/meeting/tcp_store.h"

#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "copus/base/error.h"
#include "copus/comm/background_thread.h"
#include "copus/comm/messages/tcp_socket.h"
#include "copus/comm/rank_failure.h"

namespace copus {

namespace {

using Clock = std::chrono::steady_clock;

// A store that is silent for this long counts as dead.
constexpr double longest_answer_seconds = 10;
constexpr auto look_again_after = std::chrono::milliseconds(25);
constexpr auto ask_again_after = std::chrono::milliseconds(5);

std::chrono::milliseconds milliseconds(double seconds) {
  // 0 would mean to wait forever.
  return std::chrono::milliseconds(std::max<int64_t>(static_cast<int64_t>(seconds * 1000), 1));
}

c10d::TCPStoreOptions options_for(const MeetingAddress& address) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(address.port);
  options.isServer = address.serve;
  options.waitWorkers = false;
  options.timeout = milliseconds(address.wait_seconds);
  return options;
}

// The first line of a c10d exception; a stack trace follows.
std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

std::string place_of(const MeetingAddress& address) {
  return concat("the ranks' meeting place at ", address.host, ":", address.port);
}

[[noreturn]] void refuse_to_meet(const MeetingAddress& address, const std::string& why) {
  throw UserError(concat("cannot ", address.serve ? "serve" : "reach", " ", place_of(address), " (", why,
                         "); choose a free port with MASTER_PORT, and rank 0's host with MASTER_ADDR"));
}

// How a call ended: `useless` and `silent` calls were abandoned.
enum class Outcome { done, useless, silent };

// Runs a c10d call on its own thread, and abandons the thread when the call's time is over. This is needed because some
// c10d calls have no deadline if the process that serves the store is stopped. Rethrows exceptions of the call.
template <class Result>
Outcome call_within(double seconds, const std::function<bool()>& is_useless, std::function<Result()> call,
                    std::optional<Result>& result) {
  auto promise = std::make_shared<std::promise<Result>>();
  std::future<Result> future = promise->get_future();
  background_thread([promise, call = std::move(call)] {
    try {
      promise->set_value(call());
    } catch (...) {
      promise->set_exception(std::current_exception());
    }
  }).detach();
  const auto end = Clock::now() + milliseconds(seconds);
  while (future.wait_for(look_again_after) != std::future_status::ready) {
    if (is_useless && is_useless()) return Outcome::useless;
    if (Clock::now() > end) return Outcome::silent;
  }
  result = future.get();
  return Outcome::done;
}

}  // namespace

class TcpStore::Implementation {
 public:
  explicit Implementation(MeetingAddress address) : address_(std::move(address)) {}

  // Returns false if `is_useless` has returned true.
  bool open() {
    using Store = std::shared_ptr<c10d::TCPStore>;
    // Waits for the listener first, because c10d's own connecting cannot be interrupted.
    if (!address_.serve &&
        !wait_for_listener(address_.host, address_.port, address_.wait_seconds, address_.is_useless)) {
      if (address_.is_useless && address_.is_useless()) return false;
      refuse_to_meet(address_, concat("nobody listened there within ", address_.wait_seconds, " s"));
    }
    c10d::TCPStoreOptions options = options_for(address_);
    if (address_.serve) {
      // Binds one address, so that c10d does not listen at all of them. If that is not possible, the socket is not
      // open, and c10d listens at all addresses or reports why it cannot. c10d closes the descriptor.
      const TcpSocket bound = bind_to(address_.host, address_.port);
      if (bound.is_open()) options.masterListenFd = ::fcntl(bound.descriptor(), F_DUPFD_CLOEXEC, 0);
    }
    std::optional<Store> made;
    Outcome outcome = Outcome::done;
    try {
      outcome = call_within<Store>(
          address_.wait_seconds, address_.is_useless,
          [host = address_.host, options] { return std::make_shared<c10d::TCPStore>(host, options); }, made);
    } catch (const std::exception& error) {
      refuse_to_meet(address_, first_line(error));
    }
    if (outcome == Outcome::silent) refuse_to_meet(address_, concat("no answer within ", address_.wait_seconds, " s"));
    if (made) store_ = *made;
    return outcome == Outcome::done;
  }

  // Returns nothing if `is_useless` has returned true.
  template <class Result>
  std::optional<Result> call(double seconds, const std::function<Result(c10d::TCPStore&)>& what) {
    std::optional<Result> result;
    Outcome outcome = Outcome::done;
    try {
      outcome = call_within<Result>(
          seconds + longest_answer_seconds, address_.is_useless, [store = store_, what] { return what(*store); },
          result);
    } catch (const std::exception&) {
      fail("is gone");
    }
    if (outcome == Outcome::silent) fail(concat("did not answer for ", longest_answer_seconds, " s"));
    return result;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw RankFailure({-1, "", concat(place_of(address_), " ", what)});
  }

  const MeetingAddress address_;
  std::shared_ptr<c10d::TCPStore> store_;  // shared with abandoned calls
};

TcpStore::TcpStore(std::unique_ptr<Implementation> implementation) : implementation_(std::move(implementation)) {}
TcpStore::~TcpStore() = default;

std::unique_ptr<TcpStore> TcpStore::open(const MeetingAddress& address) {
  MeetingAddress place = address;
  // "localhost" has several addresses. c10d would try each of them, and may insist on the first one.
  if (place.host == "localhost") place.host = "127.0.0.1";
  auto implementation = std::make_unique<Implementation>(std::move(place));
  if (!implementation->open()) return nullptr;
  return std::unique_ptr<TcpStore>(new TcpStore(std::move(implementation)));
}

void TcpStore::set(const std::string& key, const std::string& value) {
  implementation_->call<bool>(0, [key, value](c10d::TCPStore& store) {
    static_cast<c10d::Store&>(store).set(key, value);
    return true;
  });
}

// Polls instead of calling c10d's own wait, which ends in an exception with a stack trace. Making that trace takes
// longer than the difference between two ranks' deadlines, so another rank would report this rank as missing.
std::optional<std::string> TcpStore::get(const std::string& key, double wait_seconds) {
  const auto end = Clock::now() + milliseconds(wait_seconds);
  const auto ask = [key, end](c10d::TCPStore& store) -> std::optional<std::string> {
    while (!store.check({key})) {
      if (Clock::now() >= end) return std::nullopt;
      std::this_thread::sleep_for(ask_again_after);
    }
    return store.get_to_str(key);
  };
  return implementation_->call<std::optional<std::string>>(wait_seconds, ask).value_or(std::nullopt);
}

bool TcpStore::is_first(const std::string& key) {
  const auto count = [key](c10d::TCPStore& store) { return store.add(key, 1); };
  return implementation_->call<int64_t>(0, count) == 1;
}

}  // namespace copus
