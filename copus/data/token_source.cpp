#include "copus/data/token_source.h"

#include <algorithm>
#include <filesystem>
#include <iomanip>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/files/path_pattern.h"
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

// Returns the prefix of a pair if the path names one of its two files: "corpus" for "corpus.idx".
std::string prefix_of_half(const std::string& path) {
  const std::filesystem::path file(path);
  if (file.extension() != ".bin" && file.extension() != ".idx") return "";
  return std::filesystem::path(file).replace_extension().string();
}

}  // namespace

std::vector<std::string> corpora_of(const std::string& path) {
  if (!is_path_pattern(path) || is_file(path) || is_file(path + ".bin") || is_file(path + ".idx")) return {path};
  std::set<std::string> corpora;
  // A pattern may match prefixes of pairs, although no file has the prefix as its name.
  for (const std::string& pattern : {path, path + ".bin", path + ".idx"}) {
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

namespace {

// Checks that every shard that tools/tokenize_corpus.py wrote has an index. If shards were missing, the run would train
// on another corpus.
void check_all_shards_are_here(const std::string& pattern, const std::vector<std::string>& shards) {
  constexpr std::string_view of = "-*-of-";
  const size_t at = pattern.rfind(of);
  if (at == std::string::npos) return;
  const std::string stem = pattern.substr(0, at), digits = pattern.substr(at + of.size());
  const bool is_number = std::ranges::all_of(digits, [](char c) { return '0' <= c && c <= '9'; });
  if (!is_number || digits.size() < 5 || digits.size() > 9) return;
  const int64_t count = std::stoll(digits);
  if (std::ssize(shards) == count) return;
  for (int64_t number = 0; number < count; ++number) {
    std::ostringstream index;
    index << stem << '-' << std::setfill('0') << std::setw(5) << number << "-of-" << digits << ".idx";
    if (is_file(index.str())) continue;
    throw UserError(concat(pattern, ": ", index.str(), " is missing, and the pattern is for all ", count,
                           " shards; bring them here first (tools/fetch_shards.py does)"));
  }
  throw UserError(concat(pattern, ": ", shards.size(), " shards match, and their names say that there are ", count));
}

}  // namespace

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
    const std::vector<std::string> corpora = corpora_of(path);
    if (is_file(corpora.front() + ".idx")) check_all_shards_are_here(path, corpora);
    for (const std::string& shard : corpora) {
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

std::vector<std::unique_ptr<MegatronSource>> open_shards(const std::string& path, int64_t vocab_size,
                                                         const std::shared_ptr<FilePool>& tokens) {
  const std::vector<std::string> shards = corpora_of(path);
  check_all_shards_are_here(path, shards);
  std::vector<std::unique_ptr<MegatronSource>> result;
  for (const std::string& shard : shards) {
    if (!is_file(shard + ".idx")) {
      throw UserError(concat(path, ": data.shuffle_shards reads tokenized pairs, and there is no ", shard,
                             ".idx; make pairs by tools/tokenize_corpus.py --shard-tokens, or leave the setting out"));
    }
    result.push_back(std::make_unique<MegatronSource>(shard, vocab_size, tokens));
  }
  return result;
}

}  // namespace copus
