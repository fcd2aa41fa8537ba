// What our columns call: the tensors of the published benches, and our operators on them.
#include <quipu/quipu.h>

#include <regex>

#include "tables.h"

namespace quipu::bench {
using namespace detail;
namespace {

constexpr std::int64_t head_dim = 128;

Tensor make(const Shape& shape, Device device, Values values) {
  return values == Values::zero ? zeros(shape, bf16, device) : randn(shape, bf16, device);
}
Tensor make_leaf(const Shape& shape, Device device, Values values) {
  return make(shape, device, values).set_requires_grad();
}

/// The first group of the pattern in the table's name, or "".
std::string in_name(const PublishedTable& table, const char* pattern) {
  std::smatch match;
  return std::regex_search(table.name, match, std::regex(pattern)) ? match[1].str() : "";
}

struct ActOption {
  Act act = Act::none;
  std::optional<int> dim;
};
ActOption act_option(const PublishedTable& table) {
  const std::string dim = in_name(table, "-dim_(-?[0-9]+)");
  return {act_named(in_name(table, "-act_([a-z]+)")),
          dim.empty() ? std::nullopt : std::optional<int>(std::stoi(dim))};
}

std::vector<Variant> act_variants(const PublishedTable& table) {
  const ActOption option = act_option(table);
  return {{"ours", "act", [=](Device device, Size size, Values values) {
             const Tensor x = make_leaf({size.batch, size.heads, size.n, head_dim}, device, values);
             return Prepared{{x}, [=] { return act(x, option.act, option.dim); }};
           }}};
}

std::vector<Variant> rotate_variants(const PublishedTable& table) {
  const ActOption option = act_option(table);
  const LrpeOptions options{.act = option.act, .dim = option.dim};
  return {{"ours", "lrpe_rotate", [=](Device device, Size size, Values values) {
             const Tensor x = make_leaf({size.batch, size.n, size.heads, head_dim}, device, values);
             const Tensor theta = make({size.heads, head_dim / 2}, device, values);
             return Prepared{{x, theta}, [=] { return lrpe_rotate(x, theta, options); }};
           }}};
}

/// The grid's leaf with its leading tokens in front, copied as the published bench does it.
Tensor packed_copy(const Tensor& leaf, const Tensor& lead) {
  const Tensor tokens = leaf.reshape({leaf.size(0), leaf.size(1), -1, head_dim});
  return lead.defined() ? cat({lead, tokens}, 2) : tokens.clone();
}

int axes_of(const PublishedTable& table) {
  return table.family == "lrpe_cosine" ? std::stoi(in_name(table, "-([0-9])d-")) : 1;
}

std::vector<Variant> cosine_variants(const PublishedTable& table) {
  const int axes = axes_of(table);
  const std::int64_t l = std::stoi(in_name(table, "-l([0-9]+)"));
  const std::int64_t angles = (head_dim + axes - 1) / axes;
  const auto in_place = [=](bool keep_angles) {
    return [=](Device device, Size size, Values values) {
      const Shape grid = Dims::filled(axes, size.n);
      const LrpeMdOptions options{.l = l, .keep_angles = keep_angles};
      const Tensor x =
          make_leaf({size.batch, size.heads, l + numel(grid), head_dim}, device, values);
      const Tensor theta = make({size.heads, angles}, device, values);
      return Prepared{{x, theta}, [=] { return lrpe_cosine_md(x, theta, grid, options); }};
    };
  };
  const auto copied = [=](Device device, Size size, Values values) {
    const Shape grid = Dims::filled(axes, size.n);
    Shape shape{size.batch, size.heads};
    for (int i = 0; i < axes; ++i) shape.push_back(size.n);
    shape.push_back(head_dim);
    const Tensor leaf = make_leaf(shape, device, values);
    const Tensor theta = make({size.heads, angles}, device, values);
    const Tensor lead =
        l > 0 ? make({size.batch, size.heads, l, head_dim}, device, values) : Tensor();
    const Tensor x = packed_copy(leaf, lead);
    if (!x.requires_grad()) x.set_requires_grad();  // no tape was open
    Prepared run{{leaf, theta, x}, [=] { return lrpe_cosine_md(x, theta, grid, {.l = l}); }};
    if (lead.defined()) run.held.push_back(lead);
    return run;
  };
  return {{"ours", "lrpe_cosine_md on x made in place", in_place(false)},
          {"ours_kept_angles", "the same with its angles kept for backward", in_place(true)},
          {"ours_packed_copy", "with the published bench's copy of x beside x", copied}};
}

std::vector<Variant> tpa_variants(const PublishedTable&) {
  constexpr std::int64_t h = 32, r = 16, d = head_dim, e = head_dim;
  const auto with_split = [=](bool split) {
    return [=](Device device, Size size, Values values) {
      const std::int64_t m = size.n, b = size.batch;
      const Tensor aq = make({b, 1, h, r}, device, values), ak = make({b, m, h}, device, values),
                   av = make({b, m, h}, device, values), bq = make({b, 1, r, d}, device, values),
                   bk = make({b, m, d}, device, values), bv = make({b, m, e}, device, values);
      const TpaOptions options{.split = split};
      return Prepared{{aq, ak, av, bq, bk, bv},
                      [=] { return tpa_decode(aq, ak, av, bq, bk, bv, options); },
                      /*recorded=*/false};
    };
  };
  return {{"ours", "tpa_decode, long sequences of a small batch in blocks", with_split(true)},
          {"ours_unsplit", "each sequence in one go", with_split(false)}};
}

std::vector<Variant> flao_variants(const PublishedTable&) {
  const auto keeping = [](FlaoKeep keep) {
    return [=](Device device, Size size, Values values) {
      const Shape shape{size.batch, size.heads, size.n, head_dim};
      const Tensor q = make_leaf(shape, device, values), k = make_leaf(shape, device, values),
                   v = make_leaf(shape, device, values), g = make_leaf(shape, device, values);
      const FlaoOptions options{.keep = keep};
      return Prepared{{q, k, v, g},
                      [=] { return flao(q, k, v, g, options); },
                      /*recorded=*/true,
                      /*upstream_in_forward=*/true};
    };
  };
  return {{"ours", "flao, nothing kept but its inputs", keeping(FlaoKeep::nothing)},
          {"ours_keep_kv", "kv kept for backward", keeping(FlaoKeep::kv)},
          {"ours_keep_kv_and_qkv", "kv and q kv kept", keeping(FlaoKeep::kv_and_qkv)}};
}

}  // namespace

std::int64_t tokens_of(const PublishedTable& table, std::int64_t n) {
  return numel(Dims::filled(axes_of(table), n));
}

std::vector<Variant> variants_of(const PublishedTable& table) {
  if (table.family == "act") return act_variants(table);
  if (table.family == "lrpe_rotate") return rotate_variants(table);
  if (table.family == "lrpe_cosine") return cosine_variants(table);
  if (table.family == "tpa_decode") return tpa_variants(table);
  if (table.family == "flao") return flao_variants(table);
  fail("there is no operator for the published tables of '", table.family, "'");
}

}  // namespace quipu::bench
