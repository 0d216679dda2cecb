// The text of a model's tokens, for `copus generate`: which tokens a prompt is, and what tokens are to people.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "copus/cli/utf8_stream.h"

namespace copus {

class TokenText {
 public:
  virtual ~TokenText() = default;

  // Returns the tokens of a text. Throws UserError where it has none.
  virtual std::vector<int64_t> encode(const std::string& text) = 0;

  // The token that ends a document; empty where nobody knows it.
  virtual std::optional<int64_t> end_of_document() const = 0;

  // Returns the text that is complete with this token, which may be none. All tokens are shown to one text.
  virtual std::string add(int64_t token) = 0;

  // Returns the rest of the text: what stands for an unfinished character, or nothing.
  virtual std::string finish() = 0;
};

// Tokens that are the bytes of UTF-8 text, and one that ends a document.
class ByteText final : public TokenText {
 public:
  std::vector<int64_t> encode(const std::string& text) override;
  std::optional<int64_t> end_of_document() const override;
  std::string add(int64_t token) override;
  std::string finish() override { return utf8_.finish(); }

 private:
  Utf8Stream utf8_;
};

// Tokens as their ids, with blanks between them, for a model whose tokenizer is not there.
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
