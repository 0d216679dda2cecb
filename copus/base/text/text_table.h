// A table as text. Each column is as wide as its content.
#pragma once

#include <string>
#include <vector>

namespace copus {

class TextTable {
 public:
  // Numbers are aligned right. A first column of names is aligned left.
  enum class FirstColumn { right, left };

  explicit TextTable(std::vector<std::string> header, FirstColumn first = FirstColumn::right);

  // A row has as many cells as the header.
  void add(std::vector<std::string> row);
  std::string text() const;

 private:
  FirstColumn first_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace copus
