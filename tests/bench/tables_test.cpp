// Our operators against every published memory figure, and meta against the CPU, to the byte.
#include "tables.h"

#include <algorithm>
#include <sstream>

#include "support/support.h"

namespace {

using namespace quipu;
using namespace quipu::bench;
using namespace quipu::testing;

constexpr double printed = 1e-6;  // published figures are rounded to this

const std::vector<PublishedTable>& published() {
  static const std::vector<PublishedTable> tables = read_published(published_directory());
  return tables;
}

const PublishedTable& table_named(const std::string& name) {
  const auto it = std::find_if(published().begin(), published().end(),
                               [&](const PublishedTable& t) { return t.name == name; });
  REQUIRE(it != published().end());
  return *it;
}

double first_row(const std::string& name, std::size_t variant = 0) {
  const PublishedTable& table = table_named(name);
  return measure_memory(variants_of(table)[variant], table.pass, "meta:cuda",
                        {table.rows[0].n, table.batch}) /
         (1 << 20);
}

/// Whether a tie is not enough.
bool must_be_below(const PublishedTable& table) {
  if (table.family == "flao" || table.family == "tpa_decode") return true;
  const bool identity = table.family == "act" && table.name.find("act_none") != std::string::npos;
  return table.pass == Pass::bwd && !identity;
}

TEST_CASE("tables: all eighty published files are read") {
  CHECK(published().size() == 80);
  std::size_t cells = 0;
  for (const PublishedTable& table : published()) {
    CHECK(table.rows.size() >= 4);
    if (table.kind != Kind::memory) continue;
    for (const auto& row : table.rows) cells += row.values.size();
  }
  CHECK(cells == 1056);
  const PublishedTable& flao = table_named("flao-memory-bwd-batch12-head12-dim128-dim128-bf16");
  CHECK(flao.device == "A800");
  CHECK(flao.columns.back() == "flao_tri");
  CHECK(flao.best(0) == 142.45);
}

TEST_CASE("tables: no memory figure of ours is above the best published one") {
  for (const Device device : {Device("meta:cuda"), Device("meta:cpu")}) {
    int figures = 0;
    for (const PublishedTable& table : published()) {
      if (table.kind != Kind::memory) continue;
      const Comparison ours = compare_with(table, device, 0);
      CHECK(ours.rows.size() == table.rows.size());
      for (const Comparison::Row& row : ours.rows) {
        const double best = table.best(row.index);
        for (const double value : row.ours) {
          CAPTURE(table.name);
          CAPTURE(table.rows[row.index].n);
          ++figures;
          CHECK(value > 0);
          CHECK(value < best + (must_be_below(table) ? -printed : printed));
        }
      }
    }
    CHECK(figures >= 512);
  }
}

TEST_CASE("tables: the first rows need what the derivations say") {
  const auto close = [](double value) { return doctest::Approx(value).epsilon(1e-7); };
  const std::string act = "act-memory-", rotate = "lrpe_rotate-memory-",
                    size = "-batch12-head12-dim128-";
  CHECK(first_row(act + "bwd" + size + "act_silu-bf16") == close(36));
  CHECK(first_row(act + "bwd" + size + "act_none-bf16") == close(27));
  CHECK(first_row(act + "fwd" + size + "act_softmax-dim_-2-bf16") == close(18));
  CHECK(first_row(act + "bwd" + size + "act_softmax-dim_-2-bf16") <= 36.0703125 + printed);
  CHECK(first_row(rotate + "fwd" + size + "act_silu-bf16") == close(18 + 1536.0 / (1 << 20)));
  CHECK(first_row(rotate + "bwd" + size + "act_silu-bf16") == close(36 + 1536.0 / (1 << 20)));
  const std::string md = "md_lrpe_cosine-memory-", one = size + "bf16-1d-l0";
  CHECK(first_row(md + "fwd" + one) == close(27 + 3072.0 / (1 << 20)));
  CHECK(first_row(md + "bwd" + one) == close(54 + 3072.0 / (1 << 20)));
  CHECK(first_row(md + "fwd" + one, 2) == close(36 + 3072.0 / (1 << 20)));  // with the copy
  CHECK(first_row(md + "bwd" + one, 2) == close(63 + 3072.0 / (1 << 20)));
  CHECK(first_row("tpa_decode-memory-fwd-batch8-head32-dim128-rank16-bf16") == close(1.3515625));
  CHECK(first_row("tpa_decode-memory-fwd-batch8-head32-dim128-rank16-bf16", 1) == close(1.3515625));
  const std::string flao = "flao-memory-", last = "-batch12-head12-dim128-dim128-bf16";
  CHECK(first_row(flao + "fwd" + last) == close(63));
  CHECK(first_row(flao + "bwd" + last) == close(108));
  // Tensor cores never read qkv, 9 MiB here, so that it is not kept.
  CHECK(first_row(flao + "fwd" + last, 2) == close(63));
  CHECK(first_row(flao + "bwd" + last, 2) == close(108));
}

/// What is compared on the CPU: all rows of what is quick, the first rows of the rest, and of each
/// operator one large row.
bool is_compared(const PublishedTable& table, std::int64_t tokens) {
  const bool forward = table.pass == Pass::fwd;
  if (table.family == "tpa_decode" || (table.family == "act" && forward)) return tokens <= 2048;
  if (tokens <= (forward ? 512 : 256)) return true;
  const auto named = [&](const char* part) { return table.name.find(part) != std::string::npos; };
  return tokens == 2048 && (named("bwd-batch12-head12-dim128-act_silu") ||
                            named("bwd-batch12-head12-dim128-dim128-bf16-cache_kv_qkv"));
}

TEST_CASE("tables: the CPU needs what meta says, to the byte") {
  int compared = 0;
  for (const PublishedTable& table : published()) {
    if (table.kind != Kind::memory) continue;
    for (const Variant& variant : variants_of(table)) {
      for (const PublishedTable::Row& row : table.rows) {
        if (!is_compared(table, tokens_of(table, row.n))) continue;
        CAPTURE(table.name);
        CAPTURE(variant.column);
        CAPTURE(row.n);
        const Size size{row.n, table.batch};
        CHECK(measure_memory(variant, table.pass, cpu, size, 2) ==
              measure_memory(variant, table.pass, "meta:cpu", size, 2));
        ++compared;
      }
    }
  }
  CHECK(compared > 120);
}

TEST_CASE("tables: a figure above the best published one is counted as such") {
  PublishedTable table = table_named("act-memory-fwd-batch12-head12-dim128-act_relu-bf16");
  table.rows.resize(3);
  table.rows[0].values = {18.5, 18, 19};
  table.rows[1].values = {36.5, 37, 38};
  table.rows[2].values = {71, 72, 73};
  const Comparison ours = compare_with(table, "meta:cpu", 0);
  const Tally count = tally({ours});
  CHECK(count.equal == 1);
  CHECK(count.below == 1);
  CHECK(count.above == 1);
}

TEST_CASE("tables: rows, columns and forms of the output") {
  const PublishedTable& table =
      table_named("md_lrpe_cosine-memory-bwd-batch12-head12-dim128-bf16-3d-l10");
  const Comparison ours = compare_with(table, "meta:cuda", 4096, 1);
  REQUIRE(ours.rows.size() == 3);  // sides 4, 8 and 16
  std::istringstream csv(as_csv(ours));
  std::string line;
  std::getline(csv, line);
  CHECK(line.find("ours on meta:cuda") != std::string::npos);
  CHECK(line.find("measured on A800") != std::string::npos);
  std::getline(csv, line);
  CHECK(line == "n,ours,ours_kept_angles,ours_packed_copy,tri,tri_ca,tor,tor_c");
  std::getline(csv, line);
  CHECK(line.starts_with("4,15.610840,"));
  CHECK(line.ends_with(",21.167969,21.601562,39.203418,21.542480"));
  CHECK(as_text(ours).find("ours_packed_copy: with the published bench's copy") !=
        std::string::npos);
  const std::string html = as_html({ours});
  CHECK(html.find("<td class=ours>15.610840</td>") != std::string::npos);
  CHECK(html.find("http") == std::string::npos);  // nothing from outside
}

TEST_CASE("tables: speed is refused where nothing is computed") {
  const PublishedTable& speed = table_named("act-speed-fwd-batch12-head12-dim128-act_relu-bf16");
  expect_error([&] { compare_with(speed, "meta:cpu", 256); }, "speed", "computes nothing");
}

}  // namespace
