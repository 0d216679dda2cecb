#include "copus/data/token_source.h"

#include <filesystem>
#include <set>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/path_pattern.h"
#include "copus/data/megatron_source.h"
#include "copus/data/sharded_source.h"
#include "copus/data/text_source.h"

namespace copus {

int64_t TokenSource::document_at(int64_t position) const {
  int64_t low = 0;
  int64_t high = num_documents();
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (document_end(middle) > position) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

namespace {

bool is_file(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

// Returns the prefix of a pair when the user named one half of it: "corpus" for "corpus.idx".
std::string prefix_of_half(const std::string& path) {
  const std::filesystem::path file(path);
  if (file.extension() != ".bin" && file.extension() != ".idx") return "";
  return std::filesystem::path(file).replace_extension().string();
}

}  // namespace

std::vector<std::string> corpora_of(const std::string& path) {
  if (!is_path_pattern(path) || is_file(path) || is_file(path + ".bin")) return {path};
  std::set<std::string> corpora;
  // A pattern may be of prefixes, which are no files themselves.
  for (const std::string& pattern : {path, path + ".bin"}) {
    for (const std::string& file : matching_paths(pattern)) {
      if (!is_file(file)) continue;
      const std::string prefix = prefix_of_half(file);
      corpora.insert(prefix.empty() ? file : prefix);
    }
  }
  if (corpora.empty())
    throw UserError(concat(path,
                           ": no file matches this pattern; expected text files or .bin/.idx pairs; paths begin in "
                           "the folder that the command runs in"));
  return {corpora.begin(), corpora.end()};
}

std::unique_ptr<TokenSource> open_token_source(const std::string& path, const std::string& document_separator,
                                               int64_t vocab_size) {
  if (is_file(path)) {
    const std::string prefix = prefix_of_half(path);
    if (!prefix.empty() && is_file(prefix + ".bin") && is_file(prefix + ".idx"))
      throw UserError(
          concat(path, ": is one half of a tokenized pair; give the prefix without .bin or .idx: ", prefix));
    if (vocab_size < TextSource::vocab_size)
      throw UserError(concat(path, ": is read as text, whose tokens are bytes: model.vocab_size must be at least ",
                             TextSource::vocab_size, ", not ", vocab_size));
    return std::make_unique<TextSource>(path, document_separator);
  }
  const bool has_tokens = is_file(path + ".bin");
  const bool has_index = is_file(path + ".idx");
  if (has_tokens && has_index) return std::make_unique<MegatronSource>(path, vocab_size);
  if (has_tokens || has_index)
    throw UserError(concat(path, has_tokens ? ".bin: its index " : ".idx: its tokens ", path,
                           has_tokens ? ".idx" : ".bin", " is missing; a tokenized corpus is the pair of both files",
                           has_tokens ? ", and tools/tokens_to_pair.py makes one of bare token ids" : ""));
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    throw UserError(concat(path, ": it is a folder; expected a UTF-8 text file or the prefix of a .bin/.idx pair"));
  if (path.find("://") != std::string::npos) {
    throw UserError(concat(path, ": is an address; expected a file of this machine: download it first"));
  }
  if (is_path_pattern(path)) {
    std::vector<std::unique_ptr<TokenSource>> shards;
    for (const std::string& shard : corpora_of(path)) {
      shards.push_back(open_token_source(shard, document_separator, vocab_size));
    }
    return std::make_unique<ShardedSource>(path, std::move(shards));
  }
  if (const std::string prefix = prefix_of_half(path); !prefix.empty()) {
    throw UserError(concat(path, ": no such corpus: there is no such file; a tokenized pair, ", prefix, ".bin and ",
                           prefix, ".idx, is named by ", prefix));
  }
  throw UserError(concat(path, ": no such corpus: looked for the text file ", path, " and for the pair ", path,
                         ".bin and ", path, ".idx; paths begin in the folder that the command runs in"));
}

}  // namespace copus
