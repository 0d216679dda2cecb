#include "copus/cli/generate/token_text.h"

#include <algorithm>
#include <charconv>
#include <sstream>
#include <system_error>

#include "copus/base/error.h"

namespace copus {

namespace {

// The token that ends a document if tokens are bytes. No UTF-8 text contains it.
constexpr int64_t byte_behind_a_document = 0xFF;

}  // namespace

std::vector<int64_t> ByteText::encode(const std::string& text) {
  std::vector<int64_t> tokens;
  for (const char byte : text) tokens.push_back(static_cast<uint8_t>(byte));
  return tokens;
}

std::optional<int64_t> ByteText::end_of_document() const { return byte_behind_a_document; }

// The vocabulary of a byte model may be larger than 256; tokens above 255 have no meaning and give no text.
std::string ByteText::add(int64_t token) {
  return utf8_.add(static_cast<uint8_t>(std::min<int64_t>(token, byte_behind_a_document)));
}

std::vector<int64_t> IdText::encode(const std::string& text) {
  std::vector<int64_t> tokens;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    int64_t token = -1;
    const auto [stopped, error] = std::from_chars(word.data(), word.data() + word.size(), token);
    const bool is_number = error == std::errc() && stopped == word.data() + word.size();
    if (!is_number || token < 0 || token >= vocab_size_) {
      throw UserError(concat("--prompt: '", word, "' is no token id of this model; with --ids, give ids from 0 to ",
                             vocab_size_ - 1, " with blanks between them"));
    }
    tokens.push_back(token);
  }
  return tokens;
}

std::string IdText::add(int64_t token) { return concat(token, ' '); }

}  // namespace copus
