#include "copus/train/step_agreement.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>

#include "copus/base/error.h"
#include "copus/description/configuration_fields.h"

namespace copus {

namespace {

// Layout of the message: the sums, rank 0's intent, its factor on the learning rate (0: none), then one entry for each
// rank, which only that rank fills, so that the sum over ranks holds every rank's entry. Numbers in entries travel as
// the bits of their doubles.
constexpr int64_t words_per_rank = 3 + num_step_parts;  // stop, begin, now, seconds by part

// Appends an exact sum as integers, whose sum over the ranks is then that of the values.
void append(std::vector<int64_t>& words, const ExactSum& sum) {
  words.insert(words.end(), sum.words().begin(), sum.words().end());
}

// Takes the first sum from the rest of a message.
ExactSum take_sum(std::span<const int64_t>& words) {
  ExactSum sum;
  std::copy_n(words.begin(), ExactSum::num_words, sum.words().begin());
  words = words.subspan(ExactSum::num_words);
  return sum;
}

int64_t to_word(double value) { return std::bit_cast<int64_t>(value); }
double to_double(int64_t word) { return std::bit_cast<double>(word); }

// Rank 0's intent is its configuration, then the rest. All words are 0 where there is none; no configuration is all
// zeros.
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

}  // namespace

StepAgreement agree(const StepReport& report, Communicator& everyone) {
  std::vector<int64_t> words;
  for (const ExactSum* sum : {&report.squared_norm, &report.small_squared_norms, &report.loss}) append(words, *sum);
  const bool tells = everyone.rank() == 0 && report.intent;
  const std::array<int64_t, words_of_intent> intent =
      tells ? to_words(*report.intent) : std::array<int64_t, words_of_intent>{};
  words.insert(words.end(), intent.begin(), intent.end());
  words.push_back(everyone.rank() == 0 ? to_word(report.rate_factor.value_or(0)) : 0);
  const int64_t first_entry = std::ssize(words);
  words.resize(first_entry + everyone.size() * words_per_rank);
  int64_t* const mine = &words[first_entry + everyone.rank() * words_per_rank];
  mine[0] = static_cast<int64_t>(report.stop);
  mine[1] = to_word(report.begin);
  mine[2] = to_word(report.now);
  std::transform(report.seconds.begin(), report.seconds.end(), mine + 3, to_word);

  everyone.all_reduce(words.data(), std::ssize(words), DataType::int64);

  StepAgreement agreement;
  std::span<const int64_t> entries = words;
  agreement.squared_norm = take_sum(entries).value();
  agreement.small_squared_norms = take_sum(entries).value();
  agreement.loss = take_sum(entries).value();
  agreement.intent = take_intent(entries);
  if (entries.front() != 0) agreement.rate_factor = to_double(entries.front());
  entries = entries.subspan(1);
  agreement.stop = static_cast<StopReason>(entries[0]);
  agreement.now = to_double(entries[2]);
  for (int64_t entry = 0; entry < std::ssize(entries); entry += words_per_rank) {
    agreement.now = std::max(agreement.now, to_double(entries[entry + 2]));
    PartSeconds& seconds = agreement.by_rank.emplace_back();
    for (size_t part = 0; part < seconds.size(); ++part) seconds[part] = to_double(entries[entry + 3 + part]);
  }
  agreement.seconds = agreement.now - to_double(entries[1]);
  return agreement;
}

StopReason agree_on_stop(StopReason reason, Communicator& everyone) {
  auto word = static_cast<int64_t>(reason);
  everyone.broadcast(&word, 1, DataType::int64, 0);
  return static_cast<StopReason>(word);
}

std::optional<double> agree_on_mean_loss(const ExactSum& loss, int64_t tokens, Communicator& everyone) {
  std::vector<int64_t> words;
  append(words, loss);
  words.push_back(tokens);
  everyone.all_reduce(words.data(), std::ssize(words), DataType::int64);
  std::span<const int64_t> all = words;
  const ExactSum sum = take_sum(all);
  if (all.front() == 0) return std::nullopt;
  return sum.value() / static_cast<double>(all.front());
}

std::optional<Obstacle> agree_on_obstacle(const std::optional<Obstacle>& mine, uint64_t alike, Communicator& everyone) {
  std::string reason = mine ? mine->reason : "";
  using Words = std::array<int64_t, 3>;
  const Words words = {std::ssize(reason), mine && mine->is_lack_of_memory, std::bit_cast<int64_t>(alike)};
  std::vector<Words> all(everyone.size());
  const std::vector<int64_t> counts(everyone.size(), std::ssize(words));
  everyone.all_gather(words.data(), all.data(), counts, DataType::int64);
  for (int64_t rank = 0; rank < everyone.size(); ++rank) {
    const auto& [size, is_lack_of_memory, hash] = all[rank];
    if (size == 0) continue;
    reason.resize(size);
    everyone.broadcast(reason.data(), size, DataType::byte, rank);
    return Obstacle{concat("rank ", rank, ": ", reason), is_lack_of_memory != 0};
  }
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank][2] != all[0][2]) return Obstacle{concat("rank ", rank, ": its plan is not that of rank 0")};
  }
  return std::nullopt;
}

std::vector<std::string> gather_bytes(const std::string& mine, World& world) {
  Communicator& everyone = world.everyone();
  if (world.rank() != 0) {
    const int64_t size = std::ssize(mine);
    everyone.send(&size, 1, DataType::int64, 0);
    everyone.send(mine.data(), size, DataType::byte, 0);
    return {};
  }
  std::vector<std::string> all = {mine};
  for (int64_t rank = 1; rank < world.size(); ++rank) {
    int64_t size = 0;
    everyone.receive(&size, 1, DataType::int64, rank);
    all.emplace_back(size, '\0');
    everyone.receive(all.back().data(), size, DataType::byte, rank);
  }
  return all;
}

}  // namespace copus
