#include "copus/data/dataset.h"

#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <iomanip>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/mix_bits.h"
#include "copus/data/blend.h"
#include "copus/data/packing.h"
#include "copus/data/permutation.h"
#include "copus/data/token_source.h"

namespace copus {
namespace {

// The orders of epochs follow from hashes of (seed, 1, source, epoch).
constexpr uint64_t epoch_keys = 1;

// The version of the order of samples. Raise it when the same seed gives another order, so that no older run resumes in
// a different order.
constexpr uint64_t order_version = 2;

// Returns a hash of the contents of a source. Of a small source it covers all tokens and document ends. Of a larger
// source it covers max_windows windows of tokens and as many document ends, evenly spread. Reading the windows also
// checks token ids throughout the file. So a corpus made with another tokenizer is noticed when it is opened and not
// hours later.
uint64_t hash_contents(uint64_t hash, const TokenSource& source) {
  constexpr int64_t max_windows = 64;
  constexpr int64_t max_window = 256;
  hash = extend_hash(hash, source.is_text() ? 1 : 0);
  hash = extend_hash(hash, static_cast<uint64_t>(source.size()));
  hash = extend_hash(hash, static_cast<uint64_t>(source.num_documents()));
  std::vector<int64_t> tokens;
  const auto add_tokens = [&](int64_t begin, int64_t count) {
    tokens.resize(static_cast<std::size_t>(count));
    source.read(begin, count, tokens.data());
    for (const int64_t token : tokens) hash = extend_hash(hash, static_cast<uint64_t>(token));
  };
  const auto add_end = [&](int64_t document) {
    hash = extend_hash(hash, static_cast<uint64_t>(source.document_end(document)));
  };
  if (source.size() <= max_windows * max_window) {
    add_tokens(0, source.size());
    for (int64_t document = 0; document < source.num_documents(); ++document) add_end(document);
    return hash;
  }
  for (int64_t i = 0; i < max_windows; ++i) {
    // Floating point avoids overflow of the product of two large counts. It is exact enough, and the same on every
    // machine.
    const double part = static_cast<double>(i) / (max_windows - 1);
    add_tokens(static_cast<int64_t>(part * static_cast<double>(source.size() - max_window)), max_window);
    add_end(static_cast<int64_t>(part * static_cast<double>(source.num_documents() - 1)));
  }
  return hash;
}

}  // namespace

struct Dataset::Implementation {
  std::vector<std::unique_ptr<TokenSource>> sources;  // those of data.train, then those of data.held_out
  std::vector<PackedTokens> train;                    // one for each of data.train
  std::vector<PackedTokens> held_out;                 // those that have samples
  std::vector<HeldOutSource> held_out_sources;        // one for each of these
  std::vector<double> held_out_shares;                // likewise, in proportion
  std::optional<Blend> blend;                         // empty: all sources are one corpus
  std::vector<uint64_t> first_samples;                // of each source in that corpus, and behind the last one its end
  uint64_t seed;
  int64_t sequence_length;
  bool masks_across_documents;
  std::string fingerprint = {};
  std::vector<uint64_t> held_out_hashes = {};          // of the held-out sources' files
  std::map<std::string, int64_t> times_held_out = {};  // by path

  BatchBuilder batch_of(int64_t samples) const { return {samples, sequence_length, masks_across_documents}; }

  // Adds a held-out source. `share`: its share of training; 0: its share is its size.
  void hold_out(const std::string& path, uint64_t contents, const PackedTokens& tokens, double share) {
    if (tokens.num_samples() == 0) return;
    held_out.push_back(tokens);
    held_out_hashes.push_back(contents);
    const int64_t nth = ++times_held_out[path];
    held_out_sources.push_back({nth == 1 ? path : concat(path, " (", nth, ")"), tokens.num_samples()});
    held_out_shares.push_back(share > 0 ? share : static_cast<double>(tokens.num_positions()));
  }

  // Returns the index of a source's draw-th sample, in an order that differs from epoch to epoch.
  uint64_t shuffled(int64_t source, uint64_t samples, uint64_t draw) const {
    const uint64_t epoch = draw / samples;
    uint64_t key = extend_hash(seed, epoch_keys);
    key = extend_hash(key, static_cast<uint64_t>(source));
    key = extend_hash(key, epoch);
    return Permutation(key, samples)(draw % samples);
  }

  // Calls visit(tokens of a source, index among its samples) for samples first .. first+count of the global order.
  template <class Visit>
  void for_each_sample(uint64_t first, int64_t count, Visit&& visit) const {
    if (blend) {
      for (const SampleAddress& address : blend->locate(first, count)) {
        const PackedTokens& tokens = train[static_cast<std::size_t>(address.source)];
        const auto samples = static_cast<uint64_t>(tokens.num_samples());
        visit(tokens, static_cast<int64_t>(shuffled(address.source, samples, address.draw)));
      }
      return;
    }
    for (uint64_t sample = first; sample < first + static_cast<uint64_t>(count); ++sample) {
      const uint64_t index = shuffled(0, first_samples.back(), sample);
      const auto next = std::ranges::upper_bound(first_samples, index);
      const auto source = static_cast<std::size_t>(next - first_samples.begin() - 1);
      visit(train[source], static_cast<int64_t>(index - first_samples[source]));
    }
  }
};

namespace {

void check_weights(const DataConfig& config) {
  if (config.train.empty()) throw UserError("data.train: names no corpus; expected at least one file");
  for (const DataSource& source : config.train) {
    if (source.weight && (!(*source.weight > 0) || !std::isfinite(*source.weight)))
      throw UserError(
          concat("data.train: the weight of ", source.path, " is ", *source.weight, "; expected a positive number"));
  }
}

std::optional<Blend> blend_of(const DataConfig& config, uint64_t seed) {
  const auto has_weight = [](const DataSource& source) { return source.weight.has_value(); };
  if (std::ranges::none_of(config.train, has_weight) || config.train.size() == 1) return std::nullopt;
  std::vector<double> weights;
  for (const DataSource& source : config.train) weights.push_back(source.weight.value_or(1));
  return Blend(weights, seed);
}

// Checks that all sources are text or all are a tokenizer's ids: a model cannot tell them apart.
void check_same_kind(const std::vector<std::unique_ptr<TokenSource>>& sources) {
  for (const auto& source : sources) {
    if (source->is_text() != sources.front()->is_text())
      throw UserError(
          concat("data: ", sources.front()->path(), " and ", source->path(),
                 " do not go together: one is text, read as bytes, the other is tokenized; give all as text "
                 "or tokenize all with the same tokenizer"));
  }
}

void check_held_out_is_not_trained_on(const DataConfig& config) {
  if (config.held_out.empty()) return;
  std::set<std::pair<dev_t, ino_t>> trained;
  const auto files_of = [](const std::string& path) {
    std::vector<std::pair<dev_t, ino_t>> files;
    const auto add = [&](const std::string& name) {
      struct stat status{};
      if (::stat(name.c_str(), &status) == 0) files.emplace_back(status.st_dev, status.st_ino);
    };
    for (const std::string& corpus : corpora_of(path)) {
      add(corpus);
      add(corpus + ".bin");
    }
    return files;
  };
  for (const DataSource& source : config.train) {
    for (const auto& file : files_of(source.path)) trained.insert(file);
  }
  for (const std::string& held_out : config.held_out) {
    for (const auto& file : files_of(held_out)) {
      if (!trained.contains(file)) continue;
      throw UserError(concat("data.held_out: ", held_out,
                             " is also trained on; name another file, or leave "
                             "data.held_out empty to hold out the end of every source"));
    }
  }
}

// Checks that there is something to learn, or to evaluate: the last token of a document predicts nothing.
void check_loss(const TokenSource& source, const PackedTokens& tokens) {
  if (tokens.has_loss()) return;
  throw UserError(concat(source.path(), ": no token carries loss, since each is the last of its document ",
                         "(data.mask_document_ends): give documents of two tokens or more, or set ",
                         "data.mask_document_ends = false"));
}

// Splits a source into the part to train on and the tail that is held out (none for a fraction of 0).
std::pair<PackedTokens, PackedTokens> split(const TokenSource& source, double fraction, int64_t sequence_length,
                                            bool mask_document_ends) {
  const int64_t samples = (source.size() - 1) / sequence_length;
  int64_t held_out = 0;
  if (fraction > 0) {
    const double wanted = fraction * static_cast<double>(source.size()) / static_cast<double>(sequence_length);
    held_out = std::clamp(std::llround(wanted), 1LL, std::max(1LL, static_cast<long long>(samples - 1)));
  }
  const int64_t train = samples - held_out;
  if (train < 1) {
    const int64_t needed = sequence_length * (fraction > 0 ? 2 : 1) + 1;
    throw UserError(concat(source.path(), ": is too short: it has ", source.size(), " tokens, and ", needed,
                           " are needed for one sequence of ", sequence_length, " to train on",
                           fraction > 0 ? " and one to hold out" : "",
                           "; give more text or lower train.sequence_length"));
  }
  // Training reads tokens 0 .. train*L, the last one only as a target: the held-out part starts after it.
  const int64_t train_end = train * sequence_length + 1;
  return {
      PackedTokens(source, 0, train_end, sequence_length, mask_document_ends),
      PackedTokens(source, train_end, held_out > 0 ? source.size() : train_end, sequence_length, mask_document_ends)};
}

std::string hexadecimal(uint64_t hash) {
  std::ostringstream text;
  text << std::hex << std::setfill('0') << std::setw(16) << hash;
  return text.str();
}

}  // namespace

Dataset::Dataset(const DataConfig& config, int64_t sequence_length, int64_t vocab_size, uint64_t seed) {
  COPUS_CHECK(sequence_length >= 1, "sequence_length ", sequence_length);
  check_weights(config);
  auto result = std::make_unique<Implementation>(Implementation{
      {}, {}, {}, {}, {}, blend_of(config, seed), {0}, seed, sequence_length, config.mask_across_documents});

  for (const DataSource& source : config.train)
    result->sources.push_back(open_token_source(source.path, config.document_separator, vocab_size));
  for (const std::string& path : config.held_out)
    result->sources.push_back(open_token_source(path, config.document_separator, vocab_size));
  check_same_kind(result->sources);
  check_held_out_is_not_trained_on(config);

  uint64_t hash = extend_hash(extend_hash(order_version, seed), static_cast<uint64_t>(sequence_length));
  hash = extend_hash(hash, (config.mask_document_ends ? 1 : 0) + (config.mask_across_documents ? 2 : 0));
  const double fraction = config.held_out.empty() ? config.held_out_fraction : 0;
  for (std::size_t i = 0; i < result->sources.size(); ++i) {
    const TokenSource& source = *result->sources[i];
    if (i < config.train.size()) {
      auto [train, held_out] = split(source, fraction, sequence_length, config.mask_document_ends);
      check_loss(source, train);
      // Rounded, so that weights with the same shares are the same blend.
      const auto share = static_cast<float>(result->blend ? result->blend->shares()[i] : 0);
      hash = extend_hash(hash, std::bit_cast<uint32_t>(share));
      hash = extend_hash(hash, static_cast<uint64_t>(train.num_samples()));
      const uint64_t contents = hash_contents(0, source);
      hash = extend_hash(hash, contents);
      result->first_samples.push_back(result->first_samples.back() + static_cast<uint64_t>(train.num_samples()));
      result->train.push_back(train);
      const bool has_weights = result->blend.has_value();
      if (fraction > 0)
        result->hold_out(source.path(), contents, held_out, has_weights ? result->blend->shares()[i] : 0);
    } else {
      // Reads the held-out source only to check its ids. Its hash is not part of the fingerprint, since the held-out
      // data have no influence on training.
      const uint64_t contents = hash_contents(0, source);
      const PackedTokens held_out(source, 0, source.size(), sequence_length, config.mask_document_ends);
      if (held_out.num_samples() == 0)
        throw UserError(concat(source.path(), ": is too short to hold out: it has ", source.size(),
                               " tokens, and 2 are needed to predict one from another"));
      check_loss(source, held_out);
      result->hold_out(source.path(), contents, held_out, 0);
    }
  }
  result->fingerprint = hexadecimal(hash);
  implementation_ = std::move(result);
}

Dataset::~Dataset() = default;
Dataset::Dataset(Dataset&&) noexcept = default;
Dataset& Dataset::operator=(Dataset&&) noexcept = default;

Batch Dataset::train_batch(uint64_t first_sample, int64_t count) const {
  BatchBuilder batch = implementation_->batch_of(count);
  implementation_->for_each_sample(first_sample, count,
                                   [&](const PackedTokens& tokens, int64_t sample) { batch.append(tokens, sample); });
  return batch.take();
}

int64_t Dataset::loss_tokens(uint64_t first_sample, int64_t count) const {
  int64_t total = 0;
  implementation_->for_each_sample(
      first_sample, count, [&](const PackedTokens& tokens, int64_t sample) { total += tokens.loss_tokens(sample); });
  return total;
}

int64_t Dataset::held_out_samples() const {
  int64_t total = 0;
  for (const HeldOutSource& source : implementation_->held_out_sources) total += source.samples;
  return total;
}

const std::vector<HeldOutSource>& Dataset::held_out_sources() const { return implementation_->held_out_sources; }

std::vector<HeldOutPart> Dataset::held_out_parts(int64_t samples) const {
  std::vector<int64_t> sizes;
  for (const HeldOutSource& source : implementation_->held_out_sources) sizes.push_back(source.samples);
  return copus::held_out_parts(sizes, implementation_->held_out_shares, samples);
}

Batch Dataset::held_out_batch(int64_t source, int64_t first, int64_t count) const {
  const PackedTokens& tokens = implementation_->held_out.at(static_cast<std::size_t>(source));
  COPUS_CHECK(first >= 0 && count >= 0 && first + count <= tokens.num_samples(), "samples ", first, " + ", count,
              " of ", tokens.num_samples());
  BatchBuilder batch = implementation_->batch_of(count);
  for (int64_t sample = first; sample < first + count; ++sample) batch.append(tokens, sample);
  return batch.take();
}

int64_t Dataset::train_tokens() const {
  int64_t total = 0;
  for (const PackedTokens& part : implementation_->train) total += part.num_positions();
  return total;
}

int64_t Dataset::held_out_tokens() const {
  int64_t total = 0;
  for (const PackedTokens& part : implementation_->held_out) total += part.num_positions();
  return total;
}

std::vector<TrainingSource> Dataset::training_sources() const {
  const auto all = static_cast<double>(implementation_->first_samples.back());
  std::vector<TrainingSource> sources;
  for (std::size_t i = 0; i < implementation_->train.size(); ++i) {
    const int64_t sequences = implementation_->train[i].num_samples();
    const std::optional<Blend>& blend = implementation_->blend;
    const double share = blend ? blend->shares()[i] : static_cast<double>(sequences) / all;
    sources.push_back({implementation_->sources[i]->path(), sequences, share});
  }
  return sources;
}

bool Dataset::bytes() const { return implementation_->sources.front()->is_text(); }

std::string Dataset::fingerprint() const { return implementation_->fingerprint; }

std::string Dataset::held_out_fingerprint(int64_t samples) const {
  uint64_t hash = static_cast<uint64_t>(implementation_->sequence_length);
  for (const HeldOutPart& part : held_out_parts(samples)) {
    const auto source = static_cast<std::size_t>(part.source);
    hash = extend_hash(hash, implementation_->held_out_hashes[source]);
    hash = extend_hash(hash, static_cast<uint64_t>(implementation_->held_out[source].num_positions()));
    hash = extend_hash(hash, static_cast<uint64_t>(part.samples));
    hash = extend_hash(hash, std::bit_cast<uint32_t>(static_cast<float>(part.weight)));
  }
  return hexadecimal(hash);
}

}  // namespace copus
