// A UTF-8 text file as tokens: a token is a byte, and each document ends with a special token.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "copus/base/files/mapped_file.h"
#include "copus/data/token_source.h"

namespace copus {

// Memory-maps the file. The file contains no end-of-document tokens; read() inserts them after each document.
class TextSource final : public TokenSource {
 public:
  static constexpr int64_t vocab_size = 256;

  // The token after the last byte of a document. This byte never occurs in UTF-8.
  static constexpr int64_t end_of_document = 0xFF;

  // Opens the file and splits it into documents at each `document_separator`, which is dropped. Empty documents are
  // dropped. An empty separator makes the file one document. Throws UserError if the file cannot be read, contains no
  // text, is not a text file (the message names its format), or is not UTF-8 (the message gives byte offset and line of
  // the first error).
  TextSource(const std::string& path, const std::string& document_separator);

  const std::string& path() const override { return file_.path(); }
  int64_t size() const override { return documents_.back().token_end; }
  void read(int64_t begin, int64_t count, int64_t* out) const override;
  int64_t num_documents() const override { return static_cast<int64_t>(documents_.size()); }
  int64_t document_end(int64_t document) const override;
  bool is_text() const override { return true; }

 private:
  struct Document {
    int64_t file_begin;  // byte offset of the document's first byte
    int64_t token_end;   // one past the document's end-of-document token
  };

  MappedFile file_;
  std::vector<Document> documents_;
};

}  // namespace copus
