#pragma once
namespace quipu::detail::on_cuda {

/// Tells core/ how many CUDA devices there are, where their memory comes from and how values get
/// there and back. Starts nothing.
void register_runtime();

}  // namespace quipu::detail::on_cuda
