#include "copus/data/text_source.h"

#include <algorithm>
#include <string_view>

#include "copus/base/error.h"
#include "copus/base/text/utf8.h"
#include "copus/data/file_format.h"

namespace copus {
namespace {

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

}  // namespace

TextSource::TextSource(const std::string& path, const std::string& document_separator) : file_(path) {
  const std::string_view text = text_of(file_);
  if (text.empty()) throw UserError(concat(path, ": is empty; expected UTF-8 text"));
  if (const auto format = format_of_corpus(text, path)) throw UserError(concat(path, ": ", *format));
  if (const auto invalid = find_invalid_utf8(text)) {
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(*invalid), '\n');
    throw UserError(concat(path, ": is not UTF-8 text: the byte at offset ", *invalid, " (line ", line, ") is 0x",
                           std::hex, static_cast<unsigned>(static_cast<unsigned char>(text[*invalid])),
                           "; convert the file to UTF-8, for example with iconv"));
  }
  std::size_t begin = 0;
  int64_t tokens = 0;
  while (begin < text.size()) {
    const std::size_t found =
        document_separator.empty() ? std::string_view::npos : text.find(document_separator, begin);
    const std::size_t end = std::min(found, text.size());
    if (end > begin) {
      tokens += static_cast<int64_t>(end - begin) + 1;
      documents_.push_back({static_cast<int64_t>(begin), tokens});
    }
    begin = found == std::string_view::npos ? text.size() : found + document_separator.size();
  }
  if (documents_.empty()) throw UserError(concat(path, ": is empty: it holds document separators and no text"));
}

int64_t TextSource::document_end(int64_t document) const {
  return documents_[static_cast<std::size_t>(document)].token_end;
}

void TextSource::read(int64_t begin, int64_t count, int64_t* out) const {
  COPUS_CHECK(begin >= 0 && count >= 0 && begin + count <= size(), "tokens ", begin, " + ", count, " of ", size());
  const std::string_view text = text_of(file_);
  const int64_t end = begin + count;
  for (int64_t position = begin, document = document_at(begin); position < end; ++document) {
    const Document& current = documents_[static_cast<std::size_t>(document)];
    const int64_t token_begin = document == 0 ? 0 : document_end(document - 1);
    const int64_t text_end = current.token_end - 1;
    for (; position < std::min(end, text_end); ++position) {
      const auto offset = static_cast<std::size_t>(current.file_begin + position - token_begin);
      *out++ = static_cast<unsigned char>(text[offset]);
    }
    if (position == text_end && position < end) {
      *out++ = end_of_document;
      ++position;
    }
  }
}

}  // namespace copus
