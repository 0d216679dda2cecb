// Documents packed into sequences of one length, and sequences collected into a batch.
#pragma once

#include <cstdint>

#include "copus/data/dataset.h"
#include "copus/data/token_source.h"

namespace copus {

// A part of a token stream, cut into samples of sequence_length positions. Sample i reads the tokens
// [begin + i*L, begin + i*L + L], one more than it has positions: the target of a position is the next token, so
// neighbouring samples share one token and every token but the first is predicted once. Documents follow each other
// without padding. Refers to the source for its whole life.
class PackedTokens {
 public:
  // Packs tokens [begin, end) of `source`. With mask_document_ends, the last token of a document has no target: the
  // next token begins another document.
  PackedTokens(const TokenSource& source, int64_t begin, int64_t end, int64_t sequence_length, bool mask_document_ends);

  // Number of positions that have a next token; the last sample may be filled by fewer than sequence_length of them.
  int64_t num_positions() const { return num_positions_; }
  int64_t num_samples() const { return (num_positions_ + sequence_length_ - 1) / sequence_length_; }

  // Where a sample is written to, sequence_length values each, with the meaning that they have in Batch.
  struct Sample {
    int64_t *tokens, *targets;
    int64_t* document_starts;  // null: not wanted
  };

  // Writes one sample; returns the number of targets that carry loss. Positions behind the end of the part hold token
  // 0, no loss, and a document of their own.
  int64_t read(int64_t sample, const Sample& to) const;

  // Tells whether any position carries loss, from the document ends alone.
  bool has_loss() const;

  // Number that read would return, from the document ends alone.
  int64_t loss_tokens(int64_t sample) const;

  // The sum of the squared lengths of the sample's documents, as far as they lie in it. Attention that ends at
  // documents does work in proportion.
  double squared_lengths(int64_t sample) const;

 private:
  int64_t sample_positions(int64_t sample) const;

  // Calls action(position) for every position of the sample, counted from its start, that ends a document.
  template <class Action>
  void for_each_document_end(int64_t sample, const Action& action) const;

  const TokenSource* source_;
  int64_t begin_;
  int64_t num_positions_;
  int64_t sequence_length_;
  bool mask_document_ends_;
};

// Collects samples into a Batch of exactly `count`, with the starts of documents where they are wanted.
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
