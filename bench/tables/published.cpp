// Reads the published files. What a table is about stands in its file's name.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "../../examples/shared_file.h"
#include "quipu/core/error.h"
#include "tables.h"

namespace quipu::bench {
using namespace detail;
namespace {

std::vector<std::string> split_at_commas(const std::string& line) {
  std::vector<std::string> parts;
  std::istringstream text(line);
  for (std::string part; std::getline(text, part, ',');) parts.push_back(part);
  return parts;
}

PublishedTable read_table(const std::filesystem::path& path) {
  PublishedTable table;
  table.family = path.parent_path().filename();
  table.name = path.stem();
  table.kind = table.name.find("-memory-") != std::string::npos ? Kind::memory : Kind::speed;
  table.pass = table.name.find("-bwd-") != std::string::npos ? Pass::bwd : Pass::fwd;
  std::smatch batch;
  check(std::regex_search(table.name, batch, std::regex("-batch([0-9]+)")), path.string(),
        ": wanted '-batch' and its size in the name");
  table.batch = std::stoll(batch[1]);
  std::ifstream file(path);
  std::string line;
  const std::string title = "# device: ";
  std::getline(file, line);
  check(line.starts_with(title), path.string(), ": wanted a first line '", title, "...', got '",
        line, "'");
  table.device = line.substr(title.size(), line.find(';') - title.size());
  std::getline(file, line);
  table.columns = split_at_commas(line);
  check(table.columns.size() > 1, path.string(), ": wanted names of columns, got '", line, "'");
  table.axis = table.columns.front();
  table.columns.erase(table.columns.begin());
  while (std::getline(file, line)) {
    const std::vector<std::string> cells = split_at_commas(line);
    check(cells.size() == table.columns.size() + 1, path.string(), ": wanted ",
          table.columns.size() + 1, " cells in a row, got '", line, "'");
    PublishedTable::Row row{std::stoll(cells[0]), {}};
    for (std::size_t i = 1; i < cells.size(); ++i) row.values.push_back(std::stod(cells[i]));
    table.rows.push_back(std::move(row));
  }
  return table;
}

}  // namespace

const char* name_of(Kind kind) {
  return kind == Kind::memory ? "memory" : "speed";
}
const char* name_of(Pass pass) {
  return pass == Pass::fwd ? "fwd" : "bwd";
}

double PublishedTable::best(std::size_t row) const {
  return *std::min_element(rows[row].values.begin(), rows[row].values.end());
}

std::string published_directory() {
  return shared_file("published");
}

std::vector<PublishedTable> read_published(const std::string& directory) {
  check(std::filesystem::is_directory(directory), "there is no folder ", directory,
        " with the published tables");
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (entry.path().extension() == ".csv") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<PublishedTable> tables;
  for (const auto& path : paths) tables.push_back(read_table(path));
  return tables;
}

}  // namespace quipu::bench
