// Documents packed into sequences of one length, and sequences collected into a batch.
#pragma once

#include <cstdint>

#include "copus/data/dataset.h"
#include "copus/data/token_source.h"

namespace copus {

// A range of a token stream, divided into samples of L = sequence_length positions. Sample i reads the L + 1 tokens
// [begin + i*L, begin + i*L + L], because the target of a position is the next token. Neighbouring samples therefore
// share one token, and every token but the first is predicted once. Documents follow each other without padding.
// `source` must outlive this object.
class PackedTokens {
 public:
  // Packs tokens [begin, end) of `source`. With mask_document_ends, the last token of a document has no target, because
  // the next token begins another document.
  PackedTokens(const TokenSource& source, int64_t begin, int64_t end, int64_t sequence_length, bool mask_document_ends);

  // The number of positions with a next token. The last sample may have fewer than sequence_length such positions.
  int64_t num_positions() const { return num_positions_; }
  int64_t num_samples() const { return (num_positions_ + sequence_length_ - 1) / sequence_length_; }

  // The output of read(): sequence_length values each, as in the members of Batch.
  struct Sample {
    int64_t *tokens, *targets;
    int64_t* document_starts;  // null: not needed
  };

  // Writes one sample and returns the number of targets that carry loss. Positions past the end of the range get token
  // 0, no loss, and a document of their own.
  int64_t read(int64_t sample, const Sample& to) const;

  // Returns whether any position carries loss, from the document ends alone.
  bool has_loss() const;

  // Returns the number that read() would return, from the document ends alone.
  int64_t loss_tokens(int64_t sample) const;

  // Returns the sum of the squared lengths of the documents in the sample. Only the parts of documents within the
  // sample count. The work of attention within documents is proportional to this sum.
  double squared_lengths(int64_t sample) const;

 private:
  int64_t sample_positions(int64_t sample) const;

  // Calls action(position) for each document end in the sample. Positions count from the sample's start.
  template <class Action>
  void for_each_document_end(int64_t sample, const Action& action) const;

  const TokenSource* source_;
  int64_t begin_;
  int64_t num_positions_;
  int64_t sequence_length_;
  bool mask_document_ends_;
};

// Collects exactly `count` samples into a Batch, with document starts if requested.
class BatchBuilder {
 public:
  BatchBuilder(int64_t count, int64_t sequence_length, bool with_document_starts);
  void append(const PackedTokens& packed, int64_t sample);
  Batch take();

 private:
  Batch batch_;
  int64_t sequence_length_;
  int64_t filled_ = 0;  // positions
};

}  // namespace copus
