#pragma once
// What all HTML pages share: how text is escaped, the head, and one style sheet. Everything is
// inside the page; colours follow the reader's light or dark screen. Internal.
#include <string>

namespace quipu::detail {

std::string html_escape(const std::string& text);

/// Everything up to and including <body>. `style` is what the page adds to the common style sheet,
/// which has the colours --page, --card, --text, --soft, --line and --grid.
std::string html_page_begin(const std::string& title, const std::string& style = "");
std::string html_page_end();

}  // namespace quipu::detail
