// The training data as an endless, shuffled sequence of samples, packed to one length and blended by weight, and the
// held-out data, which are never trained on.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "copus/config/run_config.h"
#include "copus/data/held_out_parts.h"

namespace copus {

// Samples ready for the model. A position's target is the next token, or `ignored_target` if the position has no loss.
struct Batch {
  std::vector<int64_t> tokens;   // row-major [count, sequence_length]
  std::vector<int64_t> targets;  // row-major [count, sequence_length]
  // Row-major [count, sequence_length]: where each position's document begins within its sample. Empty unless documents
  // are masked (data.mask_across_documents).
  std::vector<int64_t> document_starts = {};
  int64_t loss_tokens = 0;  // targets that carry loss
};

struct TrainingSource {
  std::string path;
  int64_t sequences = 0;  // per epoch
  double share = 0;       // fraction of all training samples
};

// The lengths of documents within training sequences.
struct DocumentLengths {
  // Mean length of the document to which a token belongs, in tokens. Attention within documents does as much work as
  // full attention in sequences of this length.
  double of_a_token = 0;
  // Standard deviation of the attention work per sequence, relative to its mean.
  double deviation = 0;
};

// A source of held-out data: a file of data.held_out, or the held-out tail of a training file.
struct HeldOutSource {
  std::string name;     // path; repeated paths get " (2)", " (3)" and so on
  int64_t samples = 0;  // at least one
};

// The training data and the held-out data. Immutable, so all methods are thread-safe.
class Dataset {
 public:
  // Opens every source. Throws UserError for any fault of a source, for a corpus shorter than one sequence, and for a
  // corpus without any token that carries loss. Also throws UserError for text if vocab_size < 256, because each byte
  // of text is a token. If the configuration does not set data.mask_across_documents, documents are masked if
  // `masks_by_default` is set and a training source has several documents.
  Dataset(const DataConfig& config, int64_t sequence_length, int64_t vocab_size, uint64_t seed,
          bool masks_by_default = false);
  ~Dataset();
  Dataset(Dataset&&) noexcept;
  Dataset& operator=(Dataset&&) noexcept;

  // Reads samples first_sample .. first_sample+count of the global order, which is a pure function of (seed, index).
  // Within an epoch no sample is skipped or repeated. If no source has a weight, all sources share one epoch; otherwise
  // each source has its own epochs. Throws UserError for a token id outside the vocabulary, and for a missing shard.
  Batch train_batch(uint64_t first_sample, int64_t count) const;

  // With data.shuffle_shards, opens the shards of samples first_sample .. first_sample+count. Returns the name and
  // state of a shard that is missing or incomplete on this machine. Returns nothing if all are complete; the samples
  // then stay readable even if somebody deletes the shards. Throws UserError for a shard that is too long, even if
  // others are missing.
  std::optional<std::string> missing_shard(uint64_t first_sample, int64_t count) const;
  // With data.shuffle_shards, return the number of shards that contain these samples, and how many bytes of these
  // shards are missing on this machine; otherwise 0.
  int64_t num_shards_of(uint64_t first_sample, int64_t count) const;
  int64_t missing_shard_bytes(uint64_t first_sample, int64_t count) const;
  // With data.shuffle_shards, lists up to `count` distinct shards in the order in which samples from `first_sample` on
  // need them; otherwise returns an empty list.
  std::vector<std::string> shards_from(uint64_t first_sample, int64_t count) const;

  // Returns the Batch::loss_tokens of these samples without reading tokens. A global batch's loss is divided by this
  // number.
  int64_t loss_tokens(uint64_t first_sample, int64_t count) const;

  // The held-out sources, in the order of the configuration. Empty if data.held_out is empty and data.held_out_fraction
  // is 0. The last sample of a source is padded with positions without loss.
  const std::vector<HeldOutSource>& held_out_sources() const;
  int64_t held_out_samples() const;  // of all held-out sources
  // Samples first .. first+count of a held-out source.
  Batch held_out_batch(int64_t source, int64_t first, int64_t count) const;
  // Returns the samples that an evaluation of `samples` samples reads. Held-out tails of weighted sources keep their
  // training weights; other sources are weighted by size.
  std::vector<HeldOutPart> held_out_parts(int64_t samples) const;

  // The number of training positions in an epoch that have a next token, counted once, including ends of documents.
  int64_t train_tokens() const;
  int64_t held_out_tokens() const;

  // The training sources, in the order of the configuration.
  std::vector<TrainingSource> training_sources() const;

  // Return whether a training source has several documents, and whether attention is limited to a token's document.
  bool has_several_documents() const;
  bool masks_across_documents() const;

  // Estimates the lengths from the document ends of 1,024 sequences, drawn from the sources by their shares. A pure
  // function of the data and the seed.
  DocumentLengths document_lengths() const;

  // Returns whether all sources are text. A token is then a byte, and nats per token are nats per byte.
  bool bytes() const;

  // Returns a hash of the training data and their order, which a resumed run compares. It depends on contents, settings
  // and seed, but not on the machine or paths. Of large files it covers only samples of the contents. With
  // data.shuffle_shards it covers only the .idx files, since the .bin files may not have arrived yet.
  std::string fingerprint() const;
  // Returns a hash of the held-out data that an evaluation of `samples` samples reads.
  std::string held_out_fingerprint(int64_t samples) const;

 private:
  struct Implementation;
  std::unique_ptr<const Implementation> implementation_;
};

}  // namespace copus
