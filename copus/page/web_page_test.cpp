// The page around a body: escaped, complete and self-contained.
#include "copus/page/web_page.h"

#include <gmock/gmock.h>

#include "copus/base/error.h"

namespace copus {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(WebPage, HoldsTitleBodyDataAndScript) {
  const std::string html =
      to_html({.title = "a run", .body = "<h1>run</h1>", .data = "{\"a\":1}", .script = "draw();"});
  EXPECT_THAT(html, AllOf(HasSubstr("<title>a run</title>"), HasSubstr("<main>\n<h1>run</h1></main>"),
                          HasSubstr("id=\"data\">{\"a\":1}</script>"), HasSubstr("draw();</script>")));
  EXPECT_THAT(html, Not(HasSubstr("{{")));
}

TEST(WebPage, NothingInTheDataEndsItsElement) {
  const std::string html =
      to_html({.title = "</title><script>", .body = "", .data = R"(["</script><!-- <script>"])", .script = ""});
  EXPECT_THAT(html, HasSubstr(R"(["\u003c/script>\u003c!-- \u003cscript>"])"));
  EXPECT_THAT(html, HasSubstr("<title>&lt;/title&gt;&lt;script&gt;</title>"));
}

TEST(WebPage, InsertedTextIsNotFilledIn) {
  const std::string html = to_html({.title = "", .body = "{{data}}", .data = "\"{{title}}\"", .script = "// {{body}}"});
  EXPECT_THAT(html, AllOf(HasSubstr("<main>\n{{data}}</main>"), HasSubstr("\"{{title}}\""), HasSubstr("// {{body}}")));
}

TEST(WebPage, AsksForNothing) {
  const std::string html = to_html({.title = "", .body = "", .data = "{}", .script = ""});
  EXPECT_THAT(html, HasSubstr("default-src 'none'"));
  for (const char* text : {"src=", "<link", "@import", "url(", "fetch(", "XMLHttpRequest"}) {
    EXPECT_THAT(html, Not(HasSubstr(text)));
  }
}

TEST(WebTable, CellsNameTheirColumns) {
  const std::string html = to_html(WebTable{{{"step"}, {"why", true}}, {{"3", "a &lt; b"}, {"4", ""}}});
  EXPECT_THAT(html, AllOf(HasSubstr("<tr><th>step</th><th>why</th></tr>"),
                          HasSubstr("<td class=\"number\" data-column=\"step\"><span>3</span></td>"),
                          HasSubstr("<td class=\"text\" data-column=\"why\"><span>a &lt; b</span></td>")));
}

}  // namespace
}  // namespace copus
