// Converts between text and a model's tokens, for `copus generate`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "copus/cli/generate/utf8_stream.h"

namespace copus {

class TokenText {
 public:
  virtual ~TokenText() = default;

  // Returns the tokens of a text. Throws UserError if it cannot be encoded.
  virtual std::vector<int64_t> encode(const std::string& text) = 0;

  // The token that ends a document; empty if unknown.
  virtual std::optional<int64_t> end_of_document() const = 0;

  // Returns the text that this token completes, which may be empty. All tokens passed in form one text.
  virtual std::string add(int64_t token) = 0;

  // Returns the rest of the text: the replacement for an unfinished character, or nothing.
  virtual std::string finish() = 0;
};

// Tokens that are the bytes of UTF-8 text, and a token that ends a document.
class ByteText final : public TokenText {
 public:
  std::vector<int64_t> encode(const std::string& text) override;
  std::optional<int64_t> end_of_document() const override;
  std::string add(int64_t token) override;
  std::string finish() override { return utf8_.finish(); }

 private:
  Utf8Stream utf8_;
};

// Tokens printed as their ids, separated by blanks, for a model without its tokenizer.
class IdText final : public TokenText {
 public:
  explicit IdText(int64_t vocab_size) : vocab_size_(vocab_size) {}
  std::vector<int64_t> encode(const std::string& text) override;
  std::optional<int64_t> end_of_document() const override { return std::nullopt; }
  std::string add(int64_t token) override;
  std::string finish() override { return ""; }

 private:
  int64_t vocab_size_;
};

}  // namespace copus
