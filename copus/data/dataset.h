// The training data as one endless, shuffled sequence of samples. Token sources are packed into sequences of one length
// and blended by weight. A held-out part is never used for training.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "copus/config/run_config.h"
#include "copus/data/held_out_parts.h"

namespace copus {

// Samples ready for the model. The target of a position is the next token, or `ignored_target` if there is none.
struct Batch {
  std::vector<int64_t> tokens;   // row-major [count, sequence_length]
  std::vector<int64_t> targets;  // row-major [count, sequence_length]
  // Row-major [count, sequence_length]: the position in its sample at which each position's document begins. Empty
  // unless data.mask_across_documents.
  std::vector<int64_t> document_starts = {};
  int64_t loss_tokens = 0;  // targets that carry loss
};

// A source of training data.
struct TrainingSource {
  std::string path;
  int64_t sequences = 0;  // of an epoch
  double share = 0;       // of all training samples
};

// The lengths of documents within the sequences that are trained on.
struct DocumentLengths {
  // The length of the document that a token is in, averaged over tokens. Attention that ends at documents does as much
  // work as in whole sequences of this length.
  double of_a_token = 0;
  // The standard deviation of a sequence's work, as a share of its mean.
  double deviation = 0;
};

// A source of held-out data: a file of data.held_out, or the tail of a file that is trained on.
struct HeldOutSource {
  std::string name;     // its path, made unique if a path is given several times
  int64_t samples = 0;  // at least one
};

// The training data and the held-out data. Immutable after construction and without a read position, so several threads
// may call every method at once.
class Dataset {
 public:
  // Opens every source. Throws UserError for any fault of a source, for a corpus shorter than one sequence or without a
  // token that carries loss, and for text with a vocabulary of fewer than 256, since each byte of text is a token.
  // `masks_by_default`: where the configuration does not say whether documents stay apart, they do if a source has
  // several of them; otherwise they do not.
  Dataset(const DataConfig& config, int64_t sequence_length, int64_t vocab_size, uint64_t seed,
          bool masks_by_default = false);
  ~Dataset();
  Dataset(Dataset&&) noexcept;
  Dataset& operator=(Dataset&&) noexcept;

  // Reads samples first_sample .. first_sample+count of the global order, which is a pure function of (seed, index).
  // Within an epoch no sample is skipped or repeated. If no source has a weight, there is one epoch for the whole
  // corpus; otherwise each source has its own epochs. Throws UserError for a token id outside the vocabulary, and for a
  // shard that is missing (missing_shard).
  Batch train_batch(uint64_t first_sample, int64_t count) const;

  // With data.shuffle_shards, opens the shards of samples first_sample .. first_sample+count, and tells which one keeps
  // them from being read, and why: its tokens are not here, or not all of them. Empty: none does, and these samples can
  // be read even if shards are deleted. Throws UserError for a shard that is too long, whichever others are missing.
  std::optional<std::string> missing_shard(uint64_t first_sample, int64_t count) const;
  // With data.shuffle_shards, the number of shards that these samples come from, and how many bytes of them are missing
  // here; without, 0.
  int64_t num_shards_of(uint64_t first_sample, int64_t count) const;
  int64_t missing_shard_bytes(uint64_t first_sample, int64_t count) const;
  // With data.shuffle_shards, lists up to `count` shards in the order in which samples from `first_sample` on need
  // them, each once; without, none.
  std::vector<std::string> shards_from(uint64_t first_sample, int64_t count) const;

  // Returns the number of loss_tokens that train_batch would report, without reading tokens. It is the divisor of a
  // global batch's loss.
  int64_t loss_tokens(uint64_t first_sample, int64_t count) const;

  // The held-out data, in the order of the configuration. Empty if data.held_out is empty and data.held_out_fraction is
  // 0. The last sample of a source is padded with positions without loss.
  const std::vector<HeldOutSource>& held_out_sources() const;
  int64_t held_out_samples() const;  // of all of them
  // Samples first .. first+count of a held-out source.
  Batch held_out_batch(int64_t source, int64_t first, int64_t count) const;
  // Returns the samples that an evaluation of this many samples reads. Held-out tails of weighted sources have the same
  // weights as in training; other sources have weights in proportion to their sizes.
  std::vector<HeldOutPart> held_out_parts(int64_t samples) const;

  // The number of positions with a next token to predict, document ends included, each counted once.
  int64_t train_tokens() const;
  int64_t held_out_tokens() const;

  // The sources that are trained on, as the configuration lists them.
  std::vector<TrainingSource> training_sources() const;

  // Tells whether a source that is trained on has several documents, and whether documents stay apart.
  bool has_several_documents() const;
  bool masks_across_documents() const;

  // Estimates the lengths from 1,024 sequences of all sources in their shares, from the document ends alone. It is a
  // function of the data and the seed.
  DocumentLengths document_lengths() const;

  // Tells whether every source is text, so that a token is a byte and nats per token are nats per byte.
  bool bytes() const;

  // Identifies the training data and their order: equal on every machine and path for equal contents, settings and
  // seed, different otherwise up to a sampled check of the contents. A run is resumed only with the same fingerprint.
  // With data.shuffle_shards the contents are those of the .idx files, since the tokens may not be here yet.
  std::string fingerprint() const;
  // Identifies in the same way what an evaluation of so many samples reads.
  std::string held_out_fingerprint(int64_t samples) const;

 private:
  struct Implementation;
  std::unique_ptr<const Implementation> implementation_;
};

}  // namespace copus
