#pragma once
// What a back end provides for reading and adding at indices. Index tensors are i64 or i32; one out
// of range throws an Error that names the operator, the position and the bound.
// Internal to ops/ and the back ends.
#include "quipu/core/dispatch/dispatch.h"
#include "quipu/core/dispatch/query.h"

namespace quipu::detail {

/// o[.., i, ..] (=|+=) x[.., index[.., i, ..], ..]; index and o have one shape.
inline constinit Kernel<void(View x, View index, Target o, int axis)> gather_kernel{
    "gather", "x index o axis"};
/// o[.., index[.., i, ..], ..] += x[.., i, ..]; index and x have one shape. Adds in index order:
/// same bits always.
inline constinit Kernel<void(View o, View index, View x, int axis)> scatter_add_kernel{
    "scatter_add", "o index x axis"};
/// What scatter_join_kernel makes of two entries; NaN wins.
enum class Join : std::uint8_t { mul, max, min };
/// The same with another operation than a sum, in index order, rounded once.
inline constinit Kernel<void(View o, View index, View x, int axis, Join join)> scatter_join_kernel{
    "scatter_join", "o index x axis join"};
/// o[.., i, ..] = x[.., index[i], ..]; index is 1-d.
inline constinit Kernel<void(View x, View index, View o, int axis)> index_select_kernel{
    "index_select", "x index o axis", Agreement::equal};
/// o[.., index[i], ..] += x[.., i, ..]; index is 1-d. Adds in an order that depends on the indices
/// alone: same bits always. `space` is u8, of index_add_workspace() bytes, and not defined where
/// that is 0.
inline constinit Kernel<void(View o, View index, View x, int axis, View space)> index_add_kernel{
    "index_add", "o index x axis space*"};
inline constinit Query<std::int64_t(const View& o, const View& x, int axis)> index_add_workspace{
    "index_add_workspace"};
/// Calls index_add_kernel with the workspace that it wants.
void add_at_index(const View& o, const View& index, const View& x, int axis);

}  // namespace quipu::detail
