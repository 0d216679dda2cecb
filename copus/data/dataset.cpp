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
#include "copus/base/numbers/mix_bits.h"
#include "copus/data/blend.h"
#include "copus/data/file_pool.h"
#include "copus/data/megatron_source.h"
#include "copus/data/packing.h"
#include "copus/data/permutation.h"
#include "copus/data/shard_order.h"
#include "copus/data/token_source.h"

namespace copus {
namespace {

// Purposes of random draws: orders of epochs, orders of shards, and sequences whose documents are measured. The key of
// a draw is a hash of the seed, the purpose and further numbers, so draws for different purposes are independent.
constexpr uint64_t epoch_keys = 1, shard_keys = 2, length_keys = 3;

// The version of the order of samples. Raise it if a change alters the order for the same seed; older runs then refuse
// to resume.
constexpr uint64_t order_version = 2;

// Hashes the contents of a source: of a small source all tokens and document ends, of a larger one `max_windows` evenly
// spread windows of tokens and as many document ends. The windows also check token ids all over the file, so a corpus
// of another tokenizer is refused at the start and not after hours. With `ends_only` no tokens are read.
uint64_t hash_contents(uint64_t hash, const TokenSource& source, bool ends_only = false) {
  constexpr int64_t max_windows = 64;
  constexpr int64_t max_window = 256;
  hash = extend_hash(hash, source.is_text() ? 1 : 0);
  hash = extend_hash(hash, static_cast<uint64_t>(source.size()));
  hash = extend_hash(hash, static_cast<uint64_t>(source.num_documents()));
  std::vector<int64_t> tokens;
  const auto add_tokens = [&](int64_t begin, int64_t count) {
    if (ends_only) return;
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
    // The product of two large counts could overflow an integer. A double is exact enough, and gives the same result on
    // every machine.
    const double part = static_cast<double>(i) / (max_windows - 1);
    add_tokens(static_cast<int64_t>(part * static_cast<double>(source.size() - max_window)), max_window);
    add_end(static_cast<int64_t>(part * static_cast<double>(source.num_documents() - 1)));
  }
  return hash;
}

}  // namespace

struct Dataset::Implementation {
  Implementation(std::optional<Blend> sources_blend, uint64_t run_seed, int64_t length)
      : blend(std::move(sources_blend)), seed(run_seed), sequence_length(length) {}

  std::vector<std::unique_ptr<TokenSource>> sources;    // of data.train, then of data.held_out
  std::vector<PackedTokens> train;                      // one for each source or shard of data.train
  std::vector<TrainingSource> training_sources;         // one for each source of data.train
  std::vector<std::size_t> source_of;                   // for each element of `train`: its index in `training_sources`
  std::vector<PackedTokens> held_out;                   // the held-out sources that have samples
  std::vector<HeldOutSource> held_out_sources;          // one for each element of `held_out`
  std::vector<double> held_out_shares;                  // one for each element of `held_out`; relative
  std::optional<Blend> blend;                           // empty: all sources are one corpus
  std::vector<uint64_t> first_samples{0};               // without a blend: of each source in the corpus, then the total
  std::vector<std::unique_ptr<MegatronSource>> shards;  // with data.shuffle_shards: one for each element of `train`
  std::vector<int64_t> shards_of_source;                // with data.shuffle_shards: number of shards of each source
  std::shared_ptr<FilePool> pool;                       // holds the open .bin files of the shards
  // Only with data.shuffle_shards: an order of shards for each source or, without a blend, one order for all; and the
  // index of each order's first shard.
  std::vector<std::unique_ptr<ShardOrder>> orders;
  std::vector<std::size_t> first_shards;
  uint64_t seed;
  int64_t sequence_length;
  bool has_several_documents = false;
  bool masks_across_documents = false;
  std::string fingerprint;
  std::vector<uint64_t> held_out_hashes;          // of the held-out sources' files
  std::map<std::string, int64_t> times_held_out;  // by path

  BatchBuilder batch_of(int64_t samples) const { return {samples, sequence_length, masks_across_documents}; }

  // Adds a held-out source. `share` is its share of training; if this is 0, its size serves as its share.
  void hold_out(const std::string& path, uint64_t contents, const PackedTokens& tokens, double share) {
    if (tokens.num_samples() == 0) return;
    held_out.push_back(tokens);
    held_out_hashes.push_back(contents);
    const int64_t nth = ++times_held_out[path];
    held_out_sources.push_back({nth == 1 ? path : concat(path, " (", nth, ")"), tokens.num_samples()});
    held_out_shares.push_back(share > 0 ? share : static_cast<double>(tokens.num_positions()));
  }

  // Returns the index of the sample that a source gives at its draw-th draw. Each epoch has a different order.
  uint64_t shuffled(int64_t source, uint64_t samples, uint64_t draw) const {
    const uint64_t epoch = draw / samples;
    uint64_t key = extend_hash(seed, epoch_keys);
    key = extend_hash(key, static_cast<uint64_t>(source));
    key = extend_hash(key, epoch);
    return Permutation(key, samples)(draw % samples);
  }

  // Finds a draw of a source: the index in `train`, and the sample's index there. Without a blend the source is 0.
  std::pair<std::size_t, int64_t> place_of(const SampleAddress& address) const {
    const auto source = static_cast<std::size_t>(address.source);
    if (!orders.empty()) {
      const ShardOrder::Place place = orders[source]->place(address.draw);
      return {first_shards[source] + static_cast<std::size_t>(place.shard), place.sample};
    }
    if (blend) {
      const auto samples = static_cast<uint64_t>(train[source].num_samples());
      return {source, static_cast<int64_t>(shuffled(address.source, samples, address.draw))};
    }
    const uint64_t index = shuffled(0, first_samples.back(), address.draw);
    const auto next = std::ranges::upper_bound(first_samples, index);
    const auto part = static_cast<std::size_t>(next - first_samples.begin() - 1);
    return {part, static_cast<int64_t>(index - first_samples[part])};
  }

  // Returns the shards that contain samples first .. first+count of the global order.
  std::set<std::size_t> shards_of(uint64_t first, int64_t count) const {
    std::set<std::size_t> found;
    if (!shards.empty()) for_each_place(first, count, [&](std::size_t shard, int64_t) { found.insert(shard); });
    return found;
  }

  // Calls visit(index in `train`, index among its samples) for samples first .. first+count of the global order.
  template <class Visit>
  void for_each_place(uint64_t first, int64_t count, Visit&& visit) const {
    const auto visit_address = [&](const SampleAddress& address) {
      const auto [part, sample] = place_of(address);
      visit(part, sample);
    };
    if (blend) {
      for (const SampleAddress& address : blend->locate(first, count)) visit_address(address);
      return;
    }
    for (uint64_t sample = first; sample < first + static_cast<uint64_t>(count); ++sample) visit_address({0, sample});
  }
  template <class Visit>
  void for_each_sample(uint64_t first, int64_t count, Visit&& visit) const {
    for_each_place(first, count, [&](std::size_t part, int64_t sample) { visit(train[part], sample); });
  }

  // Adds a source to `train`, and returns the hash extended by this source. The hash rounds the share to fp32, so that
  // weights with the same ratios give the same hash.
  uint64_t train_on(uint64_t hash, double share, const PackedTokens& tokens, uint64_t contents) {
    hash = extend_hash(hash, std::bit_cast<uint32_t>(static_cast<float>(share)));
    hash = extend_hash(hash, static_cast<uint64_t>(tokens.num_samples()));
    train.push_back(tokens);
    source_of.push_back(training_sources.size());
    return extend_hash(hash, contents);
  }

  void open_sources(const DataConfig& config, int64_t vocab_size);
  uint64_t train_on_sources(uint64_t hash, const DataConfig& config);
  uint64_t train_on_shards(uint64_t hash, const DataConfig& config);
  void hold_out_sources(const DataConfig& config);

  // Without a blend, each source's share is its fraction of all samples.
  void set_shares() {
    if (blend) return;
    double all = 0;
    for (const TrainingSource& source : training_sources) all += static_cast<double>(source.sequences);
    for (TrainingSource& source : training_sources) source.share = static_cast<double>(source.sequences) / all;
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

// Checks that all sources are text or all are token ids, which a model cannot tell apart. Shards are token ids.
void check_same_kind(const std::vector<std::unique_ptr<TokenSource>>& sources, bool are_beside_shards) {
  for (const auto& source : sources) {
    if (are_beside_shards && source->is_text())
      throw UserError(concat("data: the shards of data.train are tokenized, and ", source->path(),
                             " is text; tokenize it with the same tokenizer"));
  }
  for (const auto& source : sources) {
    if (source->is_text() != sources.front()->is_text())
      throw UserError(
          concat("data: ", sources.front()->path(), " and ", source->path(),
                 " do not go together: one is text, read as bytes, the other is tokenized; give all as text "
                 "or tokenize all with the same tokenizer"));
  }
}

struct SourceFile {
  std::pair<dev_t, ino_t> inode;  // the same under every name of the file
  std::string name;
};

// Lists the files of a text, a pair or a pattern, in the order of the stream. The index stands for a pair.
std::vector<SourceFile> files_of(const std::string& path) {
  std::vector<SourceFile> files;
  const auto add = [&](const std::string& name) {
    struct stat status{};
    if (::stat(name.c_str(), &status) == 0) files.push_back({{status.st_dev, status.st_ino}, name});
  };
  for (const std::string& corpus : corpora_of(path)) {
    add(corpus);
    add(corpus + ".idx");
  }
  return files;
}

void check_held_out_is_not_trained_on(const DataConfig& config) {
  if (config.held_out.empty()) return;
  std::set<std::pair<dev_t, ino_t>> trained;
  for (const DataSource& source : config.train) {
    for (const SourceFile& file : files_of(source.path)) trained.insert(file.inode);
  }
  for (const std::string& held_out : config.held_out) {
    for (const SourceFile& file : files_of(held_out)) {
      if (!trained.contains(file.inode)) continue;
      throw UserError(concat("data.held_out: ", held_out,
                             " is also trained on; name another file, or leave "
                             "data.held_out empty to hold out the end of every source"));
    }
  }
}

// Refuses sources that share a file, because one source would train on the held-out tail of the other. Sources of the
// same files in the same order have the same tail.
void check_tails_are_not_trained_on(const DataConfig& config) {
  if (!config.held_out.empty() || !(config.held_out_fraction > 0)) return;
  std::vector<std::vector<SourceFile>> files;
  std::map<std::pair<dev_t, ino_t>, std::size_t> first_sources;  // by file: the first source that has it
  for (std::size_t i = 0; i < config.train.size(); ++i) {
    files.push_back(files_of(config.train[i].path));
    for (const SourceFile& file : files[i]) {
      const std::size_t first = first_sources.try_emplace(file.inode, i).first->second;
      if (first == i || std::ranges::equal(files[first], files[i], {}, &SourceFile::inode, &SourceFile::inode))
        continue;
      throw UserError(concat("data.train: ", config.train[first].path, " and ", config.train[i].path, " share ",
                             file.name, ", and each of them holds out its own end, on which the other would train; ",
                             "give each file to one source, name other files in data.held_out, or set ",
                             "data.held_out_fraction = 0"));
    }
  }
}

// Refuses a source without any target: the last token of a document predicts nothing.
[[noreturn]] void refuse_without_loss(const std::string& path) {
  throw UserError(concat(path, ": no token carries loss, since each is the last of its document ",
                         "(data.mask_document_ends): give documents of two tokens or more, or set ",
                         "data.mask_document_ends = false"));
}

void check_loss(const TokenSource& source, const PackedTokens& tokens) {
  if (!tokens.has_loss()) refuse_without_loss(source.path());
}

// Splits a source into a training part and a held-out tail, which is empty if the fraction is 0.
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
  // Training reads tokens 0 .. train*L, the last one only as a target, so the held-out part starts after that token.
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

// Opens all sources, in the order of the configuration.
void Dataset::Implementation::open_sources(const DataConfig& config, int64_t vocab_size) {
  const auto open_windows = static_cast<std::size_t>(2 * ShardOrder::window) * config.train.size();
  pool = std::make_shared<FilePool>(open_windows);
  const auto look_for_documents = [&](const TokenSource& source) {
    has_several_documents |= source.num_documents() > 1;
  };
  for (const DataSource& source : config.train) {
    if (!config.shuffle_shards) {
      sources.push_back(open_token_source(source.path, config.document_separator, vocab_size));
      look_for_documents(*sources.back());
      continue;
    }
    auto opened = open_shards(source.path, vocab_size, pool);
    shards_of_source.push_back(std::ssize(opened));
    for (auto& shard : opened) {
      look_for_documents(*shard);
      shards.push_back(std::move(shard));
    }
  }
  for (const std::string& path : config.held_out)
    sources.push_back(open_token_source(path, config.document_separator, vocab_size));
}

uint64_t Dataset::Implementation::train_on_sources(uint64_t hash, const DataConfig& config) {
  const double fraction = config.held_out.empty() ? config.held_out_fraction : 0;
  for (std::size_t i = 0; i < config.train.size(); ++i) {
    const TokenSource& source = *sources[i];
    const auto [tokens, tail] = split(source, fraction, sequence_length, config.mask_document_ends);
    check_loss(source, tokens);
    const uint64_t contents = hash_contents(0, source);
    const double share = blend ? blend->shares()[i] : 0;
    hash = train_on(hash, share, tokens, contents);
    first_samples.push_back(first_samples.back() + static_cast<uint64_t>(tokens.num_samples()));
    training_sources.push_back({source.path(), tokens.num_samples(), share});
    if (fraction > 0) hold_out(source.path(), contents, tail, share);
  }
  return hash;
}

// Trains on shards. Each shard pads its last sequence with positions without loss, so that a sequence needs only one
// shard.
uint64_t Dataset::Implementation::train_on_shards(uint64_t hash, const DataConfig& config) {
  constexpr uint64_t shard_order_version = 1;
  hash = extend_hash(hash, shard_order_version);
  std::vector<int64_t> samples;  // of the shards of the next order
  const auto finish_order = [&] {
    const uint64_t key = extend_hash(extend_hash(seed, shard_keys), orders.size());
    first_shards.push_back(train.size() - samples.size());
    orders.push_back(std::make_unique<ShardOrder>(samples, key));
    samples.clear();
  };
  for (std::size_t i = 0; i < config.train.size(); ++i) {
    const std::string& path = config.train[i].path;
    const double share = blend ? blend->shares()[i] : 0;
    int64_t sequences = 0;
    bool has_loss = false;
    for (int64_t rest = shards_of_source[i]; rest > 0; --rest) {
      const MegatronSource& shard = *shards[train.size()];
      const PackedTokens tokens(shard, 0, shard.size(), sequence_length, config.mask_document_ends);
      has_loss |= tokens.has_loss();
      hash = train_on(hash, share, tokens, hash_contents(0, shard, /*ends_only=*/true));
      samples.push_back(tokens.num_samples());
      sequences += tokens.num_samples();
    }
    if (!has_loss) refuse_without_loss(path);
    hash = extend_hash(hash, train.size());
    training_sources.push_back({path, sequences, share});
    if (blend) finish_order();
  }
  if (!blend) finish_order();
  return hash;
}

// Adds the files of data.held_out. Their hashes are not part of the fingerprint, since they do not influence training.
void Dataset::Implementation::hold_out_sources(const DataConfig& config) {
  for (std::size_t i = sources.size() - config.held_out.size(); i < sources.size(); ++i) {
    const TokenSource& source = *sources[i];
    const uint64_t contents = hash_contents(0, source);
    const PackedTokens tokens(source, 0, source.size(), sequence_length, config.mask_document_ends);
    if (tokens.num_samples() == 0)
      throw UserError(concat(source.path(), ": is too short to hold out: it has ", source.size(),
                             " tokens, and 2 are needed to predict one from another"));
    check_loss(source, tokens);
    hold_out(source.path(), contents, tokens, 0);
  }
}

Dataset::Dataset(const DataConfig& config, int64_t sequence_length, int64_t vocab_size, uint64_t seed,
                 bool masks_by_default) {
  COPUS_CHECK(sequence_length >= 1, "sequence_length ", sequence_length);
  check_weights(config);
  auto result = std::make_unique<Implementation>(blend_of(config, seed), seed, sequence_length);
  result->open_sources(config, vocab_size);
  const bool masks = config.mask_across_documents.value_or(masks_by_default && result->has_several_documents);
  result->masks_across_documents = masks;
  uint64_t hash = extend_hash(extend_hash(order_version, seed), static_cast<uint64_t>(sequence_length));
  hash = extend_hash(hash, (config.mask_document_ends ? 1 : 0) + (masks ? 2 : 0) + (config.shuffle_shards ? 4 : 0));
  if (config.shuffle_shards) hash = result->train_on_shards(hash, config);
  check_same_kind(result->sources, config.shuffle_shards);
  check_held_out_is_not_trained_on(config);
  if (!config.shuffle_shards) {
    check_tails_are_not_trained_on(config);
    hash = result->train_on_sources(hash, config);
  }
  result->hold_out_sources(config);
  result->set_shares();
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

std::vector<TrainingSource> Dataset::training_sources() const { return implementation_->training_sources; }

std::optional<std::string> Dataset::missing_shard(uint64_t first_sample, int64_t count) const {
  const std::set<std::size_t> shards = implementation_->shards_of(first_sample, count);
  if (!shards.empty()) implementation_->pool->reserve(shards.size());
  std::optional<std::string> first;
  for (const std::size_t shard : shards) {
    const std::optional<std::string> gap = implementation_->shards[shard]->gap();
    if (!first) first = gap;
  }
  return first;
}

int64_t Dataset::num_shards_of(uint64_t first_sample, int64_t count) const {
  return std::ssize(implementation_->shards_of(first_sample, count));
}

int64_t Dataset::missing_shard_bytes(uint64_t first_sample, int64_t count) const {
  int64_t bytes = 0;
  for (const std::size_t shard : implementation_->shards_of(first_sample, count)) {
    bytes += implementation_->shards[shard]->missing_bytes();
  }
  return bytes;
}

std::vector<std::string> Dataset::shards_from(uint64_t first_sample, int64_t count) const {
  struct Wanted {
    double samples_ahead;  // number of samples in the global order before the shard is needed
    std::size_t shard;
  };
  const std::optional<Blend>& blend = implementation_->blend;
  std::map<int64_t, uint64_t> next_draws;  // by source, for the sources of the next samples
  if (blend) {
    for (const SampleAddress& address : blend->locate(first_sample, Blend::block_size)) {
      next_draws.try_emplace(address.source, address.draw);
    }
  }
  std::vector<Wanted> wanted;
  for (std::size_t source = 0; source < implementation_->orders.size(); ++source) {
    const double share = blend ? blend->shares()[source] : 1;
    uint64_t draw = first_sample;
    if (blend) {
      const auto found = next_draws.find(static_cast<int64_t>(source));
      // None of the next samples is from this source, so its position is estimated from its share. blend.h bounds the
      // error by 2.
      const double expected = std::max(0.0, share * static_cast<double>(first_sample) - 2);
      draw = found != next_draws.end() ? found->second : static_cast<uint64_t>(expected);
    }
    for (const ShardOrder::Need& need : implementation_->orders[source]->needs(draw, count)) {
      const double ahead = need.first_draw > draw ? static_cast<double>(need.first_draw - draw) / share : 0;
      wanted.push_back({ahead, implementation_->first_shards[source] + static_cast<std::size_t>(need.shard)});
    }
  }
  std::ranges::stable_sort(wanted, {}, &Wanted::samples_ahead);
  std::vector<std::string> shards;
  for (const Wanted& one : wanted) {
    if (std::ssize(shards) < count) shards.push_back(implementation_->shards[one.shard]->path());
  }
  return shards;
}

bool Dataset::has_several_documents() const { return implementation_->has_several_documents; }

bool Dataset::masks_across_documents() const { return implementation_->masks_across_documents; }

DocumentLengths Dataset::document_lengths() const {
  constexpr int64_t measured = 1024;
  const Implementation& data = *implementation_;
  std::vector<double> ends;  // cumulative shares of the elements of `train`
  for (std::size_t part = 0; part < data.train.size(); ++part) {
    const TrainingSource& source = data.training_sources[data.source_of[part]];
    const double of_source =
        static_cast<double>(data.train[part].num_samples()) / static_cast<double>(source.sequences);
    ends.push_back((ends.empty() ? 0 : ends.back()) + source.share * of_source);
  }
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < measured; ++i) {
    const double place = ends.back() * (static_cast<double>(i) + 0.5) / measured;
    const auto found = std::ranges::upper_bound(ends, place);
    const PackedTokens& tokens = data.train[static_cast<std::size_t>(found - ends.begin())];
    const uint64_t random = extend_hash(extend_hash(data.seed, length_keys), static_cast<uint64_t>(i));
    const auto sample = static_cast<int64_t>(random % static_cast<uint64_t>(tokens.num_samples()));
    const double work = tokens.squared_lengths(sample) / static_cast<double>(data.sequence_length);
    sum += work;
    squares += work * work;
  }
  const double mean = sum / measured;
  return {mean, std::sqrt(std::max(0.0, squares / measured - mean * mean)) / mean};
}

bool Dataset::bytes() const { return implementation_->shards.empty() && implementation_->sources.front()->is_text(); }

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
