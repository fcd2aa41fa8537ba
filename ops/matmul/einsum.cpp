// einsum: each operand is brought to one dimension a letter; then two at a time are multiplied as
// batched matrices, (letters of both that stay) x (of the left) x (that are summed) and likewise
// for the right one. What stands in one operand alone and nowhere later is summed first.
#include <algorithm>
#include <map>
#include <string>

#include "quipu/core/context.h"
#include "quipu/ops/checks.h"
#include "quipu/ops/matmul/matmul.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/reduce/reduce.h"

namespace quipu {
using namespace detail;
namespace {

/// Dimensions that "..." stands for become letters of their own, counted from the last one.
constexpr char first_unnamed = '0';

struct Labelled {
  std::string letters;
  Tensor x;
};

std::string without_spaces(const std::string& text) {
  std::string o;
  for (const char c : text) {
    if (c != ' ') o += c;
  }
  return o;
}

void check_letters(const std::string& letters, const std::string& formula) {
  for (const char c : letters) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    check(letter || (c >= first_unnamed && c < first_unnamed + max_dims), "formula \"", formula,
          "\" has a '", std::string(1, c), "'; letters, commas, \"...\" and \"->\" are wanted");
  }
}

/// The letters with "..." replaced by `unnamed` dimensions.
std::string spelled_out(std::string letters, int unnamed, const std::string& formula) {
  const std::size_t dots = letters.find("...");
  if (dots != std::string::npos) {
    std::string names;
    for (int i = unnamed; i-- > 0;) names += static_cast<char>(first_unnamed + i);
    letters.replace(dots, 3, names);
  }
  check_letters(letters, formula);
  return letters;
}

/// Letters that stand twice become a diagonal.
Labelled with_diagonals(Labelled term) {
  for (std::size_t i = 0; i < term.letters.size(); ++i) {
    const std::size_t j = term.letters.find(term.letters[i], i + 1);
    if (j == std::string::npos) continue;
    const int first = static_cast<int>(i), second = static_cast<int>(j);
    check(term.x.size(first) == term.x.size(second), "letter '", std::string(1, term.letters[i]),
          "' is ", term.x.size(first), " and ", term.x.size(second), " in one operand");
    const char letter = term.letters[i];
    term.x = term.x.diagonal(0, first, second);
    term.letters.erase(j, 1);
    term.letters.erase(i, 1);
    term.letters += letter;
    i = static_cast<std::size_t>(-1);
  }
  return term;
}

bool has(const std::string& letters, char c) {
  return letters.find(c) != std::string::npos;
}

/// With dimensions summed whose letters are not wanted.
Labelled reduced_to(Labelled term, const std::string& wanted) {
  Dims gone;
  std::string left;
  for (std::size_t i = 0; i < term.letters.size(); ++i) {
    if (has(wanted, term.letters[i])) {
      left += term.letters[i];
    } else {
      gone.push_back(static_cast<std::int64_t>(i));
    }
  }
  if (gone.size() > 0) term.x = sum(term.x, Axes(gone));
  term.letters = left;
  return term;
}

/// In another order of letters; those that it lacks get size 1.
Tensor arranged(const Labelled& term, const std::string& order) {
  Tensor x = term.x;
  std::string letters = term.letters;
  for (const char c : order) {
    if (has(letters, c)) continue;
    letters += c;
    x = x.unsqueeze(-1);
  }
  Dims places;
  for (const char c : order) places.push_back(static_cast<std::int64_t>(letters.find(c)));
  return x.permute(places);
}

class Sizes {
 public:
  void note(const Labelled& term) {
    for (std::size_t i = 0; i < term.letters.size(); ++i) {
      const std::int64_t size = term.x.size(static_cast<int>(i));
      auto [known, fresh] = sizes_.emplace(term.letters[i], size);
      if (fresh || known->second == size || size == 1) continue;
      check(known->second == 1, "letter '", std::string(1, term.letters[i]), "' is ", known->second,
            " and ", size);
      known->second = size;
    }
  }
  std::int64_t of(char c) const { return sizes_.at(c); }
  std::int64_t product(const std::string& letters) const {
    std::int64_t n = 1;
    for (const char c : letters) n *= of(c);
    return n;
  }
  Shape shape(const std::string& letters) const {
    Shape s;
    for (const char c : letters) s.push_back(of(c));
    return s;
  }

 private:
  std::map<char, std::int64_t> sizes_;
};

/// The product of two, summed over what is not wanted any more.
Labelled multiplied(const Labelled& a, const Labelled& b, const std::string& wanted,
                    const Sizes& sizes) {
  std::string batch, left, right, inner;
  for (const char c : a.letters) {
    (has(b.letters, c) ? (has(wanted, c) ? batch : inner) : left) += c;
  }
  for (const char c : b.letters) {
    if (!has(a.letters, c)) right += c;
  }
  const auto matrices = [&](const Labelled& t, const std::string& rows,
                            const std::string& columns) {
    const std::string order = batch + rows + columns;
    return arranged(t, order)
        .expand(sizes.shape(order))
        .reshape({sizes.product(batch), sizes.product(rows), sizes.product(columns)});
  };
  const std::string letters = batch + left + right;
  const Tensor product = matmul(matrices(a, left, inner), matrices(b, inner, right));
  return {letters, product.reshape(sizes.shape(letters))};
}

/// What the result has if the formula does not say so.
std::string implied(const std::string& all_letters) {
  std::string once, sorted = all_letters;
  std::sort(sorted.begin(), sorted.end());
  for (char c = first_unnamed + max_dims; c-- > first_unnamed;) {
    if (has(all_letters, c)) once += c;
  }
  for (const char c : sorted) {
    if (c >= 'A' && std::count(sorted.begin(), sorted.end(), c) == 1) once += c;
  }
  return once;
}

}  // namespace

Tensor einsum(const std::string& formula, const std::vector<Tensor>& operands) {
  const OpScope op("einsum");
  const std::string text = without_spaces(formula);
  const std::size_t arrow = text.find("->");
  std::string inputs = text.substr(0, arrow);
  std::vector<Labelled> terms;
  Sizes sizes;
  int most_unnamed = 0;
  std::string all_letters;
  const auto count = static_cast<std::size_t>(std::count(inputs.begin(), inputs.end(), ',')) + 1;
  check(count == operands.size(), "formula \"", formula, "\" has ", count, " operands, but ",
        operands.size(), " are given");
  for (std::size_t begin = 0; begin <= inputs.size();) {
    const std::size_t end = std::min(inputs.find(',', begin), inputs.size());
    const std::string letters = inputs.substr(begin, end - begin);
    const Tensor& x = operands[terms.size()];
    check_floating("an operand", x.dtype());
    check_same_dtype("operand 0", operands[0], "another operand", x);
    check_same_device("operand 0", operands[0], "another operand", x);
    const bool dots = letters.find("...") != std::string::npos;
    const int unnamed = dots ? x.dim() - static_cast<int>(letters.size() - 3) : 0;
    const std::string names = spelled_out(letters, std::max(unnamed, 0), formula);
    check(unnamed >= 0 && static_cast<int>(names.size()) == x.dim(), "operand ", terms.size(),
          " of formula \"", formula, "\" has letters ", letters, ", but shape ", x.shape());
    most_unnamed = std::max(most_unnamed, unnamed);
    all_letters += names;
    terms.push_back(with_diagonals({names, x}));
    sizes.note(terms.back());
    begin = end + 1;
  }
  const std::string result = arrow == std::string::npos
                                 ? implied(all_letters)
                                 : spelled_out(text.substr(arrow + 2), most_unnamed, formula);
  for (std::size_t i = 0; i < result.size(); ++i) {
    const std::string letter(1, result[i]);
    bool known = false;
    for (const Labelled& t : terms) known |= has(t.letters, result[i]);
    check(known, "formula \"", formula, "\" has '", letter, "' in its result alone");
    check(result.find(letter, i + 1) == std::string::npos, "formula \"", formula, "\" has '",
          letter, "' twice in its result");
  }
  const auto wanted_after = [&](std::size_t i) {
    std::string letters = result;
    for (std::size_t j = i; j < terms.size(); ++j) letters += terms[j].letters;
    return letters;
  };
  for (std::size_t i = 0; i < terms.size(); ++i) {
    std::string elsewhere = result;
    for (std::size_t j = 0; j < terms.size(); ++j) elsewhere += j == i ? "" : terms[j].letters;
    terms[i] = reduced_to(terms[i], elsewhere);
  }
  Labelled product = terms[0];
  for (std::size_t i = 1; i < terms.size(); ++i) {
    product = multiplied(product, terms[i], wanted_after(i + 1), sizes);
  }
  product = reduced_to(product, result);
  return arranged(product, result);
}

Tensor addmm(const Tensor& bias, const Tensor& a, const Tensor& b) {
  const OpScope op("addmm");
  return add(bias, matmul(a, b));
}

Tensor outer(const Tensor& a, const Tensor& b) {
  const OpScope op("outer");
  check(a.dim() == 1 && b.dim() == 1, "a has shape ", a.shape(), " and b ", b.shape(),
        ", but vectors are wanted");
  return mul(a.unsqueeze(1), b);
}

}  // namespace quipu
