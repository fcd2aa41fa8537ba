#pragma once
// Changes of programs that keep them whole.
#include "program.h"

namespace quipu::programs {

using Statements = std::vector<Statement>;

/// Those of bodies, too.
void for_each_statement(Statements& statements, const std::function<void(Statement&)>& f);
/// Every use of `from` becomes one of `to`.
void rename(Program& p, Value from, Value to);
/// Without statements and leaves that nothing depends on.
Program without_dead(Program p);
/// All values, by a run on the CPU.
Tensors run_along(const Program& p);
/// Upstream gradients get the shapes of their losses; false where the program cannot run.
bool fit_upstreams(Program& p);

}  // namespace quipu::programs
