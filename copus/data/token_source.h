// A source of tokens: one long stream of token ids with random access, divided into documents.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace copus {

// The interface of all sources. Immutable; several threads may call every method at once.
class TokenSource {
 public:
  virtual ~TokenSource() = default;

  // Path as the user wrote it, for messages.
  virtual const std::string& path() const = 0;

  // Number of tokens in the stream.
  virtual int64_t size() const = 0;

  // Writes tokens begin .. begin+count to `out`; the range must lie inside the stream. Throws UserError for an id
  // outside the vocabulary.
  virtual void read(int64_t begin, int64_t count, int64_t* out) const = 0;

  // The number of documents, which cover the stream in order. document_end is one past the last token of a document.
  virtual int64_t num_documents() const = 0;
  virtual int64_t document_end(int64_t document) const = 0;

  // Returns whether tokens are bytes of text and end-of-document tokens.
  virtual bool is_text() const = 0;

  // Returns the first document that ends after `position`, or num_documents() if there is none.
  int64_t document_at(int64_t position) const;
};

// Lists the corpora that a path names: the path itself, or, if the path is a pattern (base/files/path_pattern.h) and no
// file or pair has exactly this name, the matching text files and prefixes of .bin/.idx pairs, sorted. A pattern may
// match either half of a pair, both, or its prefix. Throws UserError if nothing matches.
std::vector<std::string> corpora_of(const std::string& path);

// Opens a text file, the prefix of a Megatron .bin/.idx pair, or a pattern, whose corpora become one stream in the
// order of their names. A regular file with exactly this name is text. Throws UserError if there is none, and for any
// fault of its contents.
std::unique_ptr<TokenSource> open_token_source(const std::string& path, const std::string& document_separator,
                                               int64_t vocab_size);

class FilePool;
class MegatronSource;

// Opens the .bin/.idx pairs that a path names, in the order of their names, without their .bin files, which `tokens`
// opens when they are read. Throws UserError for text, for an .idx that is missing or wrong, and where a pattern that
// ends in -*-of-00012 does not match that many.
std::vector<std::unique_ptr<MegatronSource>> open_shards(const std::string& path, int64_t vocab_size,
                                                         const std::shared_ptr<FilePool>& tokens);

}  // namespace copus
