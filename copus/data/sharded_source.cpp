#include "copus/data/sharded_source.h"

#include <algorithm>
#include <utility>

#include "copus/base/error.h"

namespace copus {

namespace {

// Returns the index of the shard that contains a position (a token or a document).
std::size_t shard_of(const std::vector<int64_t>& begins, int64_t position) {
  return static_cast<std::size_t>(std::ranges::upper_bound(begins, position) - begins.begin()) - 1;
}

}  // namespace

ShardedSource::ShardedSource(const std::string& pattern, std::vector<std::unique_ptr<TokenSource>> shards)
    : pattern_(pattern), shards_(std::move(shards)) {
  COPUS_CHECK(!shards_.empty(), pattern_);
  for (const auto& shard : shards_) {
    if (shard->is_text() != is_text())
      throw UserError(
          concat(pattern_, ": ", shards_.front()->path(), " and ", shard->path(), " match and do not go ",
                 "together: one is text, read as bytes, the other is tokenized; give a pattern of one kind"));
    token_begins_.push_back(token_begins_.back() + shard->size());
    document_begins_.push_back(document_begins_.back() + shard->num_documents());
  }
}

void ShardedSource::read(int64_t begin, int64_t count, int64_t* out) const {
  COPUS_CHECK(begin >= 0 && count >= 0 && begin + count <= size(), "tokens ", begin, " + ", count, " of ", size());
  while (count > 0) {
    const std::size_t shard = shard_of(token_begins_, begin);
    const int64_t here = std::min(count, token_begins_[shard + 1] - begin);
    shards_[shard]->read(begin - token_begins_[shard], here, out);
    begin += here;
    count -= here;
    out += here;
  }
}

int64_t ShardedSource::document_end(int64_t document) const {
  const std::size_t shard = shard_of(document_begins_, document);
  return token_begins_[shard] + shards_[shard]->document_end(document - document_begins_[shard]);
}

}  // namespace copus
