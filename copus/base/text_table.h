// A table as text: its columns are as wide as they need be.
#pragma once

#include <string>
#include <vector>

namespace copus {

class TextTable {
 public:
  // Numbers stand to the right of their column; a first column of names, to the left.
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
