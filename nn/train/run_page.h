#pragma once
// A run on one page: an HTML file with its loss curve and its figures, all inside the file, for a
// light or a dark screen.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "quipu/nn/train/progress.h"

namespace quipu::nn {

/// What only the program knows. What is left out is not on the page.
struct RunFacts {
  std::string title = "Run";               // of the page
  std::string score_name = {};             // "test accuracy"
  std::string score = {};                  // "97.98 %"
  std::int64_t parameters = 0;             // Module::parameter_count()
  std::optional<std::uint64_t> seed = {};  // with which the run can be repeated
  std::vector<std::pair<std::string, std::string>> options = {};  // "lr", "0.001"
};

/// Builds the page: curves and figures first, then sections of the program's own.
class RunPage {
 public:
  /// Takes what Progress::figures() gives.
  RunPage(const RunFacts& facts, const RunFigures& figures);

  /// Another section at the end, such as a timeline of memory: HTML or SVG, put in as it is.
  void add_section(const std::string& title, const std::string& html);

  /// The whole file, without anything from the network.
  std::string html() const;
  /// Writes the page, or leaves what was at `path` and throws Error.
  void save(const std::string& path) const;
  /// Throws Error, before a long run does, if no page can be written there.
  static void check_writable(const std::string& path);

 private:
  std::string title_;
  std::string summary_;
  std::vector<std::pair<std::string, std::string>> tiles_;  // name and value
  std::vector<std::string> sections_;
};

namespace detail {

/// Text as HTML shows it: & < > " are written out.
std::string escape_html(const std::string& text);

}  // namespace detail

}  // namespace quipu::nn
