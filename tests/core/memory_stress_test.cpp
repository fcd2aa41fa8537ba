// Thousands of random events on cpu and on meta:cpu at once, each compared with the model.
#include <memory>
#include <random>
#include <vector>

#include "support/memory_model.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::testing;

namespace {

constexpr const char* ops[] = {"matmul", "add", "softmax", "embedding"};
constexpr const char* scopes[] = {"encoder", "layer0", "layer1", "head"};

/// One block on both devices and what its label depends on.
struct Twin {
  int id;
  Ref<Storage> real, meta;
  Category category;
  int holds = 0;

  Category label() const {
    const bool savable = category == Category::output || category == Category::workspace;
    return holds > 0 && savable ? Category::saved : category;
  }
};

struct Region {
  std::unique_ptr<PeakMemory> real, meta;
  MemoryModel::Peak* model;
};

class Stress {
 public:
  explicit Stress(unsigned seed) : random_(seed) {
    for (const Device device : {real_device, meta_device}) {
      release_cached(device);
      REQUIRE(memory_stats(device).reserved == 0);
      reset_peak(device);
    }
    whole_ = model_.enter();
  }

  ~Stress() {
    while (!open_scopes_.empty()) open_scopes_.pop_back();  // the inner ones first
  }

  void run(int events) {
    for (int i = 0; i < events; ++i) {
      step();
      check_stats();
      if (i % 16 == 0) check_reports();
    }
    twins_.clear();
    check_reports_of_regions();
    for (const Device device : {real_device, meta_device}) {
      CHECK(memory_stats(device).current == 0);
      release_cached(device);
      CHECK(memory_stats(device).reserved == 0);
    }
  }

 private:
  inline static const Device real_device{"cpu"}, meta_device{"meta:cpu"};

  std::size_t below(std::size_t n) {
    return std::uniform_int_distribution<std::size_t>(0, n - 1)(random_);
  }

  void step() {
    switch (below(16)) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4:
      case 5: allocate(); break;
      case 6:
      case 7:
      case 8:
      case 9: drop(); break;
      case 10:
      case 11: relabel(); break;
      case 12: hold(); break;
      case 13: move_scope(); break;
      case 14: move_region(); break;
      case 15: rare(); break;
    }
  }

  std::size_t any_size() {
    switch (below(9)) {
      case 0: return below(3);  // also zero
      case 1:
      case 2:
      case 3: return 1 + below(5000);
      case 4:
      case 5: return 1 + below(300000);
      case 6: return 512 * (2045 + below(8));   // around the largest small block
      case 7: return 2 * mib * (1 + below(3));  // many segments of one size
      default: return 1 + below(9 * mib);
    }
  }

  void allocate() {
    if (model_.current() > (std::size_t{96} << 20)) return drop();
    const std::size_t bytes = any_size();
    const auto category = static_cast<Category>(below(category_count));
    const char* const op = below(5) ? ops[below(std::size(ops))] : nullptr;
    const OpScope running(op);
    Twin twin{next_id_++, block(bytes, real_device, category), block(bytes, meta_device, category),
              category};
    model_.allocate(twin.id, {bytes, category, op ? op : "", scope_path(thread_context().scope)});
    check_apart(twin);
    twins_.push_back(std::move(twin));
  }

  /// No live block may share a byte with another.
  void check_apart(const Twin& fresh) const {
    const auto apart = [](const Storage& a, const Storage& b) {
      const auto x = reinterpret_cast<std::uintptr_t>(a.data()),
                 y = reinterpret_cast<std::uintptr_t>(b.data());
      return x + a.bytes() <= y || y + b.bytes() <= x || a.bytes() == 0 || b.bytes() == 0;
    };
    REQUIRE(reinterpret_cast<std::uintptr_t>(fresh.real->data()) % 512 == 0);
    for (const Twin& other : twins_) {
      REQUIRE(apart(*fresh.real, *other.real));
      REQUIRE(apart(*fresh.meta, *other.meta));
    }
  }

  void drop() {
    if (twins_.empty()) return;
    const std::size_t i = below(twins_.size());
    model_.free(twins_[i].id);
    std::swap(twins_[i], twins_.back());
    twins_.pop_back();
  }

  void relabel() {
    if (twins_.empty()) return;
    Twin& twin = twins_[below(twins_.size())];
    twin.category = static_cast<Category>(below(category_count));
    twin.real->set_category(twin.category);
    twin.meta->set_category(twin.category);
    model_.relabel(twin.id, twin.label());
  }

  void hold() {
    if (twins_.empty()) return;
    Twin& twin = twins_[below(twins_.size())];
    const bool take = twin.holds == 0 || below(2);
    twin.holds += take ? 1 : -1;
    for (const Ref<Storage>& storage : {twin.real, twin.meta}) {
      take ? storage->hold_for_backward() : storage->let_go();
    }
    model_.relabel(twin.id, twin.label());
  }

  void move_scope() {
    if (open_scopes_.size() < 3 && below(2)) {
      open_scopes_.push_back(std::make_unique<MemoryScope>(scopes[below(std::size(scopes))]));
    } else if (!open_scopes_.empty()) {
      open_scopes_.pop_back();
    }
  }

  /// Regions open and close in any order.
  void move_region() {
    if (regions_.size() < 4 && below(2)) {
      regions_.push_back({std::make_unique<PeakMemory>(real_device),
                          std::make_unique<PeakMemory>(meta_device), model_.enter()});
      return;
    }
    if (regions_.empty()) return;
    const std::size_t i = below(regions_.size());
    if (below(3) == 0) {
      regions_[i].real->reset();
      regions_[i].meta->reset();
      model_.restart(regions_[i].model);
    } else {
      model_.leave(regions_[i].model);
      regions_.erase(regions_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  void rare() {
    if (below(4) == 0) {
      for (const Device device : {real_device, meta_device}) release_cached(device);
    } else if (below(8) == 0) {
      for (const Device device : {real_device, meta_device}) reset_peak(device);
      model_.restart(whole_);
    }
  }

  void check_stats() const {
    const MemoryStats real = memory_stats(real_device), meta = memory_stats(meta_device);
    model_.check_stats(real);
    model_.check_stats(meta);
    REQUIRE(real.peak == whole_->bytes);
    REQUIRE(meta.peak == whole_->bytes);
    REQUIRE(meta.reserved == real.reserved);  // the same choices, whatever the addresses
  }

  void check_reports() const {
    const MemoryModel::Peak now{model_.current(), model_.holders()};
    MemoryModel::check_report(memory_report(real_device), now);
    MemoryModel::check_report(memory_report(meta_device), now);
    check_reports_of_regions();
  }

  void check_reports_of_regions() const {
    MemoryModel::check_report(peak_report(real_device), *whole_);
    MemoryModel::check_report(peak_report(meta_device), *whole_);
    for (const Region& region : regions_) {
      REQUIRE(region.real->bytes() == region.model->bytes);
      REQUIRE(region.meta->bytes_above() == region.real->bytes_above());
      MemoryModel::check_report(region.real->report(), *region.model);
      MemoryModel::check_report(region.meta->report(), *region.model);
    }
  }

  std::mt19937 random_;
  MemoryModel model_;
  MemoryModel::Peak* whole_;
  std::vector<std::unique_ptr<MemoryScope>> open_scopes_;
  std::vector<Region> regions_;
  std::vector<Twin> twins_;
  int next_id_ = 0;
};

}  // namespace

TEST_CASE("memory: random events agree with a model, on cpu and on meta alike") {
  for (const unsigned seed : {1u, 2u, 3u}) {
    CAPTURE(seed);
    Stress(seed).run(3000);
  }
}
