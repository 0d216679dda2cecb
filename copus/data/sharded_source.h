// The shards of a corpus, named by a pattern, as one stream of tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "copus/data/token_source.h"

namespace copus {

class ShardedSource final : public TokenSource {
 public:
  // Takes at least one shard. Throws UserError unless all shards are text or all are token ids.
  ShardedSource(const std::string& pattern, std::vector<std::unique_ptr<TokenSource>> shards);

  const std::string& path() const override { return pattern_; }
  int64_t size() const override { return token_begins_.back(); }
  void read(int64_t begin, int64_t count, int64_t* out) const override;
  int64_t num_documents() const override { return document_begins_.back(); }
  int64_t document_end(int64_t document) const override;
  bool is_text() const override { return shards_.front()->is_text(); }

 private:
  std::string pattern_;
  std::vector<std::unique_ptr<TokenSource>> shards_;
  // The number of tokens or documents before each shard, then the total.
  std::vector<int64_t> token_begins_{0}, document_begins_{0};
};

}  // namespace copus
