#include "quipu/nn/data/loader.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "quipu/core/context.h"
#include "quipu/core/memory/allocator.h"
#include "quipu/nn/data/permutation.h"
#include "quipu/nn/data/prefetcher.h"
#include "quipu/nn/named_state.h"
#include "quipu/ops/pinned.h"

namespace quipu::nn {
using namespace quipu::detail;
using namespace detail;

namespace {

void check_options(const LoaderOptions& o, std::int64_t samples) {
  check(o.batch_size > 0, "batch_size is ", o.batch_size, ", but must be at least 1");
  check(o.prefetch >= 0, "prefetch is ", o.prefetch, ", but must not be negative");
  check(o.world > 0, "world is ", o.world, ", but there is at least one process");
  check(o.rank >= 0 && o.rank < o.world, "rank is ", o.rank, ", but must lie in [0, ", o.world,
        ")");
  check(o.batch_size <= std::numeric_limits<std::int64_t>::max() / o.world, "batch_size is ",
        o.batch_size, ", too large for ", o.world, " processes");
  check(samples > 0, "the data set is empty");
  check(!o.drop_last || samples / o.world >= o.batch_size, "the data set has ", samples,
        " samples, which fill no batch of ", o.batch_size, o.world > 1 ? " on each process" : "",
        "; drop_last would leave nothing");
}

/// Which samples a batch has. It changes only while nothing is prefetched.
struct Plan {
  std::shared_ptr<const Dataset> data;
  LoaderOptions options;
  std::int64_t samples;

  std::int64_t per_step() const { return options.batch_size * options.world; }
  std::int64_t batches() const {
    return options.drop_last ? samples / per_step() : (samples - 1) / per_step() + 1;
  }
  /// Places in the order of the epoch: [first, last) of this process.
  std::pair<std::int64_t, std::int64_t> range(std::int64_t batch) const {
    const std::int64_t begin = batch * per_step();
    const std::int64_t count = std::min(per_step(), samples - begin);
    return {begin + share(count, options.rank), begin + share(count, options.rank + 1)};
  }
  /// count * part / world, without overflow.
  std::int64_t share(std::int64_t count, std::int64_t part) const {
    return count / options.world * part + count % options.world * part / options.world;
  }
  /// Where values can be filled in.
  Batch make(const BatchPosition& position) const {
    const auto [first, last] = range(position.batch);
    std::optional<PinnedScope> pinned;  // so that the device can copy it by itself
    if (options.device.is_cuda()) pinned.emplace();
    return data->make(last - first, Device(DeviceKind::cpu, 0, options.device.is_meta()));
  }
  void fill(const BatchPosition& position, const Batch& batch) const;
  BatchPosition after(const BatchPosition& p) const {
    return p.batch + 1 < batches() ? BatchPosition{p.epoch, p.batch + 1}
                                   : BatchPosition{p.epoch + 1, 0};
  }
};

void Plan::fill(const BatchPosition& position, const Batch& batch) const {
  if (options.device.is_meta()) return;  // there are no values
  const OpScope op("loader");
  const auto [first, last] = range(position.batch);
  const Permutation order(samples, options.seed, static_cast<std::uint64_t>(position.epoch));
  std::vector<std::int64_t> places;
  for (std::int64_t i = first; i < last; ++i) places.push_back(options.shuffle ? order(i) : i);
  data->fill(batch, places);
}

}  // namespace

struct Loader::Impl {
  Plan plan;
  BatchPosition position;  // of the next batch
  BatchPosition ahead;     // of the next one to prefetch
  std::unique_ptr<Prefetcher> prefetcher;

  Batch take_prefetched();
  Batch make_now() const {
    Batch batch = plan.make(position);
    plan.fill(position, batch);
    return batch;
  }
  /// The settings that the order of samples depends on.
  std::vector<std::pair<const char*, std::int64_t>> settings() const {
    const LoaderOptions& o = plan.options;
    return {{"samples", plan.samples},
            {"batch_size", o.batch_size},
            {"world", o.world},
            {"shuffle", o.shuffle},
            {"drop_last", o.drop_last}};
  }
};

Batch Loader::Impl::take_prefetched() {
  if (prefetcher && !prefetcher->of_this_process()) prefetcher.reset();
  if (!prefetcher) {
    ahead = position;
    prefetcher = std::make_unique<Prefetcher>(
        [this](const BatchPosition& at, const Batch& batch) { plan.fill(at, batch); });
  }
  while (prefetcher->size() <= static_cast<std::size_t>(plan.options.prefetch)) {
    prefetcher->push(ahead, plan.make(ahead));
    ahead = plan.after(ahead);
  }
  try {
    return prefetcher->take();
  } catch (...) {
    prefetcher.reset();  // the next call begins again with the batch that failed
    throw;
  }
}

Loader::Loader(std::shared_ptr<const Dataset> data, const LoaderOptions& options) {
  const OpScope op("loader");
  check(data != nullptr, "there is no data set");
  const std::int64_t samples = data->size();
  check_options(options, samples);
  impl_ = std::make_unique<Impl>(Impl{{std::move(data), options, samples}, {}, {}, {}});
}

Loader::~Loader() = default;
Loader::Loader(Loader&&) noexcept = default;
Loader& Loader::operator=(Loader&&) noexcept = default;

Batch Loader::next() {
  const OpScope op("loader");
  Impl& self = *impl_;
  Batch batch = self.plan.options.prefetch > 0 ? self.take_prefetched() : self.make_now();
  for (Tensor& tensor : batch) tensor = to_async(tensor, self.plan.options.device);
  self.position = self.plan.after(self.position);
  return batch;
}

std::int64_t Loader::epoch() const {
  return impl_->position.epoch;
}

std::int64_t Loader::batch_of_epoch() const {
  return impl_->position.batch;
}

std::int64_t Loader::batches_per_epoch() const {
  return impl_->plan.batches();
}

NamedTensors Loader::state() const {
  NamedTensors state{{"epoch", to_state(impl_->position.epoch)},
                     {"batch", to_state(impl_->position.batch)},
                     {"seed", to_state(static_cast<std::int64_t>(impl_->plan.options.seed))}};
  for (const auto& [name, value] : impl_->settings()) state.emplace_back(name, to_state(value));
  return state;
}

void Loader::load_state(const NamedTensors& state) {
  const OpScope op("loader");
  std::string different;
  for (const auto& [name, value] : impl_->settings()) {
    const std::int64_t then = whole_number(state, name);
    if (then == value) continue;
    different += concat(different.empty() ? "" : ", ", name, " was ", then, " and is ", value);
  }
  check(different.empty(), "the position belongs to other data or options: ", different);
  const BatchPosition position{whole_number(state, "epoch"), whole_number(state, "batch")};
  check(position.epoch >= 0 && position.epoch <= most_steps && position.batch >= 0 &&
            position.batch < batches_per_epoch(),
        "batch ", position.batch, " of epoch ", position.epoch, " is no position; an epoch has ",
        batches_per_epoch(), " batches");
  const std::int64_t seed = whole_number(state, "seed");
  impl_->prefetcher.reset();
  impl_->plan.options.seed = static_cast<std::uint64_t>(seed);
  impl_->position = position;
}

Loader::Iterator::Iterator(Loader& loader)
    : loader_(&loader), epoch_(loader.epoch()), batch_(loader.next()) {}

Loader::Iterator& Loader::Iterator::operator++() {
  batch_.clear();  // before the next one is made
  done_ = loader_->epoch() != epoch_;
  if (!done_) batch_ = loader_->next();
  return *this;
}

Loader::Iterator Loader::begin() {
  return Iterator(*this);
}

}  // namespace quipu::nn
