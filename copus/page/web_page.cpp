#include "copus/page/web_page.h"

#include <map>

#include "copus/base/error.h"
#include "copus/base/text/escape_html.h"
#include "copus/page/embedded_files.h"

namespace copus {

namespace {

// Fills in all parts in one pass, so that inserted text is never parsed for placeholders.
std::string fill_in(std::string_view page, const std::map<std::string_view, std::string_view>& parts) {
  std::string out;
  for (size_t open = 0; (open = page.find("{{")) != std::string_view::npos;) {
    const size_t close = page.find("}}", open);
    COPUS_CHECK(close != std::string_view::npos, "page.html");
    out.append(page.substr(0, open));
    out.append(parts.at(page.substr(open + 2, close - open - 2)));
    page.remove_prefix(close + 2);
  }
  return out.append(page);
}

// Escapes every "<", because a browser would end the script element at "</script" and hide text after "<!--".
std::string escape_json_in_html(std::string_view json) {
  std::string out;
  for (const char c : json) out += c == '<' ? "\\u003c" : std::string(1, c);
  return out;
}

}  // namespace

std::string to_html(const WebPage& page) {
  const std::string title = escape_html(page.title);
  const std::string data = escape_json_in_html(page.data);
  return fill_in(page_html, {{"title", title},
                             {"uplot_style", uplot_css},
                             {"style", page_css},
                             {"body", page.body},
                             {"data", data},
                             {"uplot", uplot_js},
                             {"charts", charts_js},
                             {"script", page.script}});
}

std::string to_html(const WebTable& table) {
  std::string head;
  for (const auto& column : table.columns) head += concat("<th>", escape_html(column.name), "</th>");
  std::string rows;
  for (const auto& row : table.rows) {
    rows += "<tr>";
    for (size_t i = 0; i < row.size(); ++i) {
      const WebTable::Column& column = table.columns.at(i);
      rows += concat("<td class=\"", column.wraps ? "text" : "number", "\" data-column=\"", escape_html(column.name),
                     "\"><span>", row[i], "</span></td>");
    }
    rows += "</tr>\n";
  }
  return concat("<div class=\"table\"><table><thead><tr>", head, "</tr></thead><tbody>\n", rows,
                "</tbody></table></div>\n");
}

}  // namespace copus
