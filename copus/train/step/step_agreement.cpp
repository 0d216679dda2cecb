#include "copus/train/step/step_agreement.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <numeric>
#include <span>

#include "copus/base/error.h"
#include "copus/comm/health/rank_tree.h"
#include "copus/description/configuration_fields.h"

namespace copus {

namespace {

// Layout of the message:
// - the sums;
// - from rank 0: the intent, the factor on the learning rate (0: none), the time at which the step began, and the
//   seconds since then;
// - one word for the ranks' reasons to stop.
//
// Other ranks send zeros in rank 0's fields, so that the sum over ranks has rank 0's values. Rank 0's doubles are sent
// as their bits.

// Appends an exact sum as integers. Adding these integers over the ranks gives the exact sum over the ranks.
void append(std::vector<int64_t>& words, const ExactSum& sum) {
  words.insert(words.end(), sum.words().begin(), sum.words().end());
}

// Removes the first sum from the words of a message and returns it.
ExactSum take_sum(std::span<const int64_t>& words) {
  ExactSum sum;
  std::copy_n(words.begin(), ExactSum::num_words, sum.words().begin());
  words = words.subspan(ExactSum::num_words);
  return sum;
}

int64_t to_word(double value) { return std::bit_cast<int64_t>(value); }
double to_double(int64_t word) { return std::bit_cast<double>(word); }

// Number of words of rank 0's intent: its configuration, then its other fields. Zeros in all words mean no intent,
// because no configuration is all zeros.
constexpr size_t words_of_intent = num_configuration_fields + 3;

std::array<int64_t, words_of_intent> to_words(const SwitchIntent& intent) {
  std::array<int64_t, words_of_intent> words;
  const ConfigurationWords configuration = to_words(intent.configuration);
  int64_t* const rest = std::copy(configuration.begin(), configuration.end(), words.data());
  rest[0] = intent.commit_after_step;
  rest[1] = to_word(intent.rate_factor);
  rest[2] = std::bit_cast<int64_t>(intent.inputs_hash);
  return words;
}

std::optional<SwitchIntent> take_intent(std::span<const int64_t>& words) {
  const auto configuration = words.first<num_configuration_fields>();
  const auto rest = words.subspan<num_configuration_fields, 3>();
  words = words.subspan(words_of_intent);
  if (configuration.front() == 0) return std::nullopt;
  return SwitchIntent{.configuration = configuration_of_words(configuration),
                      .commit_after_step = rest[0],
                      .rate_factor = to_double(rest[1]),
                      .inputs_hash = std::bit_cast<uint64_t>(rest[2])};
}

// Encodes a rank's reason to stop in one word: rank 0's reason, and whether the rank received a signal. The sum of the
// words over ranks still shows both.
constexpr int64_t one_interrupted = 1;
constexpr int64_t one_terminated = int64_t{1} << 28;  // leaves room to count fewer than 2^28 ranks
constexpr int64_t one_reason = int64_t{1} << 56;
static_assert(static_cast<int64_t>(StopReason::calibrate) < INT64_MAX / one_reason);

int64_t to_word(StopReason reason, int64_t rank) {
  const int64_t told = reason == StopReason::interrupt   ? one_interrupted
                       : reason == StopReason::terminate ? one_terminated
                                                         : 0;
  return (rank == 0 ? static_cast<int64_t>(reason) * one_reason : 0) + told;
}

StopReason stop_of_word(int64_t word) {
  if (word % one_terminated != 0) return StopReason::interrupt;
  if (word % one_reason != 0) return StopReason::terminate;
  return static_cast<StopReason>(word / one_reason);
}

}  // namespace

StepAgreement agree_on_numbers(const StepReport& report, Communicator& everyone) {
  std::vector<int64_t> words;
  for (const ExactSum* sum : {&report.squared_norm, &report.small_squared_norms, &report.loss}) append(words, *sum);
  const size_t size_of_sums = words.size();
  words.resize(size_of_sums + words_of_intent + 3);
  if (everyone.rank() == 0) {
    int64_t* rest = &words[size_of_sums];
    if (report.intent) std::ranges::copy(to_words(*report.intent), rest);
    rest += words_of_intent;
    rest[0] = to_word(report.rate_factor.value_or(0));
    rest[1] = to_word(report.begin);
    rest[2] = to_word(report.now - report.begin);
  }
  words.push_back(to_word(report.stop, everyone.rank()));
  everyone.all_reduce(words.data(), std::ssize(words), DataType::int64);

  StepAgreement agreement;
  std::span<const int64_t> rest = words;
  agreement.squared_norm = take_sum(rest).value();
  agreement.small_squared_norms = take_sum(rest).value();
  agreement.loss = take_sum(rest).value();
  agreement.intent = take_intent(rest);
  if (rest[0] != 0) agreement.rate_factor = to_double(rest[0]);
  agreement.begin = to_double(rest[1]);
  agreement.seconds_of_rank_0 = to_double(rest[2]);
  agreement.stop = stop_of_word(rest[3]);
  agreement.now = report.now;
  agreement.seconds = agreement.now - agreement.begin;
  return agreement;
}

void agree_on_time(StepAgreement& agreement, Communicator& everyone) {
  everyone.all_reduce(&agreement.now, 1, DataType::float64, Reduction::maximum);
  agreement.seconds = agreement.now - agreement.begin;
}

std::vector<double> agree_on_sums(std::span<const ExactSum> mine, Communicator& everyone) {
  std::vector<int64_t> words;
  for (const ExactSum& sum : mine) append(words, sum);
  everyone.all_reduce(words.data(), std::ssize(words), DataType::int64);
  std::vector<double> values;
  for (std::span<const int64_t> rest = words; !rest.empty();) values.push_back(take_sum(rest).value());
  return values;
}

StopReason agree_on_stop(StopReason reason, Communicator& everyone) {
  int64_t word = to_word(reason, everyone.rank());
  everyone.all_reduce(&word, 1, DataType::int64);
  return stop_of_word(word);
}

std::vector<std::optional<double>> agree_on_mean_losses(const std::vector<LossSum>& sums, Communicator& everyone) {
  std::vector<int64_t> words;
  for (const LossSum& sum : sums) {
    append(words, sum.loss);
    words.push_back(sum.tokens);
  }
  if (words.empty()) return {};
  everyone.all_reduce(words.data(), std::ssize(words), DataType::int64);
  std::vector<std::optional<double>> means;
  for (std::span<const int64_t> rest = words; !rest.empty(); rest = rest.subspan(1)) {
    const double loss = take_sum(rest).value();
    const auto tokens = static_cast<double>(rest.front());
    means.push_back(tokens > 0 ? std::optional(loss / tokens) : std::nullopt);
  }
  return means;
}

std::optional<Obstacle> agree_on_obstacle(const std::optional<Obstacle>& mine, uint64_t alike, Communicator& everyone) {
  // Larger for lower ranks, so that the maximum selects the first rank with an obstacle.
  const int64_t precedence = everyone.size() - everyone.rank();
  const auto hash = std::bit_cast<int64_t>(alike);
  // The maxima of the last two words are complements exactly if all ranks have the same hash.
  std::array<int64_t, 3> most = {mine ? precedence : 0, hash, ~hash};
  everyone.all_reduce(most.data(), std::ssize(most), DataType::int64, Reduction::maximum);
  if (most[0] > 0) {
    const int64_t rank = everyone.size() - most[0];
    int64_t is_lack_of_memory = mine && mine->is_lack_of_memory;
    everyone.broadcast(&is_lack_of_memory, 1, DataType::int64, rank);
    const std::string reason = broadcast_text(rank == everyone.rank() ? mine->reason : "", rank, everyone);
    return Obstacle{concat("rank ", rank, ": ", reason), is_lack_of_memory != 0};
  }
  if (most[1] == ~most[2]) return std::nullopt;
  int64_t hash_of_first = hash;
  everyone.broadcast(&hash_of_first, 1, DataType::int64, 0);
  int64_t differs = hash == hash_of_first ? 0 : precedence;
  everyone.all_reduce(&differs, 1, DataType::int64, Reduction::maximum);
  return Obstacle{concat("rank ", everyone.size() - differs, ": its plan is not that of rank 0")};
}

std::string broadcast_text(std::string text, int64_t from, Communicator& everyone) {
  int64_t size = std::ssize(text);
  everyone.broadcast(&size, 1, DataType::int64, from);
  text.resize(size);
  everyone.broadcast(text.data(), size, DataType::byte, from);
  return text;
}

// Texts go up the tree of ranks. Each rank appends its subtree's texts to its own, which gives the order of the ranks.
std::vector<std::string> gather_bytes(const std::string& mine, World& world) {
  Communicator& everyone = world.everyone();
  const RankTree tree(world.rank(), world.size());
  std::vector<int64_t> sizes = {std::ssize(mine)};  // of this rank and its subtree
  std::string texts = mine;                         // concatenated
  for (const int64_t child : tree.children()) {
    const int64_t known = std::ssize(sizes), count = RankTree(child, world.size()).end() - child;
    sizes.resize(known + count);
    everyone.receive(&sizes[known], count, DataType::int64, child);
    const int64_t begin = std::ssize(texts);
    const int64_t bytes = std::accumulate(sizes.begin() + known, sizes.end(), int64_t{0});
    texts.resize(begin + bytes);
    everyone.receive(texts.data() + begin, bytes, DataType::byte, child);
  }
  if (!tree.is_root()) {
    everyone.send(sizes.data(), std::ssize(sizes), DataType::int64, tree.parent());
    everyone.send(texts.data(), std::ssize(texts), DataType::byte, tree.parent());
    return {};
  }
  std::vector<std::string> all;
  for (size_t begin = 0; const int64_t size : sizes) {
    all.push_back(texts.substr(begin, static_cast<size_t>(size)));
    begin += static_cast<size_t>(size);
  }
  return all;
}

}  // namespace copus
