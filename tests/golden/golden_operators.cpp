#include "golden_operators.h"

#include "quipu/ops/flao/flao.h"
#include "quipu/ops/lrpe/lrpe.h"
#include "quipu/ops/tpa_decode/tpa_decode.h"

namespace quipu::testing {
using namespace detail;
namespace {

using Args = GoldenArgs;
using Task = GoldenTask;

Accuracy accuracy_of(Act kind) {
  return kind == Act::softmax ? of_softmax : of_units;
}

/// A tensor that the file must have.
const Tensor& given(const std::vector<Tensor>& in, std::size_t i) {
  check(i < in.size(), "the file has ", in.size(), " of the operator's tensors, but not all");
  return in[i];
}

/// The sizes of one input's rows.
std::function<Sizes(const std::vector<Tensor>&, const Tensor&)> sized(const SizedRows& rows) {
  return [=](const auto& in, const Tensor& d_o) { return sizes_of_rows(rows, given(in, 0), d_o); };
}

Task act_task(Args& args) {
  const Act kind = args.act("act");
  const auto dim = args.find<int>("dim");
  return {
      {{"", [=](const auto& in) { return act(given(in, 0), kind, dim); }, kind == Act::softmax}},
      accuracy_of_act(kind, dim),
      sized({LrpeKind::none, kind, dim})};
}

template <Tensor (*operation)(const Tensor&, const Tensor&, const LrpeOptions&), LrpeKind kind>
Task lrpe_task(Args& args) {
  LrpeOptions options{args.act("act"), args.find<int>("dim"), args.get<std::int64_t>("offset", 0)};
  Task task{{}, accuracy_of(options.act), sized({kind, options.act, options.dim})};
  task.offset = options.offset;
  for (const bool keep : {false, true}) {
    options.keep_angles = keep;
    task.variants.push_back({keep ? " with angles kept" : "", [=](const auto& in) {
                               return operation(given(in, 0), given(in, 1), options);
                             }});
  }
  return task;
}

Task lrpe_cosine_md_task(Args& args) {
  LrpeMdOptions options{args.get<std::int64_t>("l", 0), args.act("act"), args.find<int>("dim")};
  const Shape shape = args.shape("shape");
  Task task{{}, accuracy_of(options.act), sized({LrpeKind::cosine, options.act, options.dim})};
  for (const bool keep : {false, true}) {
    options.keep_angles = keep;
    task.variants.push_back({keep ? " with angles kept" : "", [=](const auto& in) {
                               return lrpe_cosine_md(given(in, 0), given(in, 1), shape, options);
                             }});
  }
  return task;
}

FlaoLrpe flao_lrpe_named(const std::string& name) {
  const std::map<std::string, FlaoLrpe> names{{"none", FlaoLrpe::none},
                                              {"rotate", FlaoLrpe::rotate},
                                              {"cosine", FlaoLrpe::cosine},
                                              {"cosine_md", FlaoLrpe::cosine_md}};
  check(names.contains(name), "there is no position encoding \"", name, "\"");
  return names.at(name);
}

Task flao_task(Args& args) {
  FlaoOptions options;
  options.q_act = args.act("q_act");
  options.q_dim = args.find<int>("q_dim");
  options.k_act = args.act("k_act");
  options.k_dim = args.find<int>("k_dim");
  options.v_act = args.act("v_act");
  options.v_dim = args.find<int>("v_dim");
  options.g_act = args.act("g_act");
  options.g_dim = args.find<int>("g_dim");
  options.lrpe = flao_lrpe_named(args.get<std::string>("lrpe", "none"));
  options.offset = args.get<std::int64_t>("offset", 0);
  options.shape = args.shape("shape");
  options.l = args.get<std::int64_t>("l", 0);
  Task task{{}, of_flao, [=](const auto& in, const Tensor& d_o) {
              given(in, 3);
              return sizes_of_flao(options, in, d_o);
            }};
  task.offset = options.offset;
  const char* names[] = {"", " with kv kept", " with kv and qkv kept"};
  for (const FlaoKeep keep : {FlaoKeep::nothing, FlaoKeep::kv, FlaoKeep::kv_and_qkv}) {
    options.keep = keep;
    task.variants.push_back({names[static_cast<int>(keep)],
                             [=](const auto& in) {
                               FlaoOptions with_theta = options;
                               if (in.size() > 4) with_theta.theta = given(in, 4);
                               return flao(given(in, 0), given(in, 1), given(in, 2), given(in, 3),
                                           with_theta);
                             },
                             keep == FlaoKeep::kv_and_qkv});
  }
  return task;
}

Task tpa_decode_task(Args& args) {
  TpaOptions options;
  options.scale = args.find<double>("scale");
  options.scale_q = args.find<double>("scale_q");
  options.scale_k = args.find<double>("scale_k");
  options.scale_v = args.find<double>("scale_v");
  return {{{"",
            [=](const auto& in) {
              TpaOptions with_lengths = options;
              if (in.size() > 6) with_lengths.lengths = given(in, 6);
              return tpa_decode(given(in, 0), given(in, 1), given(in, 2), given(in, 3),
                                given(in, 4), given(in, 5), with_lengths);
            }}},
          of_tpa,
          [=](const auto& in, const Tensor& d_o) {
            TpaOptions with_lengths = options;
            if (in.size() > 6) with_lengths.lengths = given(in, 6);
            given(in, 5);
            return sizes_of_tpa(with_lengths, in, d_o);
          }};
}

}  // namespace

Shape GoldenArgs::shape(const std::string& name) {
  Shape shape;
  for (const auto side : get<std::vector<std::int64_t>>(name, {})) shape.push_back(side);
  return shape;
}

void GoldenArgs::check_all_used() const {
  for (const auto& entry : json_.items()) {
    check(used_.contains(entry.key()), "argument ", entry.key(), " is not known");
  }
}

const std::map<std::string, GoldenOperator>& golden_operators() {
  static const std::map<std::string, GoldenOperator> table{
      {"act", {{"x"}, {}, act_task}},
      {"lrpe_rotate", {{"x"}, {"theta"}, lrpe_task<lrpe_rotate, LrpeKind::rotate>}},
      {"lrpe_cosine", {{"x"}, {"theta"}, lrpe_task<lrpe_cosine, LrpeKind::cosine>}},
      {"lrpe_cosine_md", {{"x"}, {"theta"}, lrpe_cosine_md_task}},
      {"flao", {{"q", "k", "v", "g"}, {"theta"}, flao_task}},
      {"tpa_decode", {{"aq", "ak", "av", "bq", "bk", "bv"}, {"lengths"}, tpa_decode_task}},
  };
  return table;
}

}  // namespace quipu::testing
