#include "copus/base/text/text_table.h"

#include <algorithm>
#include <utility>

#include "copus/base/error.h"

namespace copus {

TextTable::TextTable(std::vector<std::string> header, FirstColumn first) : first_(first) { add(std::move(header)); }

void TextTable::add(std::vector<std::string> row) {
  COPUS_CHECK(rows_.empty() || row.size() == rows_.front().size(), row.size(), " cells");
  rows_.push_back(std::move(row));
}

std::string TextTable::text() const {
  std::vector<size_t> widths(rows_.front().size(), 0);
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string space(widths[i] - row[i].size(), ' ');
      const bool is_left = i == 0 && first_ == FirstColumn::left;
      text += concat(i == 0 ? "" : "  ", is_left ? row[i] + space : space + row[i]);
    }
    text += '\n';
  }
  return text;
}

}  // namespace copus
