#include "quipu/core/report/html.h"

namespace quipu::detail {
namespace {

// scripts/gpu_report reads the style sheet from here.
constexpr const char* common_style = R"css(
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --text: #1c2330; --soft: #5d6778;
  --line: #2f6fdf; --grid: #dfe3ea; }
@media (prefers-color-scheme: dark) { :root { --page: #12151b; --card: #1b2029; --text: #e6e9ef;
  --soft: #97a1b2; --line: #7aa9ff; --grid: #2c3340; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1040px; padding: 28px 20px 48px; background: var(--page);
  color: var(--text); font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
h1 { font-size: 26px; margin: 0; }
h2 { font-size: 16px; margin: 0 0 8px; }
.summary { color: var(--soft); font-size: 17px; margin: 6px 0 18px; }
section { background: var(--card); border-radius: 10px; padding: 14px 16px; margin-top: 12px;
  overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
)css";

}  // namespace

std::string html_escape(const std::string& text) {
  std::string html;
  for (const char c : text) {
    switch (c) {
      case '&': html += "&amp;"; break;
      case '<': html += "&lt;"; break;
      case '>': html += "&gt;"; break;
      case '"': html += "&quot;"; break;
      default: html += c;
    }
  }
  return html;
}

std::string html_page_begin(const std::string& title, const std::string& style) {
  return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>" +
         html_escape(title) + "</title>\n<style>" + common_style + style +
         "</style>\n</head>\n<body>\n";
}

std::string html_page_end() {
  return "</body>\n</html>\n";
}

}  // namespace quipu::detail
