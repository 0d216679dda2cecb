// A token source: a stream of token ids with random access, divided into documents.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace copus {

// The interface of all sources. Immutable, and all methods are thread-safe.
class TokenSource {
 public:
  virtual ~TokenSource() = default;

  // Path as the user wrote it, for messages.
  virtual const std::string& path() const = 0;

  // Number of tokens in the stream.
  virtual int64_t size() const = 0;

  // Writes tokens begin .. begin+count to `out`; the range must lie within the stream. Throws UserError for a token id
  // outside the vocabulary.
  virtual void read(int64_t begin, int64_t count, int64_t* out) const = 0;

  // The number of documents, which cover the stream in order, and the index one past the last token of a document.
  virtual int64_t num_documents() const = 0;
  virtual int64_t document_end(int64_t document) const = 0;

  // Returns whether the source is text: its tokens are bytes and end-of-document tokens.
  virtual bool is_text() const = 0;

  // Returns the first document that ends after `position`, or num_documents() if there is none.
  int64_t document_at(int64_t position) const;
};

// Lists the corpora that a path names: the path itself, unless it is a pattern (base/files/path_pattern.h) and no file
// or pair has exactly this name. A pattern gives the matching text files and prefixes of .bin/.idx pairs, sorted. For a
// pair, the pattern may match one file, both files, or the prefix. Throws UserError if nothing matches.
std::vector<std::string> corpora_of(const std::string& path);

// Opens a text file, the prefix of a Megatron .bin/.idx pair, or a pattern, whose corpora are joined into one stream,
// sorted by name. A regular file with exactly this name is text. Throws UserError if nothing has this name, and for any
// fault of the contents.
std::unique_ptr<TokenSource> open_token_source(const std::string& path, const std::string& document_separator,
                                               int64_t vocab_size);

class FilePool;
class MegatronSource;

// Opens the .bin/.idx pairs that a path names, sorted by name. Their .bin files are opened later, on first use, in
// `tokens`. Throws UserError for text, for a missing or wrong .idx, or if a pattern that ends in, say, -*-of-00012 does
// not match 12 pairs.
std::vector<std::unique_ptr<MegatronSource>> open_shards(const std::string& path, int64_t vocab_size,
                                                         const std::shared_ptr<FilePool>& tokens);

}  // namespace copus
