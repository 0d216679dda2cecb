#include "copus/train/step_agreement.h"

#include <algorithm>
#include <bit>
#include <cstdint>

namespace copus {

namespace {

// The message: both sums, then one entry for each rank, which only that rank fills, so that the sum over ranks is
// everybody's. Numbers in entries travel as the bits of their doubles.
constexpr size_t sum_words = ExactSum::num_words;
constexpr size_t words_per_rank = 3 + static_cast<size_t>(num_step_parts);  // stop, begin, now, seconds by part

int64_t to_word(double value) { return std::bit_cast<int64_t>(value); }
double to_double(int64_t word) { return std::bit_cast<double>(word); }

ExactSum read_sum(const std::vector<int64_t>& words, size_t first) {
  ExactSum sum;
  std::copy_n(words.begin() + static_cast<std::ptrdiff_t>(first), sum_words, sum.words().begin());
  return sum;
}

}  // namespace

StepAgreement agree(const StepReport& report, Communicator& everyone) {
  const size_t entries = 2 * sum_words;
  std::vector<int64_t> words(entries + static_cast<size_t>(everyone.size()) * words_per_rank);
  std::copy(report.squared_norm.words().begin(), report.squared_norm.words().end(), words.begin());
  std::copy(report.loss.words().begin(), report.loss.words().end(), words.begin() + sum_words);
  int64_t* const mine = &words[entries + static_cast<size_t>(everyone.rank()) * words_per_rank];
  mine[0] = static_cast<int64_t>(report.stop);
  mine[1] = to_word(report.begin);
  mine[2] = to_word(report.now);
  std::transform(report.seconds.begin(), report.seconds.end(), mine + 3, to_word);

  everyone.all_reduce(words.data(), static_cast<int64_t>(words.size()), DataType::int64);

  StepAgreement agreement;
  agreement.squared_norm = read_sum(words, 0).value();
  agreement.loss = read_sum(words, sum_words).value();
  agreement.stop = static_cast<StopReason>(words[entries]);
  agreement.now = to_double(words[entries + 2]);
  for (size_t entry = entries; entry < words.size(); entry += words_per_rank) {
    agreement.now = std::max(agreement.now, to_double(words[entry + 2]));
    PartSeconds& seconds = agreement.by_rank.emplace_back();
    for (size_t part = 0; part < seconds.size(); ++part) seconds[part] = to_double(words[entry + 3 + part]);
  }
  agreement.seconds = agreement.now - to_double(words[entries + 1]);
  return agreement;
}

StopReason agree_on_stop(StopReason reason, Communicator& everyone) {
  auto word = static_cast<int64_t>(reason);
  everyone.broadcast(&word, 1, DataType::int64, 0);
  return static_cast<StopReason>(word);
}

}  // namespace copus
