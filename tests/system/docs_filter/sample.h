#pragma once
// What the filter is given (see Author et al. 2020): `#include <this>`.
#include <vector>

namespace sample {

class Later;

/// A list. It grows.
class List {
 public:
  List() = default;
  explicit List(int n);
  ~List();
  List(const List&) = delete;
  List& operator=(const List&) = delete;

  // As of a std::vector.
  int size() const { return size_; }
  bool empty() const {
    // Not for readers of the list.
    return size() == 0;
  }

  int capacity() const;  // a < b @ once,
                         // or more
  /// Adds one.
  void add(int value);
  void add(double value);
  int first() const { return 0; }  // never fails

  /// Two numbers.
  int low = 0, high{1};
  std::vector<int> left, right;  // halves

 private:
  friend class Later;
  int size_ = 0;
};

/// The number of a type.
template <class T>
inline constexpr int number_of = [] { return 0; }();
template <>
inline constexpr int number_of<int> = 1;

}  // namespace sample
